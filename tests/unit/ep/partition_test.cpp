// SPDX-License-Identifier: Apache-2.0
// Which rank holds which experts: the rule for any number of them, and the table that kernels read.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "ep/cuda/device/experts.cuh"
#include "ep/plan/shape.hpp"
#include "support/draws.hpp"

namespace shoal::ep {
namespace {

using detail::Partition;

std::vector<std::int32_t> counts_of(const Partition& partition) {
  std::vector<std::int32_t> counts;
  for (std::size_t rank = 0; rank + 1 < partition.firsts().size(); ++rank)
    counts.push_back(partition.count(static_cast<std::int32_t>(rank)));
  return counts;
}

TEST(EpPartition, TheFirstRanksHoldOneMore) {
  EXPECT_EQ(counts_of({10, 4, {}}), (std::vector{3, 3, 2, 2}));
  EXPECT_EQ(counts_of({3, 4, {}}), (std::vector{1, 1, 1, 0}));
  EXPECT_EQ(counts_of({256, 8, {}}), std::vector(8, 32));
  const std::vector<std::int32_t> counts = counts_of({128, 24, {}});
  EXPECT_EQ(std::count(counts.begin(), counts.begin() + 8, 6), 8);
  EXPECT_EQ(std::count(counts.begin() + 8, counts.end(), 5), 16);
}

/// Every expert is at one rank, in ascending order, and both directions agree.
void expect_whole(const Partition& partition, std::int32_t experts, std::int32_t ranks) {
  ASSERT_EQ(partition.firsts().size(), static_cast<std::size_t>(ranks) + 1);
  EXPECT_EQ(partition.first(0), 0);
  EXPECT_EQ(partition.first(ranks), experts);
  std::int32_t largest = 0;
  for (std::int32_t rank = 0, expert = 0; rank < ranks; ++rank) {
    EXPECT_GE(partition.count(rank), 0);
    largest = std::max(largest, partition.count(rank));
    for (std::int32_t local = 0; local < partition.count(rank); ++local, ++expert) {
      EXPECT_EQ(partition.first(rank) + local, expert);
      EXPECT_EQ(partition.place(expert).rank, rank);
      EXPECT_EQ(partition.place(expert).local, local);
    }
  }
  EXPECT_EQ(partition.largest(), largest);
}

void expect_table(const Partition& partition, std::int32_t experts, std::int32_t ranks,
                  std::int32_t of_node) {
  const std::vector<std::int32_t> words = cuda::expert_table_words(partition, of_node);
  ASSERT_EQ(words.size(), static_cast<std::size_t>(experts + ranks / of_node + 1));
  const cuda::ExpertTable table = cuda::ExpertTable::at(words.data(), experts);
  for (std::int32_t expert = 0; expert < experts; ++expert) {
    const cuda::ExpertPlace place{table.places[expert]};
    EXPECT_EQ(place.rank(), partition.place(expert).rank / of_node);
    EXPECT_EQ(table.first[place.rank()] + place.local(), expert);
    EXPECT_EQ(place.local_at(place.rank()), place.local());
    EXPECT_EQ(place.local_at(place.rank() + 1), -1);
  }
  for (std::int32_t target = 0; target <= ranks / of_node; ++target)
    EXPECT_EQ(table.first[target], partition.first(target * of_node));
}

TEST(EpPartition, HoldsForAnyNumbers) {
  test::Draws draws(7);
  for (int i = 0; i < 400; ++i) {
    const auto nodes = static_cast<std::int32_t>(draws.pick(1, 6)),
               ranks = nodes * static_cast<std::int32_t>(draws.pick(1, 20)),
               experts = static_cast<std::int32_t>(draws.pick(1, i % 2 == 0 ? 40 : 1000));
    SCOPED_TRACE(std::to_string(experts) + " experts, " + std::to_string(ranks) + " ranks");
    std::vector<std::int32_t> first;
    if (i % 3 != 0) {
      first.push_back(0);
      while (first.size() < static_cast<std::size_t>(ranks))
        first.push_back(static_cast<std::int32_t>(draws.pick(0, experts)));
      std::ranges::sort(first);
      if (i % 3 == 2) first.push_back(experts);
    }
    const Partition partition(experts, ranks, first);
    expect_whole(partition, experts, ranks);
    expect_table(partition, experts, ranks, 1);
    expect_table(partition, experts, ranks, ranks / nodes);
    for (std::size_t rank = 0; rank < first.size(); ++rank)
      EXPECT_EQ(partition.firsts()[rank], first[rank]);
    if (!first.empty()) continue;
    const auto [least, most] =
        std::minmax_element(partition.firsts().begin(), partition.firsts().end());
    EXPECT_EQ(*most - *least, experts);
    EXPECT_LE(partition.largest() - partition.count(ranks - 1), 1);
  }
}

/// The word of a place has room for the last expert of the last rank.
TEST(EpPartition, TheLargestPlaceFits) {
  const std::vector<std::int32_t> first = [] {
    std::vector<std::int32_t> zeros(cuda::ExpertPlace::kMostRanks, 0);
    return zeros;
  }();
  const Partition partition(1 << 16, cuda::ExpertPlace::kMostRanks, first);
  const std::vector<std::int32_t> words = cuda::expert_table_words(partition);
  const cuda::ExpertPlace last{words[(1 << 16) - 1]};
  EXPECT_EQ(last.rank(), cuda::ExpertPlace::kMostRanks - 1);
  EXPECT_EQ(last.local(), (1 << 16) - 1);
  EXPECT_LT(cuda::ExpertPlace{}.rank(), 0);
}

}  // namespace
}  // namespace shoal::ep
