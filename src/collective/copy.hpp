// SPDX-License-Identifier: Apache-2.0
// copy.hpp: copies of long blocks between heaps.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal::collective {

/// Finds the faster of two ways to copy from the times of the first copies. Any thread may call.
///
///     const CopyWay::Turn turn = way.next();
///     copy(turn.way);
///     if (turn.timed) way.record(turn.way, bytes, time);
class CopyWay {
 public:
  enum Way : std::uint8_t { pieces, whole };
  struct Turn {
    Way way;
    bool timed;
  };
  /// Copies that are timed, half of them each way. The order has no period (Thue-Morse): the blocks
  /// of a collective come from the same PEs each time.
  static constexpr std::uint32_t kTrials = 32;

  Turn next() noexcept {
    if (started_.load(std::memory_order_relaxed) < kTrials) {
      const std::uint32_t turn = started_.fetch_add(1, std::memory_order_relaxed);
      return {std::popcount(turn) % 2 == 0 ? pieces : whole, true};
    }
    return {best(whole) < best(pieces) ? whole : pieces, false};
  }
  /// Keeps the shortest time per byte, which other programs on the core prolong least.
  void record(Way way, std::size_t bytes, std::chrono::nanoseconds time) noexcept {
    const double each = static_cast<double>(time.count()) / static_cast<double>(bytes);
    double seen = best(way);
    while (each < seen &&
           !best_[way].compare_exchange_weak(seen, each, std::memory_order_relaxed)) {
    }
  }

 private:
  double best(Way way) const noexcept { return best_[way].load(std::memory_order_relaxed); }

  static constexpr double kNone = 1e30;
  std::atomic<std::uint32_t> started_{0};
  std::array<std::atomic<double>, 2> best_{kNone, kNone};  ///< ns per byte
};

/// memcpy, whole or in pieces of 2 KiB, as the first copies of about this length were faster. The C
/// library copies more than about 2 KiB by one string instruction (`rep movsb`). For lines that
/// another core has written it takes up to twice the time of vector loads and stores on some
/// processors, and a tenth less on others. Shorter copies take those.
void copy_block(void* target, const void* source, std::size_t bytes) noexcept;

}  // namespace shoal::collective
