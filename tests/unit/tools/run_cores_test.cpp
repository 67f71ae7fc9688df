// SPDX-License-Identifier: Apache-2.0
// shoal-run --bind core: which cores each PE gets.
#include <gtest/gtest.h>
#include <sched.h>

#include <set>

#include "run/cores.hpp"
#include "support/expect_error.hpp"

namespace shoal::run {
namespace {

using Shares = std::vector<std::vector<int>>;

/// `cores` per package with two processors each, numbered as on most machines: first all first
/// processors, then all second ones.
std::vector<Processor> machine(int packages, int cores) {
  std::vector<Processor> found;
  for (int thread = 0; thread < 2; ++thread)
    for (int package = 0; package < packages; ++package)
      for (int core = 0; core < cores; ++core)
        found.push_back({package, core, static_cast<int>(found.size())});
  return found;
}

TEST(ShareCores, KeepsTheProcessorsOfACoreTogether) {
  EXPECT_EQ(share_cores(machine(1, 2), 2), (Shares{{0, 2}, {1, 3}}));
}

TEST(ShareCores, PesStayInAPackage) {
  EXPECT_EQ(share_cores(machine(2, 2), 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
}

TEST(ShareCores, UsesEveryCoreOnce) {
  for (int n_pes = 1; n_pes <= 10; ++n_pes) {
    std::set<int> seen;
    std::size_t smallest = 100, largest = 0;
    for (const auto& share : share_cores(machine(2, 5), n_pes)) {
      for (const int processor : share) EXPECT_TRUE(seen.insert(processor).second) << processor;
      smallest = std::min(smallest, share.size());
      largest = std::max(largest, share.size());
    }
    EXPECT_EQ(seen.size(), 20u) << n_pes;
    EXPECT_LE(largest - smallest, 2u) << n_pes << ": at most one core more than others";
  }
}

TEST(ShareCores, RefusesMorePesThanCores) {
  test::expect_error(Code::invalid_argument, "--bind core: 5 PEs, but shoal-run may use 4 cores",
                     [] { share_cores(machine(2, 2), 5); });
}

// A program under taskset or in a container has some of the machine's processors.
TEST(ShareCores, AvailableAreThoseOfThisProcess) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const auto all = available_processors();
  EXPECT_EQ(all.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.back().number), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const auto few = available_processors();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(few, std::vector<Processor>{all.back()});
}

}  // namespace
}  // namespace shoal::run
