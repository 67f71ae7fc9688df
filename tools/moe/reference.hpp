// SPDX-License-Identifier: Apache-2.0
// reference.hpp: the layer again, in one process and in float64, and how far from it a result may
// be.
//
// For a token with experts k: reference = sum of w_k * expert_k(x), with x as dispatch delivers it:
// bfloat16, or the e4m3 values and scales that the FP8 format defines. What the run adds is
// rounding alone, and each rounding has a bound:
//   rows       each row that is combined is rounded to bfloat16, 2^-8 of its value. In normal mode
//   a row is the sum
//              over the experts of a PE; in low-latency mode rows of single experts are rounded,
//              and their sum over a PE again: `row_roundings` is 1 or 2. Together at most
//              row_roundings * 2^-8 * sum |w_k * expert_k(x)|.
//   output     rounded once more: 2^-8 * |reference|.
//   float32    experts and sums run in float32: a sum of n terms is off by at most n * 2^-24 of the
//   size of its terms,
//              here (hidden + ffn) * 2^-24 of the row's root mean square.
// Experts on GPUs multiply bfloat16 with float32 sums. Weights, and tokens that came as FP8, are
// rounded to bfloat16 beforehand: the reference takes them so rounded. What remains is
//   inner      the inner values h_f = silu(gate x) . (up x) are rounded to bfloat16 before the last
//   product:
//              2^-8 * inner, inner = sum over k and f of |w_k * down_f * h_f|;
//   float32    tensor cores cut off instead of rounding: (hidden + ffn) * 2^-22 of the root mean
//   square of inner.
// The bound is for every element; a result passes when no element exceeds it, and when all counts
// that routing gives, and on GPUs in normal mode the weights after a way there and back, are exact.
#pragma once

#include <functional>
#include <string>

#include "moe/exchange.hpp"
#include "moe/inputs.hpp"
#include "moe/layer.hpp"
#include "shoal/ep/gate.hpp"

namespace shoal::moe {

/// The comparison of one PE's tokens.
struct Check {
  double worst = 0;          ///< largest error of an element, as a part of its bound
  double squared_error = 0;  ///< sums over all elements
  double squared_reference = 0;
  double squared_quantization =
      0;  ///< difference between the references of quantised and of unquantised tokens
  std::int64_t differing = 0;  ///< counts and weights that must be exact and are not
  bool passed() const { return worst <= 1 && differing == 0; }
};

/// The bound in words, for people.
std::string describe_tolerance(const Options& options, const Shape& shape);

/// Compares `output`, bfloat16 [tokens of this PE, hidden]. `progress(done, total)` is called now
/// and then.
Check check_output(const Options& options, const Shape& shape, const Inputs& inputs,
                   const ep::Gated& gated, const Tensor& output,
                   const std::function<void(std::int64_t, std::int64_t)>& progress);

/// Rows per PE and tokens per expert of the layer's last run that differ from those counted here.
/// Collective.
std::int64_t count_misrouted(const Peers& peers, const Shape& shape, const Layer& layer);

}  // namespace shoal::moe
