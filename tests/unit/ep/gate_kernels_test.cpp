// SPDX-License-Identifier: Apache-2.0
// The gate's kernel on a fake GPU: the bits of the host.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "checks/ep/gates.hpp"
#include "ep/cuda/gate/gate.cuh"

namespace shoal::ep::cuda {
namespace {

using test::GateCase;

struct Chosen {
  std::vector<std::int64_t> topk_idx;
  std::vector<float> topk_weights;
};

Chosen run_kernel(const GateCase& c) {
  const auto slots = static_cast<std::size_t>(c.tokens * c.options.top_k);
  Chosen chosen{std::vector<std::int64_t>(slots, -7), std::vector<float>(slots, -7)};
  EXPECT_EQ(launch_gate({.logits = c.logits.data(),
                         .bias = c.bias.empty() ? nullptr : c.bias.data(),
                         .topk_idx = chosen.topk_idx.data(),
                         .topk_weights = chosen.topk_weights.data(),
                         .tokens = c.tokens,
                         .experts = c.options.experts,
                         .groups = c.options.groups,
                         .groups_kept = c.options.groups_kept,
                         .top_k = c.options.top_k,
                         .softmax = c.options.score == GateScore::softmax,
                         .normalize = c.options.normalize,
                         .scaling = c.options.routed_scaling},
                        nullptr),
            cudaSuccess);
  return chosen;
}

TEST(GateKernel, GivesTheBitsOfTheHost) {
  for (unsigned number = 0; number < 200; ++number) {
    const GateCase c = test::gate_case(number, 24, 700);
    const Gated want = test::gate_on_host(c);
    const Chosen got = run_kernel(c);
    ASSERT_EQ(std::memcmp(got.topk_idx.data(), want.topk_idx.data, want.topk_idx.bytes()), 0)
        << number << ": " << c.describe();
    ASSERT_EQ(
        std::memcmp(got.topk_weights.data(), want.topk_weights.data, want.topk_weights.bytes()), 0)
        << number << ": " << c.describe();
  }
}

TEST(GateKernel, MarksTokensWithoutNumbers) {
  GateCase c{.options = {.experts = 40, .groups = 4, .groups_kept = 2, .top_k = 5},
             .logits = std::vector<float>(4 * 40, 0.5f),
             .bias = {},
             .tokens = 4};
  c.logits[1 * 40 + 39] = NAN;
  c.logits[3 * 40 + 2] = INFINITY;
  for (const GateScore score : {GateScore::sigmoid, GateScore::softmax}) {
    c.options.score = score;
    const Chosen got = run_kernel(c);
    for (std::size_t i = 0; i < got.topk_idx.size(); ++i) {
      const bool bad = i / 5 % 2 == 1;
      EXPECT_EQ(got.topk_idx[i], bad ? -1 : static_cast<std::int64_t>(i % 5)) << i;
      EXPECT_EQ(std::isnan(got.topk_weights[i]), bad) << i;
    }
  }
}

TEST(GateKernel, HasALimitOfExperts) {
  GateCase c{.options = {.experts = Gate::kMostExperts, .top_k = kMaxTopK},
             .logits = std::vector<float>(Gate::kMostExperts),
             .bias = {},
             .tokens = 1};
  for (std::size_t e = 0; e < c.logits.size(); ++e) c.logits[e] = static_cast<float>(e % 977);
  const Gated want = test::gate_on_host(c);
  const Chosen got = run_kernel(c);
  EXPECT_EQ(std::memcmp(got.topk_idx.data(), want.topk_idx.data, want.topk_idx.bytes()), 0);
  Gate too_many{};
  too_many.tokens = too_many.groups = 1;
  too_many.experts = Gate::kMostExperts + 1;
  EXPECT_EQ(launch_gate(too_many, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace shoal::ep::cuda
