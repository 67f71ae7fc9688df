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

/// How often threads of this name are found asleep when they are looked at 100 times in an idle
/// world of two PEs. On a loaded machine a thread that does not sleep waits for a core, which is
/// another state.
inline int found_asleep(const Settings& settings, std::string_view name) {
  constexpr int kLooks = 100;
  constexpr std::chrono::milliseconds kBetween{3};
  int found = 0;
  run_threads(2, settings, [&](World& world) {
    barrier(world.team());
    if (world.my_pe() == 0)
      for (int look = 0; look < kLooks; ++look) {
        std::this_thread::sleep_for(kBetween);
        found += threads_asleep(name);
      }
    world.bootstrap().barrier("the end of an idle world");  // its PE 1 does not poll
  });
  return found;
}

/// SHOAL_PROGRESS_WAIT: threads that sleep are found asleep, those that spin hardly ever.
inline void expect_progress_waits_as_told(Settings settings, std::string_view name) {
  settings.progress_wait = "spin";
  const int spinning = found_asleep(settings, name);
  settings.progress_wait = "sleep";
  EXPECT_GT(found_asleep(settings, name), 2 * spinning) << "of two threads, at 100 times";
}

}  // namespace shoal::test
