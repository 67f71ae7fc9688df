// SPDX-License-Identifier: Apache-2.0
// wait_order.hpp: which of several awaited words a PE blocks on.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::detail {

/// Spreads `value` over all bits (the finalizer of SplitMix64).
constexpr std::uint64_t mixed(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

/// An index from `next` to `end` - 1 for which `arrived` is false, drawn by `seed` with equal
/// probabilities; `next` where there is none. `next` itself counts as missing.
template <typename Arrived>
std::size_t pick_missing(std::size_t next, std::size_t end, std::uint64_t seed, Arrived&& arrived) {
  std::size_t missing = 1, picked = next;
  for (std::size_t index = next + 1; index < end; ++index)
    if (!arrived(index) && mixed(seed + index) % ++missing == 0) picked = index;
  return picked;
}

/// The word to block on of those that a PE needs and that are missing.
///
/// Drawn at random, a PE blocks about ln n times for n words, whatever the order in which the
/// writers run. Taken in the order of the writers, it may block n times, since each writer that
/// runs wakes all PEs for one word. PEs run in a similar order each time, so the word that came
/// last the time before is taken first.
class WaitOrder {
 public:
  /// Like pick_missing.
  template <typename Arrived>
  std::size_t pick(std::size_t next, std::size_t end, std::uint64_t seed, Arrived&& arrived) {
    const bool again = last_ > next && last_ < end && !arrived(last_);
    if (!again) last_ = pick_missing(next, end, seed, arrived);
    return last_;
  }

 private:
  std::size_t last_ = 0;
};

}  // namespace shoal::detail
