// SPDX-License-Identifier: Apache-2.0
// kernel_queue_pairs.hpp: how many queue pairs kernels have for each peer.
#pragma once

#include <algorithm>
#include <cstdint>

#include "shoal/settings.hpp"

namespace shoal::transport {

/// SHOAL_GDA_QUEUE_PAIRS, or by default 4, at most `room`, which is what the NIC has for each peer.
/// With fewer, normal mode between nodes waits for signals behind chunks
/// (docs/notebook/2026-11-28-nic-dispatchers.md).
inline std::int64_t queue_pairs_for_kernels(const Settings& settings, std::int64_t room) {
  constexpr std::int64_t kDefault = 4;
  if (settings.gda_queue_pairs != 0) return settings.gda_queue_pairs;
  return std::clamp<std::int64_t>(room, 1, kDefault);
}

}  // namespace shoal::transport
