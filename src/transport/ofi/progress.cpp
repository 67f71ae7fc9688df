// SPDX-License-Identifier: Apache-2.0
#include "transport/ofi/progress.hpp"

#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "base/backoff.hpp"
#include "base/check.hpp"
#include "base/log.hpp"

namespace shoal::transport::ofi {
namespace {

constexpr int kSpinsBeforeSleep = 64;
constexpr std::chrono::nanoseconds kLongestSleep{50'000};
constexpr std::chrono::nanoseconds kShortNap{20'000}, kLongNap{160'000};  // while others poll

}  // namespace

Progress::Progress(Engine& engine, const Settings& settings, std::int64_t core, Pe pe)
    : engine_(engine),
      policy_(settings.progress_wait == "spin"    ? Policy::spin
              : settings.progress_wait == "sleep" ? Policy::sleep
                                                  : Policy::yield),
      thread_([this] { run(); }) {
  pthread_setname_np(thread_.native_handle(), "shoal-ofi");
  if (core >= 0) bind(core, pe);
}

Progress::~Progress() {
  stop_.store(true, std::memory_order_release);
  thread_.join();
}

void Progress::bind(std::int64_t core, Pe pe) {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (core < CPU_SETSIZE) CPU_SET(static_cast<std::size_t>(core), &set);
  const int error = pthread_setaffinity_np(thread_.native_handle(), sizeof set, &set);
  if (error != 0)
    log::warn(
        "PE {}: the progress thread of transport ofi cannot be bound to core {}: {}. Setting: "
        "SHOAL_PROGRESS_CORE",
        pe, core, std::strerror(error));
}

/// A thread that naps must not push a PE from its core each time it wakes: SCHED_BATCH waits until
/// the core is free.
void be_modest() {
  const sched_param none{};
  pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
}

void Progress::run() {
  if (policy_ != Policy::spin) be_modest();
  prctl(PR_SET_TIMERSLACK, 1'000UL);  // else a sleep of 50 us takes 100
  std::chrono::nanoseconds nap = kShortNap;
  std::uint32_t driven = engine_.driven();
  Backoff backoff;
  for (int idle = 0; !stop_.load(std::memory_order_acquire);) {
    bool progress = false;
    // A PE that waits polls, and so does a thread that has or wants the lock: the core is of more
    // use to them.
    if (const std::uint32_t now = engine_.driven();
        policy_ != Policy::spin && (now != driven || engine_.lock().busy())) {
      driven = now;
      std::this_thread::sleep_for(nap);
      nap = std::min(2 * nap, kLongNap);
      continue;
    }
    nap = kShortNap;
    if (engine_.lock().busy()) {  // the lock is not fair: who wants it goes first
      pause_core();
      continue;
    }
    if (engine_.lock().try_lock()) {
      const std::lock_guard guard(engine_.lock(), std::adopt_lock);
      progress = engine_.poll();
    }
    idle = progress ? 0 : idle + 1;
    if (progress) {
      backoff.reset();
      continue;
    }
    if (policy_ == Policy::spin) {
      pause_core();
    } else if (policy_ == Policy::yield || idle < kSpinsBeforeSleep) {
      backoff();
    } else {
      std::this_thread::sleep_for(
          std::min(kLongestSleep, std::chrono::nanoseconds(1000) * (idle - kSpinsBeforeSleep)));
    }
  }
}

}  // namespace shoal::transport::ofi
