// SPDX-License-Identifier: Apache-2.0
// window.hpp: how many requests each sender may have in flight to a PE, and how long messages are.
// Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::transport::ofi {

/// Messages that a PE may send to a peer in addition to requests and their replies.
inline constexpr std::size_t kSpareMessages = 4;

/// Requests that each of `peers` senders may have in flight to a PE whose endpoint takes
/// `receive_size` receive buffers. At most `depth`, at least 1.
constexpr std::size_t window_of(std::size_t receive_size, std::size_t peers, std::size_t depth,
                                std::size_t spare) {
  const std::size_t each = receive_size / std::max<std::size_t>(peers, 1);
  return std::clamp<std::size_t>(each > spare ? (each - spare) / 2 : 1, 1, depth);
}

/// Bytes of data that a message carries at most: kLongestPayload in small worlds, less where a PE
/// keeps receive buffers for more peers, at least kShortestPayload. The same on all PEs of a world
/// of `pes` PEs.
inline constexpr std::size_t kShortestPayload = 192, kLongestPayload = 4096;
constexpr std::size_t payload_of(std::size_t pes) {
  constexpr std::size_t kOfAllPeers = std::size_t{16} << 10;  // 8.5 MiB with windows of 256
  const std::size_t each = kOfAllPeers / std::max<std::size_t>(pes, 1) / 64 * 64;
  return std::clamp(each, kShortestPayload, kLongestPayload);
}

}  // namespace shoal::transport::ofi
