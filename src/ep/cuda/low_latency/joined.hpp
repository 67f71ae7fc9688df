// SPDX-License-Identifier: Apache-2.0
// joined.hpp: when a send and the receive behind it are one launch (dispatch.cu, combine.cu) in
// place of two. Ranks need not choose alike.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shoal::ep::cuda {

/// A block sends for each token, and one more; at most half of the SMs do, or the receive of the
/// others does not make up for theirs.
constexpr bool joins_dispatch(std::int64_t tokens, std::int32_t multiprocessors) {
  return 2 * (tokens + 1) <= multiprocessors;
}

/// A block for each pair of token and rank and for each token, and two more: no block both sends
/// and receives.
constexpr bool joins_combine(std::int32_t ranks, std::int64_t tokens,
                             std::int32_t multiprocessors) {
  return (ranks + 1) * std::max<std::int64_t>(tokens, 1) + 2 <= multiprocessors;
}

/// Counts the groups of this process that have low-latency calls on a GPU.
///
/// The kernel of a joined call takes so much of each SM that no other one fits alongside. Where two
/// groups call on streams of their own, and two ranks start in different orders, each would wait
/// for the other; the send of two launches fits alongside a receive.
class LowLatencyGroups {
 public:
  explicit LowLatencyGroups(int device)
      : count_(counts()[static_cast<std::size_t>(device) % kDevices]) {
    ++count_;
  }
  ~LowLatencyGroups() { --count_; }
  LowLatencyGroups(const LowLatencyGroups&) = delete;
  LowLatencyGroups& operator=(const LowLatencyGroups&) = delete;

  bool only_one() const { return count_ == 1; }

 private:
  /// GPUs that share a counter join less often.
  static constexpr std::size_t kDevices = 64;
  static std::array<std::atomic<int>, kDevices>& counts() {
    static std::array<std::atomic<int>, kDevices> counts{};
    return counts;
  }
  std::atomic<int>& count_;
};

}  // namespace shoal::ep::cuda
