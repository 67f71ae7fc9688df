// SPDX-License-Identifier: Apache-2.0
// joined.hpp: when a send and the receive behind it are one launch (dispatch.cu, combine.cu) in
// place of two, and how many blocks it has. Pure functions; ranks need not choose alike.
//
// A block of a joined launch has an SM for itself: it takes too many registers for two on an SM.
// Blocks that send wait for the weights of other ranks at most; a block that receives keeps its SM
// until the rows of other ranks have arrived. Two groups can call on two streams, and ranks can
// start their calls in different orders. A joined launch therefore takes less than half of the SMs:
// beside it and the next launch of its stream, which is set up while it runs, a few are left, on
// which the blocks of another group's send run a few at a time.
#pragma once

#include <algorithm>
#include <cstdint>

namespace shoal::ep::cuda {

/// Room for the blocks that send weights before any of them waits for weights (combine_send.cuh:
/// eight at most, two on an SM).
inline constexpr std::int32_t kSmsLeft = 4;

constexpr std::int32_t most_joined_blocks(std::int32_t multiprocessors) {
  return (multiprocessors - kSmsLeft) / 2;
}

/// A block sends for each token, and one more; about as many receive.
constexpr bool joins_dispatch(std::int64_t tokens, std::int32_t multiprocessors) {
  return 2 * std::max<std::int64_t>(tokens, 2) <= most_joined_blocks(multiprocessors);
}

/// A block receives for each token, and one more; about one sends for each two pairs of token and
/// rank.
constexpr bool joins_combine(std::int32_t ranks, std::int64_t tokens,
                             std::int32_t multiprocessors) {
  const std::int64_t pairs = ranks * std::max<std::int64_t>(tokens, 1);
  return tokens + std::max<std::int64_t>((pairs + 1) / 2, 2) <= most_joined_blocks(multiprocessors);
}

}  // namespace shoal::ep::cuda
