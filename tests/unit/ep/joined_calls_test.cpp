// SPDX-License-Identifier: Apache-2.0
// When a low-latency send and the receive behind it are one launch.
// @traits one_thread
#include <gtest/gtest.h>

#include <optional>

#include "ep/cuda/low_latency/joined.hpp"

namespace shoal::ep::cuda {
namespace {

TEST(JoinedCalls, DispatchesOfWhichHalfOfTheSmsSend) {
  EXPECT_TRUE(joins_dispatch(0, 132));
  EXPECT_TRUE(joins_dispatch(65, 132));
  EXPECT_FALSE(joins_dispatch(66, 132));
  EXPECT_FALSE(joins_dispatch(1, 3));
}

// All blocks of the launch have an SM: a pair of a token and a rank each, a token each, two more.
TEST(JoinedCalls, CombinesWhoseBlocksEitherSendOrReceive) {
  EXPECT_TRUE(joins_combine(2, 43, 132));
  EXPECT_FALSE(joins_combine(2, 44, 132));
  EXPECT_TRUE(joins_combine(8, 14, 132));
  EXPECT_FALSE(joins_combine(8, 15, 132));
  EXPECT_TRUE(joins_combine(1, 0, 132));
  EXPECT_FALSE(joins_combine(128, 0, 78)) << "without tokens ranks have a block all the same";
}

TEST(JoinedCalls, NotAlongsideAnotherGroupOnTheGpu) {
  const LowLatencyGroups first(3);
  EXPECT_TRUE(first.only_one());
  std::optional<LowLatencyGroups> second(std::in_place, 3);
  const LowLatencyGroups elsewhere(4);
  EXPECT_FALSE(first.only_one());
  EXPECT_FALSE(second->only_one());
  EXPECT_TRUE(elsewhere.only_one());
  second.reset();
  EXPECT_TRUE(first.only_one());
}

}  // namespace
}  // namespace shoal::ep::cuda
