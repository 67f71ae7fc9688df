// SPDX-License-Identifier: Apache-2.0
// gates.hpp: inputs of a gate that reach all of its branches, for kernels on a fake and a real GPU.
#pragma once

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shoal/ep/gate.hpp"
#include "shoal/ep/options.hpp"

namespace shoal::test {

struct GateCase {
  ep::GateOptions options;
  std::vector<float> logits, bias;  ///< bias: empty: none
  std::int64_t tokens = 0;

  std::string describe() const {
    return std::to_string(tokens) + " tokens, " + std::to_string(options.experts) + " experts, " +
           std::to_string(options.groups_kept) + " of " + std::to_string(options.groups) +
           " groups, top-" + std::to_string(options.top_k) +
           (options.score == ep::GateScore::softmax ? ", softmax" : ", sigmoid") +
           (bias.empty() ? "" : ", bias") + (options.normalize ? ", normalized" : "");
  }
};

/// Case `number` of any number of cases, the same in every run: up to `most_experts` experts, equal
/// logits, masked experts, and scores that underflow among them.
inline GateCase gate_case(unsigned number, std::int64_t most_tokens, std::int32_t most_experts) {
  std::mt19937 random(number);
  const auto below = [&](std::int64_t n) { return static_cast<std::int64_t>(random() % n); };
  constexpr std::int32_t kGroups[] = {1, 1, 2, 3, 4, 8, 16, 40};
  constexpr std::int32_t kSizes[] = {1, 2, 3, 16, 31, 32, 33, 64};
  GateCase made;
  ep::GateOptions& o = made.options;
  do {
    o.groups = kGroups[below(std::size(kGroups))];
    o.experts = o.groups * kSizes[below(std::size(kSizes))];
  } while (o.experts > most_experts);
  o.groups_kept = static_cast<std::int32_t>(1 + below(o.groups));
  const std::int64_t candidates = std::int64_t{o.groups_kept} * (o.experts / o.groups);
  o.top_k = static_cast<std::int32_t>(1 + below(std::min<std::int64_t>(ep::kMaxTopK, candidates)));
  o.score = number % 2 == 0 ? ep::GateScore::sigmoid : ep::GateScore::softmax;
  o.normalize = below(3) != 0;
  o.routed_scaling = below(2) != 0 ? 1.0f : 2.5f;
  made.tokens = below(most_tokens + 1);
  std::normal_distribution<float> normal(0, below(4) == 0 ? 60.0f : 2.0f);
  const bool coarse = below(3) == 0;  // many equal scores
  for (std::int64_t i = 0; i < made.tokens * o.experts; ++i) {
    float logit = normal(random);
    if (coarse) logit = static_cast<float>(static_cast<int>(logit));
    if (number % 5 == 4 && below(4) == 0) logit = -std::numeric_limits<float>::infinity();
    made.logits.push_back(logit);
  }
  if (below(2) != 0)
    for (std::int32_t e = 0; e < o.experts; ++e) made.bias.push_back(0.1f * normal(random));
  return made;
}

/// Result of the host for a case.
inline ep::Gated gate_on_host(const GateCase& c) {
  const auto experts = std::int64_t{c.options.experts};
  return ep::gate(ConstTensorView(c.logits.data(), DataType::float32, {c.tokens, experts}),
                  c.bias.empty() ? ConstTensorView()
                                 : ConstTensorView(c.bias.data(), DataType::float32, {experts}),
                  c.options);
}

}  // namespace shoal::test
