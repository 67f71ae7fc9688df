// SPDX-License-Identifier: Apache-2.0
// Deadlines of waits that poll: what a machine sleeps does not count.
// @traits one_thread
#include <gtest/gtest.h>

#include "base/deadline.hpp"

namespace shoal::test {
namespace {

using namespace std::chrono_literals;
using Time = Deadline::Clock::time_point;

TEST(Deadline, PassesAtItsEnd) {
  const Time start{};
  Deadline deadline(start + 1000ms, start);
  for (auto t = 1ms; t < 1000ms; t += 1ms) ASSERT_FALSE(deadline.passed(start + t));
  EXPECT_TRUE(deadline.passed(start + 1000ms));
}

TEST(Deadline, DoesNotCountPauses) {
  const Time start{};
  Deadline deadline(start + 20s, start);
  EXPECT_FALSE(deadline.passed(start + 1ms));
  EXPECT_FALSE(deadline.passed(start + 20s + 1ms)) << "20 s in which nothing ran";
  for (auto t = 20s + 100ms; t < 39s; t += 100ms)
    ASSERT_FALSE(deadline.passed(start + t)) << t.count();
  EXPECT_FALSE(deadline.passed(start + 39s));
  EXPECT_TRUE(deadline.passed(start + 41s));
}

TEST(Deadline, EndsHoweverOftenItPauses) {
  const Time start{};
  Deadline deadline(start + 10s, start);
  auto t = 0s;
  while (!deadline.passed(start + t)) {
    t += 1s;
    ASSERT_LE(t, 21s);
  }
  EXPECT_GE(t, 19s) << "twice as long";
}

TEST(Deadline, ThatIsOverIsOver) {
  const Time start{};
  Deadline deadline(start - 1s, start);
  EXPECT_TRUE(deadline.passed(start));
  EXPECT_TRUE(deadline.passed(start + 5s));
}

}  // namespace
}  // namespace shoal::test
