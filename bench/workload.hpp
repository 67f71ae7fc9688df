// SPDX-License-Identifier: Apache-2.0
// workload.hpp: the workload of all benchmarks: shapes, random routing and rows, the experts for
// the checks, and plain memcpy.
//
// Shoal and its baselines use the same data, a function of (seed, PE, set), so results can be
// compared byte by byte.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ep/plan/combine_error.hpp"
#include "ep/plan/partition.hpp"
#include "shoal/ep/options.hpp"
#include "shoal/tensor.hpp"

namespace shoal::bench {

struct Shape {
  std::int64_t tokens = 1024;  ///< per PE
  std::int64_t hidden = 7168;
  std::int64_t top_k = 8;
  std::int64_t experts = 256;
  std::int64_t low_latency_tokens = 32;
  /// Timed pairs of normal mode; low latency runs eight times as many.
  std::int64_t iterations = 24;
  std::int64_t dropped = 4;  ///< untimed pairs at the start of a chain
  std::uint64_t seed = 1;

  std::int64_t low_latency_iterations() const { return 8 * iterations; }
  std::size_t row_bytes() const { return static_cast<std::size_t>(hidden) * 2; }
  /// The experts of each of `pes` PEs, as a group spreads them.
  ep::detail::Partition spread(std::int32_t pes) const {
    return {static_cast<std::int32_t>(experts), pes, {}};
  }
  /// Throws Error{invalid_argument} with the option that is out of range.
  void validate() const;
};

/// Inputs of one operation on one PE.
struct Batch {
  std::int64_t tokens = 0;
  Tensor x;         ///< bfloat16 [tokens, hidden]
  Tensor topk_idx;  ///< int64 [tokens, top_k], distinct experts in each row
  Tensor weights;   ///< float32 [tokens, top_k], positive; each row sums to 1

  const std::uint16_t* row(std::int64_t token) const {
    return x.as<std::uint16_t>() + token * x.shape[1];
  }
};
Batch make_batch(const Shape& shape, std::int64_t tokens, std::int32_t pe, std::int32_t set);

/// Number of batches that chains rotate through, so that no cache holds their inputs.
inline constexpr std::int32_t kBatches = 3;
std::vector<Batch> make_batches(const Shape& shape, std::int64_t tokens, std::int32_t pe);

/// The factor by which `expert` multiplies a row. Factors differ in size and sign, so rows at a
/// wrong expert cannot cancel out.
float expert_factor(std::int64_t expert);

/// The expert output of a rank for one row of normal mode: target = x times the weighted sum of the
/// factors of its experts. topk_idx is [top_k], numbered from first_expert; -1: an expert
/// elsewhere.
void apply_experts(std::uint16_t* target, const std::uint16_t* x, const std::int64_t* topk_idx,
                   const float* weights, std::int64_t first_expert, const Shape& shape);
/// The output of one expert for one row of low-latency mode.
void apply_expert(std::uint16_t* target, const std::uint16_t* x, std::int64_t expert,
                  const Shape& shape);

/// Relative error of rows that travel in e4m3 (or in LogFMT, which is finer) and become bfloat16.
inline constexpr double kQuantizedRowError = ep::detail::kE4m3Rounding + ep::detail::kBf16Rounding;
/// The same in NVFP4, as a fraction of the largest of the 16 values that share a scale: half of the
/// largest step of e2m1, for a scale that e4m3 has rounded.
inline constexpr double kNvfp4RowError = 17.0 / 96 + ep::detail::kBf16Rounding;

/// Checks that `output` [tokens, hidden] is the weighted sum of the expert output for `batch`, up
/// to `error`. Throws Error{mismatch} with token and channel otherwise.
void check_output(const Batch& batch, const std::uint16_t* output, const Shape& shape,
                  const ep::detail::CombineError& error, const char* what);

/// Seconds of the clock, and of processor time of this process. Processor time is the cost of an
/// operation on a machine shared with other programs, or with more PEs than cores; it includes
/// waits that poll.
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

/// Seconds per copy of `bytes` bytes on this PE, the mean of `iterations`, with plain memcpy
/// between two large buffers. `barrier` makes all PEs start together.
Times time_memcpy(std::size_t bytes, std::int64_t iterations, const std::function<void()>& barrier);

}  // namespace shoal::bench
