// SPDX-License-Identifier: Apache-2.0
// wait_times.hpp: how long a wait polls and yields before it blocks, by the number of PEs and
// processes per core.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace shoal::detail {

struct WaitTimes {
  std::int64_t polls = 0;             ///< at first
  std::chrono::microseconds yield{};  ///< then polls between yields of the core, for this long
  /// Bounds of a block. The first is the shortest; later ones are half as long as the wait so far.
  std::chrono::nanoseconds shortest_block{}, longest_block{};
  bool crowded = false;  ///< more PEs than cores: throughput matters more than latency
  /// A yield that takes longer shows that other programs run on the core.
  std::chrono::microseconds slow_yield{};

  friend bool operator==(const WaitTimes&, const WaitTimes&) = default;
};

/// `spin`: SHOAL_SPIN. `pes` PEs of this host, which are threads of `processes` processes, share
/// `cores` cores.
///
/// A wait yields its core for 500 us before it blocks, since a yield costs less than a block and a
/// wake. Beyond some tens of PEs per core it blocks at once: each poll and each yield delays the
/// PEs that it waits for. A yield to another process costs more than one to another thread, since
/// it changes the address space, so the limit is lower for processes. Bounds of blocks grow with
/// the PEs per core, so that the time that all blocked PEs of a core spend on looking at the clock
/// and at failures stays the same.
///
/// With other programs on the cores a yield gives a whole time slice away: YieldWatch.
constexpr WaitTimes wait_times(std::int64_t spin, std::int32_t pes, std::int32_t processes,
                               std::int32_t cores) {
  using std::chrono::microseconds;
  constexpr std::int32_t kYieldingPes = 32, kYieldingProcesses = 16;  // per core
  constexpr microseconds kYield{500}, kShortestBlock{50}, kLongestBlock{1000}, kLimit{20'000};
  // A turn of all PEs of a core in a dispatch of some tokens; below a time slice of Linux.
  constexpr microseconds kTurn{50}, kSlice{1000};
  const auto per_core = [cores](std::int32_t count) {
    return std::max(1, (count + cores - 1) / std::max(1, cores));
  };
  const std::int32_t share = per_core(pes);
  const bool yields = share <= kYieldingPes && per_core(processes) <= kYieldingProcesses;
  const auto bound = [&](microseconds one) { return std::min(share * one, kLimit); };
  WaitTimes times;
  times.crowded = share > 1;
  times.polls = spin / share;
  times.yield = yields ? kYield : microseconds(0);
  times.shortest_block = bound(kShortestBlock);
  times.longest_block = bound(kLongestBlock);
  times.slow_yield = std::min(share * kTurn, kSlice);
  return times;
}

/// Decides whether the waits of a PE that shares its core may yield. After a slow yield they block
/// at once for kPause, so that on a core that other programs use few yields are slow.
///
/// Methods may be called by several threads at once.
class YieldWatch {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kPause{10};

  bool may_yield(Clock::time_point now) const noexcept {
    return now.time_since_epoch().count() >= resumes_.load(std::memory_order_relaxed);
  }
  /// After a yield from `start` to `end`.
  void yielded(const WaitTimes& times, Clock::time_point start, Clock::time_point end) noexcept {
    if (end - start > times.slow_yield)
      resumes_.store((end + kPause).time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<Clock::rep> resumes_ = 0;
};

}  // namespace shoal::detail
