// SPDX-License-Identifier: Apache-2.0
// What a polling thread does between two polls.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>

#include "base/backoff.hpp"

namespace shoal::test {
namespace {

/// How often this thread gave its core away because it slept.
long voluntary_switches() {
  rusage usage{};
  EXPECT_EQ(getrusage(RUSAGE_THREAD, &usage), 0);
  return usage.ru_nvcsw;
}

// A sleep shorter than the time that the kernel needs to set a timer returns without a switch:
// the thread that is waited for would not run.
TEST(Backoff, ALongWaitGivesTheCoreAway) {
  Backoff backoff;
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(20)) backoff();
  constexpr long kNaps = 100;
  const long before = voluntary_switches();
  for (long i = 0; i < kNaps; ++i) backoff();
  EXPECT_GE(voluntary_switches() - before, kNaps / 2);
}

}  // namespace
}  // namespace shoal::test
