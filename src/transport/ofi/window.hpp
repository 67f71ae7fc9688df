// SPDX-License-Identifier: Apache-2.0
// window.hpp: how many requests each sender may have in flight to a PE. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::transport::ofi {

/// Messages that a PE may send to a peer besides requests and their replies.
inline constexpr std::size_t kSpareMessages = 4;

/// Requests that each of `peers` senders may have in flight to a PE whose endpoint takes
/// `receive_size` receive buffers. At most `depth`, at least 1.
constexpr std::size_t window_of(std::size_t receive_size, std::size_t peers, std::size_t depth,
                                std::size_t spare) {
  const std::size_t each = receive_size / std::max<std::size_t>(peers, 1);
  return std::clamp<std::size_t>(each > spare ? (each - spare) / 2 : 1, 1, depth);
}

}  // namespace shoal::transport::ofi
