// SPDX-License-Identifier: Apache-2.0
// shoal/ep/gate.hpp: from router logits to top-k indices and weights, as in DeepSeek-V3
// (DeepSeek-V3 Technical Report, section 2.1.2).
//
// A pure function, for programs without a gate of their own. Per token:
// 1. score = sigmoid(logit), or softmax over the experts. selection = score + bias of the expert.
// 2. Experts form groups of equal size. The value of a group is the sum of its two best selections.
//    The best `groups_kept` groups are kept.
// 3. The `top_k` experts of the kept groups with the best selections are chosen. Among equal
//    selections, and equal groups, the lower index comes first.
// 4. weight = score (without the bias), divided by the sum of the chosen scores when `normalize`,
//    times `routed_scaling`.
// Scores, selections and group values are float32, rounded once from float64. Indices and weights
// have the same bits on every host and GPU.
//
//   const auto gated =
//       shoal::ep::gate(logits, {}, {.experts = 256, .groups = 8, .groups_kept = 4});
//   const auto routing = group.route(gated.topk_idx);
//
// On GPUs the caller gives the arrays, and one kernel fills them:
//
//   shoal::ep::gate(logits, {}, {.experts = 256, .groups = 8, .groups_kept = 4},
//                   {.topk_idx = topk_idx, .topk_weights = topk_weights, .stream = stream});
#pragma once

#include <cstdint>

#include <shoal/error.hpp>
#include <shoal/stream.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

enum class GateScore : std::uint8_t { sigmoid = 0, softmax };

/// Options of gate.
struct GateOptions {
  std::int32_t experts = 256;    ///< 1 to 65,536
  std::int32_t groups = 1;       ///< a divisor of `experts`
  std::int32_t groups_kept = 1;  ///< 1 to `groups`
  std::int32_t top_k = 8;        ///< 1 to kMaxTopK, and at most the experts of the kept groups
  GateScore score = GateScore::sigmoid;
  bool normalize = true;        ///< the weights of a token sum to routed_scaling
  float routed_scaling = 1.0f;  ///< finite, above 0

  /// Throws Error{invalid_argument} naming the field, its value and the allowed range.
  void validate() const;
};

/// The experts and weights of each token. Both tensors are always set, in ordinary host memory.
struct Gated {
  Tensor topk_idx;      ///< int64 [tokens, top_k], in descending order of selection
  Tensor topk_weights;  ///< float32 [tokens, top_k], in the same order
};

/// Arrays that gate fills for the caller, contiguous, in the memory of the logits.
struct GateArrays {
  TensorView topk_idx{};      ///< int64 [tokens, top_k]
  TensorView topk_weights{};  ///< float32 [tokens, top_k]
  /// Runs the kernel; nullptr: CUDA's default stream. Without effect on the host.
  Stream stream = nullptr;
};

/// Applies the gate to every token; tensors in host memory.
///
/// logits: float32 [tokens, experts], contiguous, no NaN and no +infinity; -infinity excludes an
/// expert as long as enough others remain. bias: float32 [experts], finite; undefined: none.
/// Throws Error{invalid_argument} as validate does, for other shapes and dtypes, and for a NaN,
/// naming the token and the expert.
[[nodiscard]] Gated gate(const ConstTensorView& logits, const ConstTensorView& bias,
                         const GateOptions& options);

/// Applies the gate and writes the results to arrays of the caller; tensors all on the host or all
/// on one GPU.
///
/// On GPUs the call returns when its kernel is queued on the stream, which can be captured. It does
/// not read values: a token with a NaN or +infinity gets indices of -1 and weights of NaN. Throws
/// Error{invalid_argument} as the other form does, and for arrays of another shape, dtype or place;
/// Error{unsupported} for more than 4096 experts on a GPU and in a build without CUDA.
void gate(const ConstTensorView& logits, const ConstTensorView& bias, const GateOptions& options,
          const GateArrays& to);

}  // namespace shoal::ep
