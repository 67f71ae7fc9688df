// SPDX-License-Identifier: Apache-2.0
// progress_time.hpp: whether the progress threads of a network transport sleep while it is idle.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/process/threads_called.hpp"

namespace shoal::test {

/// Number of times that threads of this name go to sleep per millisecond of their processor time,
/// in an idle world of two PEs. Other work on the machine changes neither.
inline double sleeps_per_millisecond(const Settings& settings, std::string_view name) {
  constexpr std::uint64_t kSleeps = 20;
  constexpr std::chrono::milliseconds kRunning{100}, kAtMost{60'000};
  double rate = 0;
  run_threads(2, settings, [&](World& world) {
    barrier(world.team());
    if (world.my_pe() == 0) {
      const ThreadTimes before = times_of_threads(name);
      const auto end = std::chrono::steady_clock::now() + kAtMost;
      ThreadTimes passed;
      do {
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        passed = times_of_threads(name) - before;
      } while (passed.sleeps < kSleeps && passed.running < kRunning &&
               std::chrono::steady_clock::now() < end);
      rate = static_cast<double>(passed.sleeps) /
             std::chrono::duration<double, std::milli>(passed.running).count();
    }
    world.bootstrap().barrier("the end of an idle world");  // its PE 1 does not poll
  });
  return rate;
}

/// SHOAL_PROGRESS_WAIT: threads that sleep do so after each look, those that spin hardly ever.
inline void expect_progress_waits_as_told(Settings settings, std::string_view name) {
  settings.progress_wait = "spin";
  const double spinning = sleeps_per_millisecond(settings, name);
  settings.progress_wait = "sleep";
  EXPECT_GT(sleeps_per_millisecond(settings, name), 4 * spinning);
}

}  // namespace shoal::test
