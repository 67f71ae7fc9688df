// SPDX-License-Identifier: Apache-2.0
// The receive area of a group: regions of results, and those that are kept for CUDA graphs.
// @traits one_thread
#include "ep/plan/arena.hpp"

#include <gtest/gtest.h>

namespace shoal::ep::detail {
namespace {

constexpr std::size_t kPage = kPageBytes;

TEST(Arena, ResultsDoNotLieWhereGraphsWrite) {
  Arena arena(2 * kPage, 2);
  EXPECT_EQ(arena.take(kPage, 7), 0u);
  arena.release(0);
  EXPECT_EQ(arena.regions(), 0u);
  EXPECT_TRUE(arena.keeps());
  EXPECT_EQ(arena.take(kPage), kPage);
  EXPECT_EQ(arena.take(kPage), std::nullopt);
  arena.forget(8);
  EXPECT_EQ(arena.take(kPage), std::nullopt);
  arena.forget(7);
  EXPECT_FALSE(arena.keeps());
  EXPECT_EQ(arena.take(kPage), 0u);
}

TEST(Arena, CapturedAndTransientResultsShareTheRegionsOfGraphs) {
  Arena arena(2 * kPage, 2);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take(kPage, 1), kPage);
  arena.release(kPage);
  arena.release(0);
  // They lie where the first graph writes, so that the other end stays free.
  for (const std::uint64_t graph : {1, 2, 3}) {
    EXPECT_EQ(arena.take(kPage, graph), kPage);
    arena.release(kPage);
  }
  EXPECT_EQ(arena.take(kPage, 0, true), kPage);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take(kPage, 4), std::nullopt) << "both results are held";
  EXPECT_EQ(arena.take(kPage, 0, true), std::nullopt);
  arena.release(kPage);
  for (const std::uint64_t graph : {1, 2}) arena.forget(graph);
  arena.release(0);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take(kPage), std::nullopt) << "graph 3 exists";
  arena.forget(3);
  EXPECT_EQ(arena.take(kPage), kPage);
}

TEST(Arena, ALongerTransientResultOverlapsAShortRegionOfAGraph) {
  Arena arena(6 * kPage, 2);
  EXPECT_EQ(arena.take(kPage, 1), 0u);
  arena.release(0);
  EXPECT_EQ(arena.take(3 * kPage), 3 * kPage);
  EXPECT_EQ(arena.take(3 * kPage, 0, true), 0u);
  arena.release(0);
  arena.release(3 * kPage);
  EXPECT_EQ(arena.take(2 * kPage, 2), 0u);
  arena.release(0);
  arena.forget(1);
  EXPECT_EQ(arena.take(3 * kPage), 3 * kPage);
  EXPECT_EQ(arena.take(3 * kPage, 2), 0u);
}

TEST(Arena, FirstFitLeavesOutTheRegionsOfGraphs) {
  Arena arena(8 * kPage, 3);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take(2 * kPage, 1), kPage);
  EXPECT_EQ(arena.take(kPage), 3 * kPage);
  arena.release(0);
  arena.release(kPage);
  EXPECT_EQ(arena.take(2 * kPage), 4 * kPage);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take(2 * kPage, 2), kPage) << "where the first graph writes";
  EXPECT_EQ(arena.take(3 * kPage), std::nullopt);
  EXPECT_EQ(arena.take(2 * kPage), 6 * kPage);
  arena.release(kPage);
  for (const std::uint64_t graph : {1, 2}) arena.forget(graph);
  EXPECT_EQ(arena.take(2 * kPage), kPage);
}

}  // namespace
}  // namespace shoal::ep::detail
