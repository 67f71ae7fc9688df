// SPDX-License-Identifier: Apache-2.0
// pieces.hpp: how a transfer is cut and spread over rails. Pure.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::transport::ofi {

/// Shorter transfers are not spread: they stay on the pair's home rail, so that a signal after them
/// needs no wait.
inline constexpr std::size_t kSpreadBytes = 2048;
inline constexpr std::size_t kSmallestShare = std::size_t{64} << 10;

/// The size of the pieces of a transfer of `bytes`: at most `limit`, and small enough for every
/// rail to get one, unless that would make them shorter than kSmallestShare.
constexpr std::size_t piece_bytes(std::size_t bytes, std::size_t rails, std::size_t limit) {
  const std::size_t share = (bytes + rails - 1) / rails;
  const std::size_t aligned = (share + 63) / 64 * 64;
  return std::min(limit, std::min(bytes, std::max(aligned, kSmallestShare)));
}

/// The rail that both PEs of a pair use for messages and for short transfers.
constexpr std::size_t home_rail(std::size_t a, std::size_t b, std::size_t rails) {
  return (a + b) % rails;
}

/// The requests that each of `peers` senders may have on the way to a PE whose endpoint takes
/// `receive_size` buffers.
constexpr std::size_t window_of(std::size_t receive_size, std::size_t peers, std::size_t depth,
                                std::size_t spare) {
  const std::size_t each = receive_size / std::max<std::size_t>(peers, 1);
  return std::clamp<std::size_t>(each > spare ? (each - spare) / 2 : 1, 1, depth);
}

}  // namespace shoal::transport::ofi
