// SPDX-License-Identifier: Apache-2.0
#include "support/world/one_core.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include "support/world/world_errors.hpp"

namespace shoal::test {

void use_one_core() {
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof all, &all), 0);
  CPU_ZERO(&one);
  int core = 0;
  while (!CPU_ISSET(core, &all)) ++core;
  CPU_SET(core, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
}

std::vector<std::string> run_on_one_core(Pe n, const std::function<void(World&)>& body,
                                         const Settings& settings) {
  return errors_of(n, settings, [&](Pe, auto bootstrap) {
    use_one_core();
    World world = World::open({settings, bootstrap});
    body(world);
    world.close();
  });
}

}  // namespace shoal::test
