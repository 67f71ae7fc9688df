// SPDX-License-Identifier: Apache-2.0
// The cores that the PEs of a host may use together.
#include <gtest/gtest.h>
#include <sched.h>

#include "topology/cores.hpp"

namespace shoal::test {
namespace {

using Sets = std::vector<std::vector<std::byte>>;

TEST(Cores, ThoseOfThisThreadAreItsAffinity) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  EXPECT_EQ(topology::count_cores(Sets{topology::allowed_cores()}), CPU_COUNT(&set));
}

TEST(Cores, SharedCoresCountOnce) {
  const std::vector<std::byte> first{std::byte{0x0f}}, second{std::byte{0x18}, std::byte{0x01}};
  EXPECT_EQ(topology::count_cores(Sets{first}), 4);
  EXPECT_EQ(topology::count_cores(Sets{first, second, first}), 6);
  EXPECT_EQ(topology::count_cores(Sets{first, {}}), 4);  // PEs of another host
  EXPECT_EQ(topology::count_cores(Sets{}), 1);
}

}  // namespace
}  // namespace shoal::test
