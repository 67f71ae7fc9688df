// SPDX-License-Identifier: Apache-2.0
// waits.hpp: how a PE waits for words that other PEs write.
#pragma once

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/backoff.hpp"
#include "base/deadline.hpp"
#include "base/wait_point.hpp"
#include "pe/wait_times.hpp"
#include "shoal/heap.hpp"
#include "shoal/settings.hpp"

namespace shoal::detail {

class Health;
class Memory;
class ProgressBoard;
class Routes;
struct Placement;

using Clock = std::chrono::steady_clock;

enum class WaitOutcome {
  ready,
  timeout,
  peer_failed,
  interrupted,  ///< shoal/interrupt.hpp
};

class Waits {
 public:
  /// `open`: whether the world is open.
  Waits(const std::atomic<bool>& open, const Settings& settings, const Placement& placement,
        const Memory& memory, Routes& routes, Health& health, const ProgressBoard& progress)
      : open_(open),
        settings_(settings),
        placement_(placement),
        memory_(memory),
        routes_(routes),
        health_(health),
        progress_(progress) {}

  /// The properties of a world that startup finds out.
  struct Surroundings {
    WaitTimes times;
    std::vector<WaitPoint*> wait_points;  ///< by PE; nullptr: out of reach
    bool networked = false;               ///< a wait has to progress networks
    int polls_per_yield = 1;              ///< of waits that back off
  };
  /// Called once, while the world opens.
  void configure(Surroundings surroundings) { around_ = std::move(surroundings); }

  /// Waits until `ready` returns true: polls it, then yields the core between polls, then blocks
  /// until another PE writes the word at offset `word()` of this PE's segment (wait_times.hpp). In
  /// worlds that use a network, and for kElsewhere, it polls with a backoff instead of blocking. It
  /// also checks the deadline, the health of the other PEs and for interrupts, at intervals of one
  /// millisecond per PE that shares the core, at most 20.
  ///
  /// `ready` may read other memory too: it is polled again at those intervals.
  ///
  /// `awaited` is the PE that this one waits for, where there is a single one: a PE that left
  /// without closing the world fails only waits for itself and waits for any PE.
  static constexpr Pe kAnyPe = -1;
  /// Results of `word`: whatever is written next to this PE's segment; nothing in it.
  static constexpr std::uint64_t kAnyWord = WaitPoint::kAnyWord, kElsewhere = 0;
  template <typename Ready, typename Word>
  WaitOutcome poll(Ready&& ready, Clock::time_point deadline, Pe awaited, Word&& word) {
    return spin(ready, awaited) ? WaitOutcome::ready : outlast(ready, deadline, awaited, word);
  }
  template <typename Ready>
  WaitOutcome poll(Ready&& ready, Clock::time_point deadline, Pe awaited = kAnyPe) {
    return poll(ready, deadline, awaited, [] { return kAnyWord; });
  }
  /// Like poll, where `ready` reads memory that is not this PE's segment.
  template <typename Ready>
  WaitOutcome poll_elsewhere(Ready&& ready, Clock::time_point deadline, Pe awaited = kAnyPe) {
    return poll(ready, deadline, awaited, [] { return kElsewhere; });
  }

  // The two halves of poll.

  /// The polls of memory with which a wait begins; a single one for what a network brings, since
  /// they do not make progress.
  template <typename Ready>
  bool spin(Ready& ready, Pe awaited) {
    const bool remote = around_.networked && awaited >= 0 && point_of(awaited) == nullptr;
    const std::int64_t polls = remote ? 0 : around_.times.polls;
    for (std::int64_t i = 0; i <= polls; ++i) {
      if (ready()) return true;
      pause();
    }
    return false;
  }
  /// The rest of a wait.
  template <typename Ready, typename Word>
  WaitOutcome outlast(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word) {
    if (around_.networked || word() == kElsewhere) return back_off(ready, deadline, awaited);
    return block(ready, deadline, awaited, word);
  }

  /// After this PE has written `bytes` bytes at `offset` of the segment of `pe` by a store: wakes
  /// the threads that wait for them. The transports' operations do so themselves.
  void notify(Pe pe, std::size_t offset, std::size_t bytes) noexcept {
    if (WaitPoint* const point = point_of(pe)) [[likely]]
      point->notify(offset, bytes);
  }
  /// Wakes all waiting threads of `pe`, after a write that ends waits for other words.
  void wake(Pe pe) noexcept;
  /// True if PEs share cores: a PE that waits for several words then blocks until the last one.
  bool crowded() const noexcept { return around_.times.crowded; }
  /// True if waits yield before they block. False for a while after a yield has shown that other
  /// programs use the core.
  bool yields() const noexcept {
    return around_.times.yield.count() > 0 && yield_watch_.may_yield(Clock::now());
  }
  /// Point at which this PE's threads block.
  WaitPoint& wait_point() const noexcept;
  /// The deadline of a wait that starts now: SHOAL_TIMEOUT_MS from now.
  Clock::time_point deadline() const { return Clock::now() + settings_.timeout; }
  /// Throws the Error for an outcome other than ready: Error{peer_failed} with the failure that
  /// ended a wait for `awaited`, Error{system} after an interrupt, or Error{timeout} with
  /// "<what> timed out after N ms on PE a of n: <detail>; Setting: SHOAL_TIMEOUT_MS."
  [[noreturn]] void throw_failed(WaitOutcome outcome, const std::string& what,
                                 const std::string& detail, Pe awaited = kAnyPe) const;

  /// Index at which the next wait for any of several variables starts (rma/wait.cpp).
  std::size_t rotation = 0;

 private:
  static void pause() noexcept;
  WaitPoint* point_of(Pe pe) const noexcept {
    return around_.wait_points[static_cast<std::size_t>(pe)];
  }
  struct LongWait {
    Clock::time_point start;
    bool reported = false;
  };
  template <typename Ready>
  WaitOutcome back_off(Ready& ready, Clock::time_point deadline, Pe awaited);
  template <typename Ready, typename Word>
  WaitOutcome block(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word);
  /// `late`: the deadline has passed. Warns where the wait has become long (SHOAL_WARN_AFTER_MS).
  WaitOutcome check_health(bool late, Pe awaited, LongWait& wait, Clock::time_point now) noexcept;
  void warn_of(Pe awaited, Clock::duration waited) const noexcept;
  bool progress_networks() noexcept;

  const std::atomic<bool>& open_;
  const Settings& settings_;
  const Placement& placement_;
  const Memory& memory_;
  Routes& routes_;
  Health& health_;
  const ProgressBoard& progress_;
  Surroundings around_;
  YieldWatch yield_watch_;
};

template <typename Ready>
WaitOutcome Waits::back_off(Ready& ready, Clock::time_point deadline, Pe awaited) {
  Deadline end(deadline);
  Backoff backoff;
  LongWait wait{Clock::now()};
  Clock::time_point next_check = wait.start + std::chrono::milliseconds(1);
  for (int polls = 0;;) {
    if (around_.networked && progress_networks()) backoff.reset();
    if (ready()) return WaitOutcome::ready;
    if (++polls % around_.polls_per_yield == 0 || backoff.sleeps()) backoff();
    if (polls % 16 != 0) continue;
    const Clock::time_point now = Clock::now();
    if (now < next_check) continue;
    // A PE may finish its part and end before this one looks again: its part counts.
    if (auto outcome = check_health(end.passed(now), awaited, wait, now);
        outcome != WaitOutcome::ready)
      return ready() ? WaitOutcome::ready : outcome;
    next_check = now + std::chrono::milliseconds(1);
  }
}

template <typename Ready, typename Word>
WaitOutcome Waits::block(Ready& ready, Clock::time_point deadline, Pe awaited, Word& word) {
  // Polls after the announcement. They take longer than a writer's store needs to become visible,
  // which therefore is seen here or sees the announcement (wait_point.hpp).
  constexpr int kPollsAfterAnnouncement = 16;
  const Clock::time_point start = Clock::now();
  Deadline end(deadline, start);
  WaitPoint::Waiter waiter(wait_point());
  LongWait wait{start};
  Clock::time_point now = start, next_check = start + around_.times.longest_block;
  for (;;) {
    if (now - start < around_.times.yield && (!crowded() || yield_watch_.may_yield(now))) {
      sched_yield();
      if (crowded()) yield_watch_.yielded(around_.times, now, Clock::now());
      if (ready()) return WaitOutcome::ready;
    } else {
      waiter.announce(word());
      for (int i = 0; i < kPollsAfterAnnouncement; ++i) {
        if (ready()) return WaitOutcome::ready;
        pause();
      }
      const Clock::duration shortest = around_.times.shortest_block;
      const Clock::duration bound =
          std::clamp<Clock::duration>((now - start) / 2, shortest, around_.times.longest_block);
      waiter.block(std::clamp(deadline - now, shortest, bound));
      if (ready()) return WaitOutcome::ready;
    }
    now = Clock::now();
    if (now < next_check && now < deadline) continue;
    // Checks and reports like back_off.
    if (auto outcome = check_health(end.passed(now), awaited, wait, now);
        outcome != WaitOutcome::ready)
      return ready() ? WaitOutcome::ready : outcome;
    next_check = now + around_.times.longest_block;
  }
}

}  // namespace shoal::detail
