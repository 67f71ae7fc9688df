// SPDX-License-Identifier: Apache-2.0
// service_thread.hpp: the library's own threads, and what those that poll do while they are idle.
#pragma once

#include <pthread.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace shoal {

/// Behaviour of an idle thread (SHOAL_PROGRESS_WAIT).
enum class ProgressWait : std::uint8_t { spin, yield, sleep };

constexpr ProgressWait progress_wait_of(std::string_view setting) noexcept {
  return setting == "spin"    ? ProgressWait::spin
         : setting == "sleep" ? ProgressWait::sleep
                              : ProgressWait::yield;
}

/// Blocks signals in this thread while it lives, except those of faults. Threads that are started
/// meanwhile keep them blocked: they never run the program's signal handlers.
class SignalsBlocked {
 public:
  SignalsBlocked() noexcept {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

/// A thread of the library that polls until it is destroyed.
///
/// Between two polls without result it yields its core for Backoff::kYieldTime; then it naps, each
/// time for 1/1024 of the time since the last result, at least 5 and at most 50 us: a request that
/// comes within 5 ms is late by a shortest nap, and threads that stay idle take little of a core.
/// ProgressWait::sleep naps from the first poll on; ProgressWait::spin does neither. A thread that
/// does not spin also waits for a free core when it wakes, rather than preempt a PE.
class ServiceThread {
 public:
  struct Options {
    std::int32_t pe = 0;  ///< for messages
    std::string name{};   ///< of the thread, at most 15 characters
    ProgressWait wait = ProgressWait::yield;
    std::int64_t core = -1;           ///< to bind to; negative: any
    std::string_view core_setting{};  ///< that sets `core`
  };
  enum class Polled : std::uint8_t {
    nothing,
    something,  ///< work was due and is done
    waited,     ///< the poll itself was a wait: no further one before the next
  };
  /// `poll` does what is due. `start` runs once before.
  ServiceThread(const Options& options, std::function<Polled()> poll,
                std::function<void()> start = {});
  /// Ends the thread; takes as long as a poll and a nap.
  ~ServiceThread();
  ServiceThread(const ServiceThread&) = delete;
  ServiceThread& operator=(const ServiceThread&) = delete;

 private:
  void run(ProgressWait wait);

  const std::function<Polled()> poll_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace shoal
