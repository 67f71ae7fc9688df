// SPDX-License-Identifier: Apache-2.0
#include "base/wait_point.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

namespace shoal {
namespace {

/// Not FUTEX_PRIVATE: the word lies in memory that several processes map.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value,
           const timespec* limit) noexcept {
  static_assert(sizeof word == sizeof(std::uint32_t));
  return syscall(SYS_futex, &word, operation, value, limit, nullptr, 0);
}

}  // namespace

void WaitPoint::wake_sleepers() noexcept {
  sequence_.fetch_add(1, std::memory_order_release);
  wakes_.fetch_add(1, std::memory_order_relaxed);
  futex(sequence_, FUTEX_WAKE, INT_MAX, nullptr);
}

void WaitPoint::wake(std::uint64_t awaited, std::uint64_t offset, std::size_t bytes) noexcept {
  constexpr std::uint64_t kWord = sizeof(std::uint64_t);
  do {
    if (awaited == 0) return;
    const bool apart = offset >= awaited + kWord || awaited >= offset + bytes;
    if (awaited > kSeveral && apart) return;
  } while (!awaited_.compare_exchange_weak(awaited, 0, std::memory_order_acq_rel,
                                           std::memory_order_relaxed));
  wake_sleepers();
}

void WaitPoint::notify_all() noexcept {
  if (awaited_.exchange(0, std::memory_order_seq_cst) != 0) wake_sleepers();
}

void WaitPoint::Waiter::announce(std::uint64_t word) noexcept {
  // In this order: a wake after the announcement changes the futex that block() compares.
  const std::uint32_t sequence = point_.sequence_.load(std::memory_order_acquire);
  if (announced_ != word || sequence != sequence_ ||
      point_.awaited_.load(std::memory_order_relaxed) != word) {
    withdraw();
    std::uint64_t seen = 0;
    announced_ = word;
    while (!point_.awaited_.compare_exchange_weak(seen, announced_, std::memory_order_seq_cst))
      announced_ = seen == 0 ? word : kSeveral;
  }
  sequence_ = sequence;
}

bool WaitPoint::Waiter::block(std::chrono::nanoseconds bound) noexcept {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(bound);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (bound - seconds).count()};
  point_.blocks_.fetch_add(1, std::memory_order_relaxed);
  futex(point_.sequence_, FUTEX_WAIT, sequence_, &limit);
  if (point_.sequence_.load(std::memory_order_acquire) != sequence_) return true;
  point_.expired_.fetch_add(1, std::memory_order_relaxed);
  return false;
}

void WaitPoint::Waiter::withdraw() noexcept {
  // After a wake the announcement is gone, and that of several threads is theirs together: the next
  // writer clears it.
  if (announced_ != 0 && announced_ != kSeveral &&
      point_.sequence_.load(std::memory_order_relaxed) == sequence_)
    point_.awaited_.compare_exchange_strong(announced_, 0, std::memory_order_relaxed);
  announced_ = 0;
}

}  // namespace shoal
