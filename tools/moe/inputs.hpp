// SPDX-License-Identifier: Apache-2.0
// inputs.hpp: tokens, router logits, bias and expert weights of one PE, from files or from a seed.
//
// A file holds the float32 values of an array in row-major order and nothing else, as NumPy's
// tofile() writes them; the options give the shape. A PE reads only its part.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ep/numeric/float16.hpp"
#include "moe/options.hpp"

namespace shoal::moe {

struct Inputs {
  std::vector<ep::numeric::Bf16> x;  ///< [tokens of this PE, hidden]
  std::vector<float> logits;         ///< [tokens of this PE, experts]
  std::vector<float> bias;           ///< [experts]
};

/// The sizes from options and files, of which only the lengths are read. Throws
/// Error{invalid_argument} with the file's name if they disagree, or if the experts cannot be
/// spread evenly over `pes`.
Shape resolve_shape(const Options& options, std::int32_t pes);

/// The inputs of PE `pe`. Throws Error{invalid_argument} with file, row and column for a value that
/// is not finite.
///
/// Generated inputs: tokens are standard normal; logits are standard normal minus skew * ln(1 +
/// popularity rank of the expert), so skew 0 spreads the load evenly and 1 follows Zipf's law; the
/// bias is small and uniform. With a router file and no bias file the bias is 0.
Inputs load_inputs(const Options& options, const Shape& shape, std::int32_t pe);

/// The matrices of expert `expert` one after another: gate and up [hidden, ffn], down [ffn,
/// hidden]. Values are those of the file, or uniform, rounded to bfloat16.
std::vector<float> load_weights(const Options& options, const Shape& shape, std::int64_t expert);

}  // namespace shoal::moe
