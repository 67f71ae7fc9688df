// SPDX-License-Identifier: Apache-2.0
// wait_point.hpp: where the threads of a PE block until another PE writes a word of its memory.
//
// A waiter announces the word, reads it once more, then blocks in the kernel (futex). A writer
// writes first and then looks for an announcement; only a match costs it a system call. No fence
// stands between the write and the look, so a writer may read the old announcement while its write
// is still in its store buffer. That buffer drains within some hundred nanoseconds, in which the
// waiter still polls; a wake that is missed all the same costs the bound of the block, never the
// wait. docs/internals/waiting.md has the full argument.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

namespace shoal {

/// One per PE, in memory that all PEs of its host map; zeros are a valid initial state. Any thread
/// and process may call the methods of writers; waiters use WaitPoint::Waiter.
class WaitPoint {
 public:
  /// Names a word by its offset from the start of the PE's memory, a multiple of 4 from 4 on.
  /// kAnyWord is the other name.
  static constexpr std::uint64_t kAnyWord = 1;  ///< whatever is written next

  WaitPoint() = default;
  WaitPoint(const WaitPoint&) = delete;
  WaitPoint& operator=(const WaitPoint&) = delete;

  /// After a write of `bytes` bytes at `offset`: wakes the threads that wait for a word among them.
  void notify(std::uint64_t offset, std::size_t bytes) noexcept {
    std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the write above
    if (const auto awaited = awaited_.load(std::memory_order_relaxed); awaited != 0) [[unlikely]]
      wake(awaited, offset, bytes);
  }
  /// Wakes all waiting threads.
  void notify_all() noexcept;

  /// The announced word; 0: no thread is about to block.
  std::uint64_t awaited() const noexcept { return awaited_.load(std::memory_order_acquire); }
  /// Calls that woke waiters so far.
  std::uint64_t wakes() const noexcept { return wakes_.load(std::memory_order_relaxed); }
  /// Blocks of waiters so far, and those of them that ended by their bound.
  std::uint64_t blocks() const noexcept { return blocks_.load(std::memory_order_relaxed); }
  std::uint64_t expired() const noexcept { return expired_.load(std::memory_order_relaxed); }

  class Waiter;

 private:
  /// Announced by several threads that wait for different words.
  static constexpr std::uint64_t kSeveral = 2;

  void wake(std::uint64_t awaited, std::uint64_t offset, std::size_t bytes) noexcept;
  void wake_sleepers() noexcept;

  std::atomic<std::uint64_t> awaited_{0};   ///< a waker clears it: one wake per announcement
  std::atomic<std::uint32_t> sequence_{0};  ///< the futex: counts wakes
  std::atomic<std::uint64_t> wakes_{0}, blocks_{0}, expired_{0};
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && sizeof(WaitPoint) <= 64);

/// The wait of one thread.
///
///     WaitPoint::Waiter waiter(point);
///     while (!ready()) {
///       waiter.announce(word);
///       if (ready()) break;
///       waiter.block(std::chrono::milliseconds(1));
///     }
class WaitPoint::Waiter {
 public:
  explicit Waiter(WaitPoint& point) noexcept : point_(point) {}
  ~Waiter() { withdraw(); }
  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

  /// Announces that this thread will block until `word` is written. Writes from here on end the
  /// next block.
  void announce(std::uint64_t word) noexcept;
  /// Blocks until woken, but no longer than `bound`. May return early. Returns whether it was
  /// woken.
  bool block(std::chrono::nanoseconds bound) noexcept;

 private:
  void withdraw() noexcept;

  WaitPoint& point_;
  std::uint64_t announced_ = 0;  ///< what this thread stored in awaited_; 0: nothing
  std::uint32_t sequence_ = 0;   ///< before the announcement
};

}  // namespace shoal
