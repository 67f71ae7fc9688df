// SPDX-License-Identifier: Apache-2.0
// The bound of the error of a combined value holds for sums that are rounded as in each mode, and
// fails for them with one level less.
// @traits one_thread
#include "ep/plan/combine_error.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "ep/numeric/float16.hpp"

namespace shoal::ep::detail {
namespace {

float rounded(float value) {
  return numeric::to_float(numeric::to_bf16(value));
}

/// Whether each level of combine_error.hpp below the result rounds.
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
