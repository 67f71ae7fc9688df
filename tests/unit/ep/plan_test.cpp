// SPDX-License-Identifier: Apache-2.0
// Pure parts of a group's plan: nodes derived from the connectivity map; the receive area, whose
// regions are kept for CUDA graphs; the words by which ranks that give up name the first cause; the
// bound of the error of a combined value.
// @traits one_thread
#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <random>
#include <vector>

#include "ep/numeric/float16.hpp"
#include "ep/plan/arena.hpp"
#include "ep/plan/combine_error.hpp"
#include "ep/plan/nodes.hpp"
#include "ep/plan/notices.hpp"
#include "support/expect_error.hpp"

namespace shoal::ep::detail {
namespace {

std::vector<Pe> pes(std::size_t count, Pe first = 10) {
  std::vector<Pe> result(count);
  std::iota(result.begin(), result.end(), first);
  return result;
}

TEST(EpNodes, RanksInBlocks) {
  const std::int32_t domains[] = {4, 4, 7, 7, 1, 1};
  const Nodes nodes = make_nodes(domains, pes(6), 3);
  EXPECT_EQ(nodes.count, 3);
  EXPECT_EQ(nodes.size, 2);
  EXPECT_EQ(nodes.mine, 1);
  EXPECT_EQ(nodes.rail, 1);
  EXPECT_EQ(nodes.node_of, (std::vector<std::int32_t>{0, 0, 1, 1, 2, 2}));
  EXPECT_EQ(nodes.rail_peer(0), 1);
  EXPECT_EQ(nodes.rail_peer(2), 5);
  EXPECT_TRUE(nodes.here(2));
  EXPECT_FALSE(nodes.here(4));
}

// Ranks are numbered as by srun --distribution=cyclic.
TEST(EpNodes, RanksInTurn) {
  const std::int32_t domains[] = {0, 1, 2, 0, 1, 2};
  const Nodes nodes = make_nodes(domains, pes(6), 4);
  EXPECT_EQ(nodes.mine, 1);
  EXPECT_EQ(nodes.rail, 1);
  EXPECT_EQ(nodes.rail_peer(0), 3);
  EXPECT_EQ(nodes.rail_peer(2), 5);
}

TEST(EpNodes, NumbersRanksOfOtherNodes) {
  const std::int32_t domains[] = {0, 1, 0, 1, 2, 2};
  const Nodes nodes = make_nodes(domains, pes(6), 0);
  for (std::int32_t owner = 0; owner < 6; ++owner) {
    std::int32_t expected = 0;
    for (std::int32_t other = 0; other < 6; ++other)
      if (nodes.node_of[other] != nodes.node_of[owner]) {
        EXPECT_EQ(nodes.remote_index(owner, other), expected++) << owner << " " << other;
      }
    EXPECT_EQ(expected, 4);
  }
}

TEST(EpNodes, UnequalNodesAreAnError) {
  const std::int32_t domains[] = {0, 0, 0, 1, 1};
  test::expect_error(Code::unsupported, "3 share memory with PE 10, 2 with PE 13",
                     [&] { make_nodes(domains, pes(5), 0); });
}

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

TEST(Arena, AResultApartLiesWhereNoOtherGraphWrites) {
  Arena arena(2 * kPage, 2);
  EXPECT_EQ(arena.take_apart(kPage, 1), 0u);
  arena.release(0);
  EXPECT_EQ(arena.take_apart(kPage, 1), 0u) << "the same graph writes there in turn";
  EXPECT_EQ(arena.take_apart(kPage, 1), std::nullopt) << "no room for plain results would remain";
  arena.release(0);
  EXPECT_EQ(arena.take_apart(kPage, 2), std::nullopt);
  EXPECT_EQ(arena.take(kPage, 2, true), 0u);
  arena.release(0);
  EXPECT_EQ(arena.take_apart(kPage, 1), std::nullopt) << "graph 2 writes there, too";
  EXPECT_TRUE(arena.has_plain_room());
  EXPECT_EQ(arena.take(kPage), kPage);
  EXPECT_FALSE(arena.has_plain_room());
  arena.release(kPage);
  for (const std::uint64_t graph : {1, 2}) arena.forget(graph);
  EXPECT_EQ(arena.take(kPage), 0u);
  EXPECT_EQ(arena.take_apart(kPage, 3), kPage);
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

TEST(Arena, ATransientRegionFitsNextToASingleResult) {
  Arena arena(8 * kPage, 1, 1);
  for (const std::size_t bytes : {kPage, 4 * kPage}) {
    EXPECT_EQ(arena.take(bytes), 0u);
    EXPECT_EQ(arena.take(kPage), std::nullopt) << "a second result";
    EXPECT_EQ(arena.take(4 * kPage, 0, true), bytes) << "in the lowest gap";
    EXPECT_EQ(arena.take(kPage, 0, true), std::nullopt);
    arena.release(0);
    EXPECT_EQ(arena.take(kPage, 0, true), 0u) << "no result is held";
    arena.release(0);
    arena.release(bytes);
  }
  EXPECT_EQ(arena.take(4 * kPage, 0, true), 0u);
  EXPECT_EQ(arena.take(4 * kPage), 4 * kPage) << "one result, whatever transient region there is";
}

// A plain result of any size has room beside those that a graph of short operations writes.
TEST(Arena, ShortRegionsOfAGraphLieTogether) {
  Arena arena(8 * kPage, 1, 1);
  EXPECT_EQ(arena.take_apart(2 * kPage, 1), 0u);
  EXPECT_EQ(arena.take(2 * kPage, 1, true), 2 * kPage) << "a copy of expert output";
  arena.release(2 * kPage);
  arena.release(0);
  EXPECT_TRUE(arena.has_plain_room());
  EXPECT_EQ(arena.take(4 * kPage), 4 * kPage);
  EXPECT_FALSE(arena.has_plain_room());
  EXPECT_EQ(arena.take(4 * kPage, 0, true), 0u) << "where the graph writes";
  arena.release(0);
  EXPECT_EQ(arena.take_apart(kPage, 1), std::nullopt) << "a second result";
  arena.release(4 * kPage);
  EXPECT_EQ(arena.take(3 * kPage, 1, true), 0u);
  arena.release(0);
  EXPECT_TRUE(arena.has_plain_room());
  EXPECT_EQ(arena.take_apart(3 * kPage, 1), 0u);
  EXPECT_EQ(arena.take(3 * kPage, 1, true), 3 * kPage);
  EXPECT_FALSE(arena.has_plain_room()) << "longer than half a result each";
}

// Any sequence of one result, transient regions and a graph: a transient region of the largest size
// has room whenever at most one result is held.
TEST(Arena, ACopyOfExpertOutputAlwaysHasRoom) {
  std::mt19937 random(3);
  constexpr std::size_t kLargest = 16;
  const auto bytes = [&] { return (1 + random() % kLargest) * kPage; };
  const auto graph = [&] { return std::uint64_t{random() % 2}; };
  for (int round = 0; round < 200; ++round) {
    Arena arena(2 * kLargest * kPage, 1, 1);
    std::vector<std::size_t> held;  // one at most
    for (int i = 0; i < 100; ++i) {
      if (!held.empty()) {
        arena.release(held.back());
        held.clear();
      } else if (random() % 2 == 0) {
        const auto at =
            random() % 2 == 0 ? arena.take_apart(bytes(), 1) : arena.take(bytes(), graph());
        if (at) held.push_back(*at);
      }
      const auto copy = arena.take(i % 2 == 0 ? kLargest * kPage : bytes(), graph(), true);
      ASSERT_TRUE(copy.has_value()) << "round " << round << ", step " << i;
      arena.release(*copy);
      if (random() % 8 == 0) arena.forget(1);
    }
  }
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

std::int32_t cause_in(const std::vector<std::uint64_t>& words, std::int32_t by) {
  return first_cause(by, static_cast<std::int32_t>(words.size()),
                     [&](std::int32_t rank) { return words[static_cast<std::size_t>(rank)]; });
}

TEST(EpFailedWord, ARankThatWasLateIsTheCause) {
  for (std::int32_t late = 0; late < 3; ++late) {
    EXPECT_NE(failed_word(late, false), 0u);
    std::vector<std::uint64_t> words(3, 0);
    words[static_cast<std::size_t>((late + 1) % 3)] = failed_word(late, false);
    EXPECT_EQ(cause_in(words, (late + 1) % 3), late);
  }
}

TEST(EpFailedWord, RanksThatGaveUpLeadToTheFirstCause) {
  // Rank 1 was late for rank 0. Rank 2 saw that rank 0 gave up; rank 3 saw that rank 2 did.
  const std::vector<std::uint64_t> words{failed_word(1, false), 0, failed_word(0, true),
                                         failed_word(2, true)};
  for (const std::int32_t by : {0, 2, 3}) EXPECT_EQ(cause_in(words, by), 1) << by;
}

// The late rank comes after all and finds that rank 0 has given up because of it.
TEST(EpFailedWord, TheLateRankIsTheCauseOfItsOwnFailure) {
  const std::vector<std::uint64_t> words{failed_word(1, false), failed_word(0, true)};
  EXPECT_EQ(cause_in(words, 0), 1);
  EXPECT_EQ(cause_in(words, 1), 1);
}

TEST(EpFailedWord, EndsWhereNoWordNamesACause) {
  EXPECT_EQ(cause_in({failed_word(1, true), 0}, 0), 1) << "the word of rank 1 is not there yet";
  EXPECT_EQ(cause_in({0, 0}, 1), 1);
  EXPECT_EQ(cause_in({failed_word(7, false), 0}, 0), 0) << "no rank of the group";
  const std::vector<std::uint64_t> circle{failed_word(1, true), failed_word(0, true)};
  EXPECT_GE(cause_in(circle, 0), 0) << "ends";
}

float rounded(float value) {
  return numeric::to_float(numeric::to_bf16(value));
}

/// For each level of combine_error.hpp below the result, true if it rounds.
struct Levels {
  bool expert, rank, node;
};

/// A token with two experts on each of two ranks of each of two nodes.
constexpr int kExperts = 2, kRanks = 2, kNodes = 2;

struct Sum {
  double exact = 0, magnitude = 0, error = 0;
};

/// The sum of a token's expert outputs, with the roundings of a combine.
Sum combined(std::mt19937& random, const Levels& levels) {
  std::uniform_real_distribution<float> values(-1, 1);
  Sum sum;
  float result = 0;
  for (int node = 0; node < kNodes; ++node) {
    float of_node = 0;
    for (int rank = 0; rank < kRanks; ++rank) {
      float of_rank = 0;
      for (int expert = 0; expert < kExperts; ++expert) {
        const float term = values(random);
        sum.exact += term;
        sum.magnitude += std::abs(term);
        of_rank += levels.expert ? rounded(term) : term;
      }
      of_node += levels.rank ? rounded(of_rank) : of_rank;
    }
    result += levels.node ? rounded(of_node) : of_node;
  }
  sum.error = std::abs(rounded(result) - sum.exact);
  return sum;
}

/// The largest error of many sums, relative to its bound.
double worst(const Levels& levels, int counted) {
  std::mt19937 random(1);
  const CombineError error = combine_error(counted);
  double worst = 0;
  for (int i = 0; i < 200'000; ++i) {
    const Sum sum = combined(random, levels);
    worst = std::max(worst, sum.error / error.bound(sum.magnitude, sum.exact));
  }
  return worst;
}

TEST(CombineError, CountsTheLevelsOfEachMode) {
  EXPECT_EQ(normal_mode_levels(4, 1), 1) << "rank";
  EXPECT_EQ(normal_mode_levels(4, 4), 1) << "a node of one rank returns its row";
  EXPECT_EQ(normal_mode_levels(4, 2), 2) << "rank, node";
  EXPECT_EQ(normal_mode_levels(4, 2, true), 3) << "expert, rank, node";
  EXPECT_EQ(low_latency_levels(Reduction::exact), 1) << "expert";
  EXPECT_EQ(low_latency_levels(Reduction::per_rank), 2) << "expert, rank";
  EXPECT_EQ(low_latency_levels(Reduction::automatic), 2) << "as per_rank";
}

TEST(CombineError, BoundsRoundedSums) {
  EXPECT_LE(worst({.expert = false, .rank = true, .node = false}, normal_mode_levels(4, 1)), 1);
  EXPECT_LE(worst({.expert = false, .rank = true, .node = true}, normal_mode_levels(4, 2)), 1);
  EXPECT_LE(worst({.expert = true, .rank = true, .node = true}, normal_mode_levels(4, 2, true)), 1);
  EXPECT_LE(
      worst({.expert = true, .rank = false, .node = false}, low_latency_levels(Reduction::exact)),
      1);
  EXPECT_LE(worst({.expert = true, .rank = true, .node = false}, low_latency_levels()), 1);
}

TEST(CombineError, NeedsEveryLevel) {
  EXPECT_GT(worst({.expert = false, .rank = true, .node = true}, normal_mode_levels(4, 1)), 1);
  EXPECT_GT(worst({.expert = false, .rank = true, .node = false}, 0), 1);
}

TEST(CombineError, AddsTheErrorOfRows) {
  const CombineError error = combine_error(1, kE4m3Rounding);
  EXPECT_GE(error.of_terms, kE4m3Rounding + kBf16Rounding);
  EXPECT_EQ(error.of_result, combine_error(1).of_result);
}

}  // namespace
}  // namespace shoal::ep::detail
