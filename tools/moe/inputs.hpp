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

/// The sizes that options and files agree on. Opens the files but reads only their headers. Throws
/// Error{invalid_argument} where they do not agree, naming the file, or where the experts cannot be
/// spread over `pes`.
Shape resolve_shape(const Options& options, std::int32_t pes);

/// The share of PE `pe`. Throws Error{invalid_argument} for a value that is not finite, naming
/// file, token and column.
///
/// Made from the seed: tokens are standard normal; logits are standard normal minus skew * ln(1 +
/// popularity rank of the expert), so that skew 0 spreads the load evenly and 1 follows Zipf's law;
/// the bias is small and uniform. With a router file and no bias file the bias is 0.
Inputs load_inputs(const Options& options, const Shape& shape, std::int32_t pe);

}  // namespace shoal::moe
