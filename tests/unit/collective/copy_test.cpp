// SPDX-License-Identifier: Apache-2.0
// Copies of long blocks: the choice between two ways, and the bytes.
// @traits one_thread
#include "collective/copy.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

namespace shoal::test {
namespace {

using collective::CopyWay;
using std::chrono::nanoseconds;

/// Times all trials: `times[way]` ns per copy of 1000 bytes, one of each way a thousand times that.
CopyWay::Way choose(std::array<int, 2> times) {
  CopyWay way;
  for (std::uint32_t i = 0; i < CopyWay::kTrials; ++i) {
    const CopyWay::Turn turn = way.next();
    EXPECT_TRUE(turn.timed);
    way.record(turn.way, 1000, nanoseconds(times[turn.way]) * (i < 2 ? 1000 : 1));
  }
  const CopyWay::Turn turn = way.next();
  EXPECT_FALSE(turn.timed);
  return turn.way;
}

TEST(CopyWay, TakesTheFasterOne) {
  EXPECT_EQ(choose({100, 90}), CopyWay::whole);
  EXPECT_EQ(choose({90, 100}), CopyWay::pieces);
  EXPECT_EQ(choose({100, 100}), CopyWay::pieces);
}

TEST(CopyWay, TriesBothWaysOnAllBlocks) {
  for (const std::uint32_t blocks : {1, 2, 3, 4, 8}) {
    std::vector<std::array<int, 2>> turns(blocks);
    CopyWay way;
    for (std::uint32_t i = 0; i < CopyWay::kTrials; ++i) ++turns[i % blocks][way.next().way];
    for (const auto& [pieces, whole] : turns) {
      EXPECT_GE(pieces, 1) << blocks;
      EXPECT_GE(whole, 1) << blocks;
    }
  }
}

TEST(CopyWay, ComparesTimesPerByte) {
  CopyWay way;
  for (std::uint32_t i = 0; i < CopyWay::kTrials; ++i) {
    const CopyWay::Way turn = way.next().way;
    way.record(turn, turn == CopyWay::whole ? 4000 : 1000,
               nanoseconds(turn == CopyWay::whole ? 200 : 100));
  }
  EXPECT_EQ(way.next().way, CopyWay::whole);
}

TEST(CopyBlock, CopiesAllBytes) {
  for (const std::size_t bytes : {0, 1, 2048, 2049, 16383, 16384, 65537, 1 << 20, (1 << 20) + 1}) {
    std::vector<unsigned char> from(bytes + 1), to(bytes + 1);
    for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(7 * i + 1);
    for (std::uint32_t i = 0; i < CopyWay::kTrials + 2; ++i) {
      std::memset(to.data(), 0, to.size());
      collective::copy_block(to.data(), from.data(), bytes);
      ASSERT_EQ(std::memcmp(to.data(), from.data(), bytes), 0) << bytes;
      ASSERT_EQ(to[bytes], 0) << bytes;
    }
  }
}

}  // namespace
}  // namespace shoal::test
