// SPDX-License-Identifier: Apache-2.0
// The gate against a naive reference, and its errors.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include "shoal/ep/gate.hpp"
#include "support/expect_error.hpp"

namespace shoal::ep {
namespace {

struct Choice {
  std::vector<std::int64_t> experts;
  std::vector<double> weights;
};

/// The naive reference as documented in gate.hpp: sorts everything.
Choice naive_gate(const std::vector<float>& logits, const std::vector<float>& bias,
                  const GateOptions& options) {
  const int experts = options.experts, size = experts / options.groups;
  std::vector<float> score(logits.size()), selection(logits.size());
  double softmax_sum = 0;
  for (const float x : logits) softmax_sum += std::exp(static_cast<double>(x));
  for (int e = 0; e < experts; ++e) {
    const double x = logits[e];
    score[e] = static_cast<float>(options.score == GateScore::sigmoid ? 1 / (1 + std::exp(-x))
                                                                      : std::exp(x) / softmax_sum);
    selection[e] = score[e] + (bias.empty() ? 0.0f : bias[e]);
  }
  std::vector<std::pair<float, int>> groups;
  for (int g = 0; g < options.groups; ++g) {
    std::vector<float> members(selection.begin() + g * size, selection.begin() + (g + 1) * size);
    std::sort(members.rbegin(), members.rend());
    groups.emplace_back(-(members[0] + (size > 1 ? members[1] : 0.0f)), g);
  }
  std::sort(groups.begin(), groups.end());
  std::vector<std::pair<float, int>> candidates;
  for (int g = 0; g < options.groups_kept; ++g)
    for (int e = groups[g].second * size; e < (groups[g].second + 1) * size; ++e)
      candidates.emplace_back(-selection[e], e);
  std::sort(candidates.begin(), candidates.end());

  Choice choice;
  double sum = 0;
  for (int k = 0; k < options.top_k; ++k) {
    choice.experts.push_back(candidates[k].second);
    choice.weights.push_back(score[candidates[k].second]);
    sum += choice.weights.back();
  }
  for (double& weight : choice.weights)
    weight *= options.routed_scaling / (options.normalize ? sum : 1);
  return choice;
}

ConstTensorView matrix(const std::vector<float>& values, std::int64_t columns) {
  return {values.data(),
          DataType::float32,
          {static_cast<std::int64_t>(values.size()) / columns, columns}};
}
ConstTensorView vector(const std::vector<float>& values) {
  return {values.data(), DataType::float32, {static_cast<std::int64_t>(values.size())}};
}

void expect_like_naive(const std::vector<float>& logits, const std::vector<float>& bias,
                       const GateOptions& options) {
  const Gated got =
      gate(matrix(logits, options.experts), bias.empty() ? TensorView() : vector(bias), options);
  const std::int64_t tokens = static_cast<std::int64_t>(logits.size()) / options.experts;
  ASSERT_EQ(got.topk_idx.describe(),
            "int64 [" + std::to_string(tokens) + ", " + std::to_string(options.top_k) + "]");
  for (std::int64_t t = 0; t < tokens; ++t) {
    const Choice want = naive_gate(
        {logits.begin() + t * options.experts, logits.begin() + (t + 1) * options.experts}, bias,
        options);
    for (std::int32_t k = 0; k < options.top_k; ++k) {
      ASSERT_EQ(got.topk_idx.as<std::int64_t>()[t * options.top_k + k], want.experts[k])
          << "token " << t << ", k " << k;
      ASSERT_NEAR(got.topk_weights.as<float>()[t * options.top_k + k], want.weights[k],
                  1e-6 * want.weights[k] + 1e-30);
    }
  }
}

TEST(Gate, RandomShapesMatchTheNaiveReference) {
  std::mt19937 random(5);
  for (int round = 0; round < 300; ++round) {
    GateOptions options;
    options.groups = 1 + static_cast<int>(random() % 8);
    options.experts = options.groups * (1 + static_cast<int>(random() % 40));
    options.groups_kept = 1 + static_cast<int>(random() % static_cast<unsigned>(options.groups));
    const int candidates = options.experts / options.groups * options.groups_kept;
    options.top_k =
        1 + static_cast<int>(random() % static_cast<unsigned>(std::min(32, candidates)));
    options.score = random() % 2 ? GateScore::sigmoid : GateScore::softmax;
    options.normalize = random() % 2;
    options.routed_scaling = random() % 2 ? 1.0f : 2.5f;
    std::normal_distribution<float> normal(0, 2);
    std::vector<float> logits(static_cast<std::size_t>(options.experts) * (random() % 9));
    for (float& x : logits) x = normal(random);
    std::vector<float> bias(random() % 2 ? static_cast<std::size_t>(options.experts) : 0);
    for (float& b : bias) b = 0.1f * normal(random);
    expect_like_naive(logits, bias, options);
    if (HasFatalFailure()) return;
  }
}

TEST(Gate, TiesGoToTheLowerExpertAndGroup) {
  GateOptions options{.experts = 16, .groups = 4, .groups_kept = 2, .top_k = 6};
  const std::vector<float> logits(16, 0.25f);
  const Gated got = gate(matrix(logits, 16), {}, options);
  for (int k = 0; k < 6; ++k) {
    EXPECT_EQ(got.topk_idx.as<std::int64_t>()[k], k);
    EXPECT_FLOAT_EQ(got.topk_weights.as<float>()[k], 1.0f / 6);
  }
  std::mt19937 random(9);
  std::vector<float> coarse(16 * 200);  // few different values: many ties
  for (float& x : coarse) x = static_cast<float>(random() % 3);
  expect_like_naive(coarse, {}, options);
}

TEST(Gate, BiasDecidesTheChoiceButNotTheWeight) {
  GateOptions options{.experts = 4, .top_k = 2, .routed_scaling = 2.5f};
  const std::vector<float> logits = {3, 2, 1, 0};
  const std::vector<float> bias = {0, 0, 0, 5};
  const Gated got = gate(matrix(logits, 4), vector(bias), options);
  EXPECT_EQ(got.topk_idx.as<std::int64_t>()[0], 3);
  EXPECT_EQ(got.topk_idx.as<std::int64_t>()[1], 0);
  const double a = 0.5, b = 1 / (1 + std::exp(-3.0));
  EXPECT_NEAR(got.topk_weights.as<float>()[0], 2.5 * a / (a + b), 1e-6);
  EXPECT_NEAR(got.topk_weights.as<float>()[1], 2.5 * b / (a + b), 1e-6);
}

TEST(Gate, KeepsOnlyTheBestGroups) {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> logits(256 * 100);
  for (float& x : logits) x = normal(random);
  GateOptions options{.experts = 256, .groups = 8, .groups_kept = 4, .top_k = 8};
  const Gated got = gate(matrix(logits, 256), {}, options);
  for (int t = 0; t < 100; ++t) {
    std::set<std::int64_t> groups, experts;
    double sum = 0;
    for (int k = 0; k < 8; ++k) {
      groups.insert(got.topk_idx.as<std::int64_t>()[t * 8 + k] / 32);
      experts.insert(got.topk_idx.as<std::int64_t>()[t * 8 + k]);
      sum += got.topk_weights.as<float>()[t * 8 + k];
    }
    EXPECT_LE(groups.size(), 4u);
    EXPECT_EQ(experts.size(), 8u);
    EXPECT_NEAR(sum, 1, 1e-6);
  }
}

TEST(Gate, ExtremeLogitsGiveFiniteWeights) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> logits = {-1000, -1000, -infinity, -1000,     1000,      1001,
                                     0,     5,     -infinity, -infinity, -infinity, -infinity};
  for (const GateScore score : {GateScore::sigmoid, GateScore::softmax}) {
    const Gated got = gate(matrix(logits, 4), {}, {.experts = 4, .top_k = 2, .score = score});
    for (int i = 0; i < 6; ++i) EXPECT_TRUE(std::isfinite(got.topk_weights.as<float>()[i])) << i;
  }
}

TEST(Gate, RejectsBadOptionsAndInputs) {
  const std::vector<float> logits(2 * 16, 0.0f), bias(16, 0.0f);
  auto message = [&](GateOptions options, const ConstTensorView& l,
                     const ConstTensorView& b) -> std::string {
    try {
      gate(l, b, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      return error.what();
    }
    return "no error";
  };
  const GateOptions good{.experts = 16, .groups = 4, .groups_kept = 2, .top_k = 4};
  auto with = [&](auto change) {
    GateOptions options = good;
    change(options);
    return message(options, matrix(logits, 16), vector(bias));
  };
  EXPECT_EQ(message(good, matrix(logits, 16), vector(bias)), "no error");
  test::expect_parts(with([](GateOptions& o) { o.groups = 3; }), {"groups is 3"});
  test::expect_parts(with([](GateOptions& o) { o.groups_kept = 5; }), {"groups_kept is 5"});
  test::expect_parts(with([](GateOptions& o) { o.top_k = 9; }), {"top_k is 9"});
  test::expect_parts(with([](GateOptions& o) { o.top_k = 0; }), {"top_k is 0"});
  test::expect_parts(with([](GateOptions& o) { o.experts = 0; }), {"experts is 0"});
  test::expect_parts(with([](GateOptions& o) { o.experts = 65'537; }),
                     {"experts is 65537; 1 to 65536"});
  test::expect_parts(with([](GateOptions& o) { o.routed_scaling = 0; }), {"routed_scaling"});
  test::expect_parts(message(good, matrix(logits, 8), vector(bias)), {"float32 [4, 8]"});
  test::expect_parts(message(good, matrix(logits, 16), matrix(bias, 4)), {"float32 [4, 4]"});
  std::vector<float> bad = logits;
  bad[16 + 3] = NAN;
  test::expect_parts(message(good, matrix(bad, 16), vector(bias)), {"token 1 for expert 3 is nan"});
  bad[16 + 3] = std::numeric_limits<float>::infinity();
  test::expect_parts(message(good, matrix(bad, 16), vector(bias)), {"token 1 for expert 3 is inf"});
}

}  // namespace
}  // namespace shoal::ep
