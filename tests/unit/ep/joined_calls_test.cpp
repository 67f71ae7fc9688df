// SPDX-License-Identifier: Apache-2.0
// When a low-latency send and the receive behind it are one launch.
// @traits one_thread
#include <gtest/gtest.h>

#include "ep/cuda/low_latency/joined.hpp"

namespace shoal::ep::cuda {
namespace {

// Beside two launches of one stream, SMs are left for the sends of another group.
TEST(JoinedCalls, LeaveSms) {
  for (std::int32_t multiprocessors = 8; multiprocessors <= 160; ++multiprocessors)
    EXPECT_GE(multiprocessors - 2 * most_joined_blocks(multiprocessors), kSmsLeft)
        << multiprocessors;
}

TEST(JoinedCalls, DispatchesOfWhichHalfOfTheBlocksReceive) {
  EXPECT_TRUE(joins_dispatch(0, 132));
  EXPECT_TRUE(joins_dispatch(32, 132));
  EXPECT_FALSE(joins_dispatch(33, 132));
  EXPECT_TRUE(joins_dispatch(0, 12)) << "a rank without tokens sends by two blocks";
  EXPECT_FALSE(joins_dispatch(0, 11));
}

// A block receives for each token, and one more; one sends for each two pairs of token and rank.
TEST(JoinedCalls, CombinesWhoseBlocksEitherSendOrReceive) {
  EXPECT_TRUE(joins_combine(2, 32, 132));
  EXPECT_FALSE(joins_combine(2, 33, 132));
  EXPECT_TRUE(joins_combine(8, 12, 132));
  EXPECT_FALSE(joins_combine(8, 13, 132));
  EXPECT_TRUE(joins_combine(1, 0, 132));
  EXPECT_FALSE(joins_combine(1, 0, 7)) << "a block that sends and one that receives";
  EXPECT_FALSE(joins_combine(130, 0, 132)) << "without tokens ranks have a pair all the same";
}

}  // namespace
}  // namespace shoal::ep::cuda
