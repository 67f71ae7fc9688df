// SPDX-License-Identifier: Apache-2.0
// workload.hpp: what the benchmarks move: shapes, random routing and rows, the experts that the
// checks apply, and plain memcpy.
//
// The same for Shoal and for its baselines, so that they can be compared byte by byte. Everything
// is a function of (seed, PE, set).
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "shoal/tensor.hpp"

namespace shoal::bench {

struct Shape {
  std::int64_t tokens = 1024;  ///< per PE
  std::int64_t hidden = 7168;
  std::int64_t top_k = 8;
  std::int64_t experts = 256;
  std::int64_t low_latency_tokens = 32;
  std::int64_t iterations = 24;  ///< timed; normal mode. Low latency does eight times as many.
  std::int64_t dropped = 4;      ///< not timed, at the start of a chain
  std::uint64_t seed = 1;
  std::int32_t load_of =
      0;  ///< members of the group whose load the PEs carry (folded_shape); 0: of their own

  std::int64_t low_latency_iterations() const { return 8 * iterations; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(hidden) * 2; }
  /// Throws Error{invalid_argument} naming the option that does not fit `pes`.
  void validate(std::int32_t pes) const;
};

/// Inputs of one operation on one PE.
struct Batch {
  std::int64_t tokens = 0;
  Tensor x;         ///< bfloat16 [tokens, hidden]
  Tensor topk_idx;  ///< int64 [tokens, top_k], distinct experts in each row; -1: none, in folded
                    ///< batches
  Tensor weights;   ///< float32 [tokens, top_k], positive, each row sums to 1; in folded batches to
                    ///< less

  const std::uint16_t* row(std::int64_t token) const {
    return x.as<std::uint16_t>() + token * x.shape[1];
  }
};
Batch make_batch(const Shape& shape, std::int64_t tokens, std::int32_t pe, std::int32_t set);
/// The same without x: where the tokens go.
Batch make_routing(const Shape& shape, std::int64_t tokens, std::int32_t pe, std::int32_t set);

/// The load of a group of `large.load_of` members on fewer: each sends to the others, and gets from
/// them, the rows that a member of the larger group would, and has as many experts. A token of the
/// larger group becomes a token for each other member that it goes to; its own experts go with the
/// first of them. What differs: combine adds up fewer answers at a time, and writes more sums.
Shape folded_shape(const Shape& large, std::int32_t pes);
/// How many tokens so many of the larger group become, on average.
std::int64_t folded_tokens(const Shape& large, std::int64_t tokens);
/// As make_batch, of `shape` = folded_shape(..).
Batch make_folded_batch(const Shape& shape, std::int64_t tokens, std::int32_t pe, std::int32_t pes,
                        std::int32_t set);

/// Chains rotate through so many batches, so that no cache holds their inputs.
inline constexpr std::int32_t kBatches = 3;
std::vector<Batch> make_batches(const Shape& shape, std::int64_t tokens, std::int32_t pe);

/// Expert `expert` multiplies a row by this. The factors differ in size and sign, so that rows at a
/// wrong expert cannot cancel out.
float expert_factor(std::int64_t expert);

/// What a member's experts answer to a row of normal mode: target = x times the weighted sum of the
/// factors of its experts. topk_idx: [top_k], numbered from first_expert; -1: elsewhere.
void apply_experts(std::uint16_t* target, const std::uint16_t* x, const std::int64_t* topk_idx,
                   const float* weights, std::int64_t first_expert, const Shape& shape);
/// One expert's answer to a row of low-latency mode.
void apply_expert(std::uint16_t* target, const std::uint16_t* x, std::int64_t expert,
                  const Shape& shape);

/// What rounding may do to an answer, as a share of the sum of the magnitudes of its terms: every
/// answer and partial sum was rounded to the 8 bits of bfloat16, a quantised row to the 4 of e4m3.
inline constexpr float kTolerance = 0x1p-7f, kQuantizedTolerance = 0x1.4p-4f;
/// Where a token may have a single expert, so that three roundings do not average out.
inline constexpr float kFewTermsTolerance = 0x1.8p-7f;

/// Whether `output` [tokens, hidden] is what the experts answer to `batch`, up to the rounding of
/// bfloat16; `quantized`: rows went through FP8. Throws Error{mismatch} naming token and channel
/// when not.
void check_output(const Batch& batch, const std::uint16_t* output, const Shape& shape,
                  bool quantized, const char* what);

/// Seconds by the clock, and of processor time of this process. The latter is what an operation
/// costs where other programs, or more PEs than cores, share the machine; it includes waiting as
/// far as that is done by polling.
struct Times {
  double wall = 0, cpu = 0;

  Times& operator+=(const Times& other) {
    wall += other.wall;
    cpu += other.cpu;
    return *this;
  }
  friend Times operator-(const Times& a, const Times& b) {
    return {a.wall - b.wall, a.cpu - b.cpu};
  }
  friend Times operator/(const Times& a, double n) { return {a.wall / n, a.cpu / n}; }
};
Times now();

/// Seconds that one copy of `bytes` bytes takes on this PE, mean of `iterations`, with plain memcpy
/// between two large buffers. `barrier` makes all PEs start together.
Times time_memcpy(std::size_t bytes, std::int64_t iterations, const std::function<void()>& barrier);

}  // namespace shoal::bench
