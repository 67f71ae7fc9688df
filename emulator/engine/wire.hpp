// SPDX-License-Identifier: Apache-2.0
// wire.hpp: the network as a NIC sees it.
#pragma once

#include "engine/packet.hpp"
#include "engine/types.hpp"

namespace shoal::emulator {

/// Carries the packets of one NIC. The owner delivers arriving packets with Nic::receive and calls
/// Nic::progress when the wire accepts packets again.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual Time now() const = 0;
  /// True if send() takes a packet now. A wire with a rate refuses while it transmits.
  virtual bool ready() const = 0;
  virtual void send(Packet&& packet) = 0;
};

}  // namespace shoal::emulator
