// SPDX-License-Identifier: Apache-2.0
// progress_time.hpp: processor time of a network transport's progress threads while it is idle.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <string_view>
#include <thread>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/process/threads_called.hpp"

namespace shoal::test {

/// Processor time that the threads of this name take in 300 ms of an idle world of two PEs.
inline std::chrono::nanoseconds idle_time_of_progress(const Settings& settings,
                                                      std::string_view name) {
  std::chrono::nanoseconds taken{};
  run_threads(2, settings, [&](World& world) {
    barrier(world.team());
    if (world.my_pe() == 0)
      taken = idle_time(name, std::chrono::milliseconds(300));
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(320));
    barrier(world.team());
  });
  return taken;
}

/// SHOAL_PROGRESS_WAIT: threads that sleep take less than those that spin.
inline void expect_progress_waits_as_told(Settings settings, std::string_view name) {
  settings.progress_wait = "sleep";
  const auto asleep = idle_time_of_progress(settings, name);
  settings.progress_wait = "spin";
  EXPECT_GT(idle_time_of_progress(settings, name), 2 * asleep)
      << "nanoseconds of two threads in 300 ms";
}

}  // namespace shoal::test
