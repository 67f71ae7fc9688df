// SPDX-License-Identifier: Apache-2.0
// nic_worlds.hpp: worlds whose kernels on the fake GPU drive queues of an emulated NIC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shoal/device/types.hpp"
#include "shoal/error.hpp"

namespace shoal::test::fake_gpu {

/// A PE for code that runs its kernels.
struct NicWorld {
  device::World world;
  std::byte* memory;  ///< in its heap, the same offset on every PE
  /// Failure of the host's queues to a PE (DeviceSide::nic_failure).
  std::function<std::optional<Error>(Pe)> failure;
};

struct NicCase {
  std::int32_t pes;
  std::size_t bytes;      ///< of NicWorld::memory
  std::string ordering;   ///< of the emulated NIC
  std::string loss = "";  ///< share of packets; empty: none
  std::int64_t queue_pairs = 2;
  bool fails = false;          ///< queues may be unusable after `body`
  bool gives_up_soon = false;  ///< the NIC, on a silent peer: after some 20 ms
};

/// Opens a world of as many PEs, each a node, and calls `body` once with all of them. Afterwards
/// all that was posted is complete. Returns why there are none here; empty: `body` was called.
std::string with_nic_worlds(const NicCase& c,
                            const std::function<void(const std::vector<NicWorld>&)>& body);

}  // namespace shoal::test::fake_gpu
