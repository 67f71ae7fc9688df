// SPDX-License-Identifier: Apache-2.0
// reference.hpp: computes the layer again in one process and in float64, and bounds the error of a
// result.
//
// For a token with experts k: reference = sum of w_k * expert_k(x), with weights of experts in
// bfloat16, and x as dispatch delivers it: bfloat16, or the e4m3 values and scales of the FP8
// format. The run differs only by roundings, each of which has a bound:
//
//   combine: at most levels * 2^-8 * sum |w_k * expert_k(x)| + 2^-8 * |reference|, with the levels
//   of ep/plan/combine_error.hpp: expert and rank in low-latency mode and on GPUs; rank in normal
//   mode on the host; and in normal mode node where the group is on several nodes of several PEs.
//   float32: a sum of n terms has an error of at most n * 2^-24 of the size of its terms, here
//   (hidden + ffn) * 2^-24 of the row's root mean square.
//
// The bound holds for every element. A result passes if no compared element exceeds it and the
// counts of the routing match. The reference takes longer than the run, so with large shapes only a
// sample of the tokens of each PE is compared with it; counts are those of all tokens.
#pragma once

#include <string>

#include "moe/exchange.hpp"
#include "moe/inputs.hpp"
#include "moe/layer.hpp"
#include "shoal/ep/gate.hpp"

namespace shoal::moe {

/// The comparison for the tokens of one PE.
struct Check {
  double worst = 0;          ///< largest error of an element, relative to its bound
  double squared_error = 0;  ///< sum over all compared elements
  double squared_reference = 0;
  std::int64_t tokens = 0;     ///< compared with the reference
  std::int64_t misrouted = 0;  ///< counts of the routing that differ
  bool passed() const { return worst <= 1 && misrouted == 0; }
};

/// The bound in words, for the report.
std::string describe_tolerance(const Options& options, const Shape& shape);

/// Compares `output`, bfloat16 [tokens of this PE, hidden], or a sample of its rows.
Check check_output(const Options& options, const Shape& shape, const Inputs& inputs,
                   const ep::Gated& gated, const Tensor& output);

/// Counts rows per PE and tokens per expert of the layer's last run that differ from this
/// function's own count. Collective.
std::int64_t count_misrouted(const Peers& peers, const Shape& shape, const Layer& layer);

}  // namespace shoal::moe
