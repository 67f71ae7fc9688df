// SPDX-License-Identifier: Apache-2.0
// pieces.hpp: how a transfer is cut and spread over rails, and how large windows are. Pure
// functions.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::transport::ofi {

/// Messages that a PE may send to a peer besides requests and their replies.
inline constexpr std::size_t kSpareMessages = 4;

/// Shorter transfers stay on the home rail of the pair, so that a signal after them need not wait.
inline constexpr std::size_t kSpreadBytes = 2048;
/// Shortest piece that spreading over rails creates.
inline constexpr std::size_t kSmallestShare = std::size_t{64} << 10;

/// Length of the pieces of a transfer of `bytes` bytes: at most `limit`, and short enough for every
/// rail to get one, but not shorter than kSmallestShare for that.
constexpr std::size_t piece_bytes(std::size_t bytes, std::size_t rails, std::size_t limit) {
  const std::size_t share = (bytes + rails - 1) / rails;
  const std::size_t aligned = (share + 63) / 64 * 64;
  return std::min(limit, std::min(bytes, std::max(aligned, kSmallestShare)));
}

/// The rail that both PEs of a pair use for messages and for short transfers.
constexpr std::size_t home_rail(std::size_t a, std::size_t b, std::size_t rails) {
  return (a + b) % rails;
}

/// Requests that each of `peers` senders may have in flight to a PE whose endpoint takes
/// `receive_size` receive buffers. At most `depth`, at least 1.
constexpr std::size_t window_of(std::size_t receive_size, std::size_t peers, std::size_t depth,
                                std::size_t spare) {
  const std::size_t each = receive_size / std::max<std::size_t>(peers, 1);
  return std::clamp<std::size_t>(each > spare ? (each - spare) / 2 : 1, 1, depth);
}

}  // namespace shoal::transport::ofi
