// SPDX-License-Identifier: Apache-2.0
// ScopedTimeout bounds the network waits of its thread.
#include "transport/scoped_timeout.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace shoal::transport {
namespace {

using std::chrono::milliseconds;

milliseconds left(milliseconds timeout) {
  const auto deadline = wait_deadline(timeout);
  return std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
}

TEST(ScopedTimeout, BoundsAllWaitsOfItsScopeTogether) {
  EXPECT_GT(left(milliseconds(50'000)), milliseconds(40'000));
  {
    const ScopedTimeout limit(milliseconds(5'000));
    const auto first = wait_deadline(milliseconds(50'000));
    EXPECT_LE(left(milliseconds(50'000)), milliseconds(5'000));
    std::this_thread::sleep_for(milliseconds(2));
    EXPECT_EQ(wait_deadline(milliseconds(50'000)), first) << "a second wait has the same end";
    EXPECT_LE(left(milliseconds(10)), milliseconds(10)) << "a shorter timeout still holds";
  }
  EXPECT_GT(left(milliseconds(50'000)), milliseconds(40'000));
}

TEST(ScopedTimeout, InnerScopeCannotProlongOuterScope) {
  const ScopedTimeout outer(milliseconds(1'000));
  const auto before = wait_deadline(milliseconds(50'000));
  {
    const ScopedTimeout inner(milliseconds(30'000));
    EXPECT_EQ(wait_deadline(milliseconds(50'000)), before);
  }
  {
    const ScopedTimeout inner(milliseconds(10));
    EXPECT_LE(left(milliseconds(50'000)), milliseconds(10));
  }
  EXPECT_EQ(wait_deadline(milliseconds(50'000)), before);
}

// A start is not bounded by the timeout of operations, which may be short.
TEST(ScopedTimeout, MayCountAlone) {
  const ScopedTimeout alone(milliseconds(30'000), ScopedTimeout::Also::nothing);
  EXPECT_GT(left(milliseconds(10)), milliseconds(20'000));
  EXPECT_LE(left(milliseconds(50'000)), milliseconds(30'000));
  {
    const ScopedTimeout inner(milliseconds(20'000));
    EXPECT_LE(left(milliseconds(10)), milliseconds(10));
  }
  EXPECT_GT(left(milliseconds(10)), milliseconds(20'000));
}

TEST(ScopedTimeout, AffectsOnlyItsThread) {
  const ScopedTimeout limit(milliseconds(10));
  std::thread([] { EXPECT_GT(left(milliseconds(50'000)), milliseconds(40'000)); }).join();
}

}  // namespace
}  // namespace shoal::transport
