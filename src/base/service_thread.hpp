// SPDX-License-Identifier: Apache-2.0
// service_thread.hpp: what the library's own threads have in common.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <csignal>
#include <cstdint>
#include <string_view>
#include <thread>

namespace shoal {

/// What a thread does while it has nothing to do (SHOAL_PROGRESS_WAIT).
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

/// Binds a thread to a core. Returns 0 or an errno.
inline int bind_to_core(std::thread& thread, std::int64_t core) noexcept {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace shoal
