// SPDX-License-Identifier: Apache-2.0
// inputs.hpp: the options of a run, its shape, and its inputs: tokens, router logits, bias and
// expert weights of one PE, from files or from a seed.
//
// A file holds the float32 values of an array in row-major order and nothing else, as NumPy's
// tofile() writes them; the options give the shape. A PE reads only its part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ep/numeric/float16.hpp"
#include "shoal/ep/gate.hpp"

namespace shoal::moe {

enum class Mode { normal, low_latency };
enum class RowFormat { bf16, fp8 };          ///< of dispatched rows; combined rows are bfloat16
enum class Backend { host, cuda, as_heap };  ///< where heap, rows and experts are

struct Options {
  std::string tokens_file, router_file, bias_file, weights_file, output_file, json_file;
  std::int64_t tokens_per_pe = 128, hidden = 1024, ffn = 64;
  std::int32_t experts = 256, groups = 8, groups_kept = 4, top_k = 8;
  float routed_scaling = 1.0f;
  double skew = 0.5;
  std::uint64_t seed = 1;
  int iterations = 3;
  Mode mode = Mode::normal;
  RowFormat row_format = RowFormat::bf16;
  Backend backend = Backend::as_heap;
  std::int32_t pes = 0;  ///< threads of this process; 0: this process is one PE
  bool check = true;
  bool inject_error = false;
  bool ascii = false;

  bool on_gpu() const { return backend == Backend::cuda; }
};

/// Sizes of a run. Tokens and experts are spread over the PEs in order; the first PEs take one more
/// if the numbers do not divide.
struct Shape {
  std::int64_t tokens = 0;  ///< of all PEs
  std::int64_t hidden = 0;
  std::int64_t ffn = 0;  ///< inner width of an expert
  std::int32_t pes = 1;
  std::int64_t nodes = 1;  ///< of the group; known after the first run of the layer
  ep::GateOptions gate;

  std::int32_t first_expert(std::int32_t pe) const {
    return static_cast<std::int32_t>(first(gate.experts, pe));
  }
  std::int32_t experts_of(std::int32_t pe) const { return first_expert(pe + 1) - first_expert(pe); }
  std::int64_t first_token(std::int32_t pe) const { return first(tokens, pe); }
  std::int64_t tokens_of(std::int32_t pe) const { return first_token(pe + 1) - first_token(pe); }
  std::int64_t max_tokens() const { return std::max<std::int64_t>(1, tokens_of(0)); }

 private:
  std::int64_t first(std::int64_t count, std::int32_t pe) const {
    return count / pes * pe + std::min<std::int64_t>(pe, count % pes);
  }
};

struct Inputs {
  std::vector<ep::numeric::Bf16> x;  ///< [tokens of this PE, hidden]
  std::vector<float> logits;         ///< [tokens of this PE, experts]
  std::vector<float> bias;           ///< [experts]
};

/// The sizes from options and files, of which only the lengths are read. Throws
/// Error{invalid_argument} with the file's name if they disagree.
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
