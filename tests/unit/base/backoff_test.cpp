// SPDX-License-Identifier: Apache-2.0
// Polling threads between two polls: Backoff, ServiceThread.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <future>

#include "base/backoff.hpp"
#include "base/service_thread.hpp"
#include "support/process/threads_called.hpp"

namespace shoal::test {
namespace {

/// Number of times that this thread gave its core away because it slept.
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

/// Number of times that a service thread whose polls have this result gives its core away in kPolls
/// of them, after its yields.
constexpr long kPolls = 100;
long switches_of(ProgressWait wait, ServiceThread::Polled result) {
  const auto start = std::chrono::steady_clock::now();
  std::promise<long> switches;
  long polls = 0, before = 0;
  const ServiceThread thread({.name = "shoal-test", .wait = wait}, [&] {
    if (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(20)) return result;
    if (polls == 0) before = voluntary_switches();
    if (polls++ == kPolls) switches.set_value(voluntary_switches() - before);
    return result;
  });
  return switches.get_future().get();
}

TEST(ServiceThread, NapsWhileItIsIdle) {
  using enum ServiceThread::Polled;
  EXPECT_GE(switches_of(ProgressWait::yield, nothing), kPolls / 2);
  EXPECT_GE(switches_of(ProgressWait::sleep, nothing), kPolls / 2);
  EXPECT_LT(switches_of(ProgressWait::spin, nothing), kPolls / 2);
  EXPECT_LT(switches_of(ProgressWait::yield, something), kPolls / 2);
  EXPECT_LT(switches_of(ProgressWait::sleep, waited), kPolls / 2);
}

TEST(ServiceThread, StartsOnceOnItsCore) {
  const int core = *cores_of(0).begin();
  std::atomic<int> starts = 0, polls = 0;
  {
    const ServiceThread thread(
        {.name = "shoal-test", .core = core},
        [&] {
          ++polls;
          return ServiceThread::Polled::nothing;
        },
        [&] { ++starts; });
    EXPECT_EQ(cores_of("shoal-test"), (std::set<std::set<int>>{{core}}));
    while (polls == 0) sched_yield();
    EXPECT_EQ(starts, 1);
  }
  const int at_the_end = polls;
  EXPECT_TRUE(threads_called("shoal-test").empty());
  EXPECT_EQ(polls, at_the_end);
}

}  // namespace
}  // namespace shoal::test
