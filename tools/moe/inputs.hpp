// SPDX-License-Identifier: Apache-2.0
// inputs.hpp: tokens, router logits and bias of one PE, from .npy files or from a seed.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/numeric/float16.hpp"
#include "moe/options.hpp"

namespace shoal::moe {

struct Inputs {
  std::vector<ep::numeric::Bf16> x;  ///< [tokens of this PE, hidden]
  std::vector<float> logits;         ///< [tokens of this PE, experts]
  std::vector<float> bias;           ///< [experts]
};

/// The sizes from options and files. Opens the files but reads only their headers. Throws
/// Error{invalid_argument} with the file's name if they disagree, or if the experts cannot be
/// spread evenly over `pes`.
Shape resolve_shape(const Options& options, std::int32_t pes);

/// The inputs of PE `pe`. Throws Error{invalid_argument} with file, token and column for a value
/// that is not finite.
///
/// Generated inputs: tokens are standard normal; logits are standard normal minus skew * ln(1 +
/// popularity rank of the expert), so skew 0 spreads the load evenly and 1 follows Zipf's law; the
/// bias is small and uniform. With a router file and no bias file the bias is 0.
Inputs load_inputs(const Options& options, const Shape& shape, std::int32_t pe);

}  // namespace shoal::moe
