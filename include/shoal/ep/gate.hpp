// SPDX-License-Identifier: Apache-2.0
// shoal/ep/gate.hpp: from router logits to top-k indices and weights, as DeepSeek-V3 does it
// (requirement E4).
//
// A pure function on the host, for programs that have no gate of their own: examples, tests,
// shoal-moe. Per token:
//   score = sigmoid(logit) (or softmax over the experts), selection = score + bias of the expert;
//   experts come in groups of equal size; a group's score is the sum of its two best selections;
//   the best groups are kept; the top_k experts of the kept groups with the best selection are
//   chosen, the lower index first among equals (groups likewise); weight = score, without the bias;
//   divided by the sum of the chosen ones if `normalize`; times `routed_scaling`.
// Scores, selections and group scores are float32 values; so equal inputs give equal choices
// everywhere.
#pragma once

#include <cstdint>

#include <shoal/error.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

enum class GateScore : std::uint8_t { sigmoid = 0, softmax };

struct GateOptions {
  std::int32_t experts = 256;
  std::int32_t groups = 1;       ///< divides experts
  std::int32_t groups_kept = 1;  ///< 1 .. groups
  std::int32_t top_k = 8;        ///< 1 .. 32, and at most the experts of the kept groups
  GateScore score = GateScore::sigmoid;
  bool normalize = true;        ///< weights of a token sum to routed_scaling
  float routed_scaling = 1.0f;  ///< finite, above 0

  /// Throws Error{invalid_argument} naming the field, its value and what is allowed.
  void validate() const;
};

struct Gated {
  Tensor topk_idx;      ///< int64 [tokens, top_k], by descending selection
  Tensor topk_weights;  ///< float32 [tokens, top_k], in the same order
};

/// logits: float32 [tokens, experts], contiguous; -infinity masks an expert out while others
/// remain; no NaN, no infinity. bias: float32 [experts], finite; or not defined: no bias. Throws
/// Error{invalid_argument} as validate, for other shapes and dtypes, and for a NaN, naming the
/// token and the expert.
Gated gate(const TensorView& logits, const TensorView& bias, const GateOptions& options);

}  // namespace shoal::ep
