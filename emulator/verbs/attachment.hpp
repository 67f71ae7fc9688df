// SPDX-License-Identifier: Apache-2.0
// attachment.hpp: how the NIC of this process is attached to its wire, and the addresses there.
//
// The wire inside a host is an InfiniBand link: peers have LIDs. The wire between hosts is an
// Ethernet with RoCE v2: a peer's GID is the IPv4 address of its host, its queue-pair number says
// which process of that host it is. Its MAC address is 02:53 and then the four bytes of the IPv4
// address: packets to any other MAC address get lost, as behind a switch.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "engine/services.hpp"
#include "verbs/settings.hpp"
#include "wire/live_wire.hpp"
#include "wire/shared_memory_wire.hpp"
#include "wire/udp_wire.hpp"

namespace shoal::emulator {

/// Addresses in network byte order, as on the wire.
using Gid = std::array<std::uint8_t, 16>;
using Mac = std::array<std::uint8_t, 6>;

class Attachment {
 public:
  /// Throws std::runtime_error where the wire cannot be used.
  explicit Attachment(const DeviceSettings& settings);

  LiveWire& wire() const { return *wire_; }
  bool is_ethernet() const { return udp_ != nullptr; }
  /// Name of this NIC in packets, and its LID on InfiniBand.
  std::uint16_t lid() const { return lid_; }
  Gid gid() const;
  /// Largest payload of a packet: a power of two from 256 to 4096.
  std::uint32_t mtu() const;
  bool link_up() const { return udp_ == nullptr || udp_->link_up(); }
  /// Name of the Ethernet interface; empty on InfiniBand.
  std::string interface() const { return udp_ == nullptr ? "" : udp_->interface(); }

  /// Entries of the GID table.
  static constexpr std::uint32_t kGids = 1;
  /// MAC address of the port with this GID; nothing where the GID is no IPv4 address.
  static std::optional<Mac> mac_of(const Gid& gid);
  /// Error number where the port with this GID cannot be reached: EINVAL or that of its route.
  int resolve(const Gid& gid, Mac& mac) const;

  /// Numbers that queue pairs of this process have.
  void set_numbers(NicOptions& options) const;
  /// The LID by which packets reach queue pair `qp_number` of the NIC with this address, where
  /// `gid` is nullptr without a global address. Nothing where the wire has no such address, or no
  /// memory for packets to it. With the lock of the NIC.
  std::optional<std::uint16_t> route(std::uint16_t lid, const Gid* gid, std::uint32_t qp_number);
  /// Why route() has found nothing.
  std::string obstacle() const;

 private:
  void attach_udp(const DeviceSettings& settings);
  void attach_shared_memory(const DeviceSettings& settings);

  std::unique_ptr<LiveWire> wire_;
  UdpWire* udp_ = nullptr;  ///< within wire_, as the next; one of them
  SharedMemoryWire* shared_ = nullptr;
  std::uint16_t lid_ = 0;
};

}  // namespace shoal::emulator
