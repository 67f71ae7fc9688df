// SPDX-License-Identifier: Apache-2.0
// pieces.hpp: how a transfer is cut and spread over rails. Pure functions.
#pragma once

#include <algorithm>
#include <cstddef>

namespace shoal::transport::message {

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

}  // namespace shoal::transport::message
