// SPDX-License-Identifier: Apache-2.0
// wait_times.hpp: how long a wait polls and yields before it blocks, by the number of PEs per core.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace shoal::detail {

struct WaitTimes {
  std::int64_t polls = 0;             ///< at first
  std::chrono::microseconds yield{};  ///< then polls between yields of the core, for this long
  /// Bounds of a block. The first is the shortest; later ones are half as long as the wait so far.
  std::chrono::nanoseconds shortest_block{}, longest_block{};
  bool crowded = false;  ///< more PEs than cores: throughput matters more than latency

  friend bool operator==(const WaitTimes&, const WaitTimes&) = default;
};

/// `spin`: SHOAL_SPIN. `pes` PEs of this host share `cores` cores.
///
/// A wait yields its core for 500 us before it blocks, since a yield costs less than a block and a
/// wake. Beyond some tens of PEs per core it blocks at once: each poll and each yield delays the
/// PEs that it waits for. Bounds of blocks grow with the PEs per core, so that the time that all
/// blocked PEs of a core spend on looking at the clock and at failures stays the same.
constexpr WaitTimes wait_times(std::int64_t spin, std::int32_t pes, std::int32_t cores) {
  using std::chrono::microseconds;
  constexpr std::int32_t kYieldingShare = 32;
  constexpr microseconds kYield{500}, kShortestBlock{50}, kLongestBlock{1000}, kLimit{20'000};
  const std::int32_t share = std::max(1, (pes + cores - 1) / std::max(1, cores));
  const auto bound = [&](microseconds one) { return std::min(share * one, kLimit); };
  WaitTimes times;
  times.crowded = share > 1;
  times.polls = spin / share;
  times.yield = share > kYieldingShare ? microseconds(0) : kYield;
  times.shortest_block = bound(kShortestBlock);
  times.longest_block = bound(kLongestBlock);
  return times;
}

}  // namespace shoal::detail
