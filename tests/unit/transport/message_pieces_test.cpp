// SPDX-License-Identifier: Apache-2.0
// How a transfer is cut and spread over rails.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>

#include "transport/message/pieces.hpp"

namespace shoal::transport::message {
namespace {

TEST(MessagePieces, AreCutAndSpread) {
  constexpr std::size_t kMiB = std::size_t{1} << 20;
  EXPECT_EQ(piece_bytes(100, 1, kMiB), 100u);
  EXPECT_EQ(piece_bytes(kMiB, 1, kMiB), kMiB);
  EXPECT_EQ(piece_bytes(kMiB + 1, 1, kMiB), kMiB);
  EXPECT_EQ(piece_bytes(kMiB, 2, kMiB), kMiB / 2) << "a piece for each rail";
  EXPECT_EQ(piece_bytes(kMiB, 4, 4096), 4096u) << "never longer than allowed";
  EXPECT_EQ(piece_bytes(100'000, 4, kMiB), kSmallestShare) << "nor needlessly short";
  EXPECT_EQ(piece_bytes(1, 8, kMiB), 1u);
  // Every transfer ends: pieces are not empty and not longer than the rest.
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{63}, 3 * kMiB + 5, std::size_t{1} << 45})
    for (const std::size_t count : {1, 2, 3, 16}) {
      const std::size_t piece = piece_bytes(bytes, count, kMiB);
      EXPECT_GE(piece, 1u);
      EXPECT_LE(piece, std::min(bytes, kMiB));
    }
}

TEST(MessagePieces, HomeRailIsTheSameForBothEnds) {
  for (std::size_t a = 0; a < 6; ++a)
    for (std::size_t b = 0; b < 6; ++b) EXPECT_EQ(home_rail(a, b, 4), home_rail(b, a, 4));
}

}  // namespace
}  // namespace shoal::transport::message
