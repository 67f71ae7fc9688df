// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: GPU work of the benchmark other than Shoal's operations: inputs, experts, checks.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ep/plan/combine_error.hpp"
#include "shoal/tensor.hpp"

namespace shoal::bench::gpu {

/// Throws Error{system} with the name and text of a CUDA error, and what failed.
void check(cudaError_t status, const char* what);

/// x: bfloat16 [tokens, hidden] to quantized: float8_e4m3 [tokens, hidden] with scales: float32
/// [tokens, groups of 128].
void quantize(cudaStream_t stream, const TensorView& x, const TensorView& quantized,
              const TensorView& scales);

/// Normal mode: outputs[row] = the row times the sum of weight * factor over its experts here. x:
/// bfloat16 or float8_e4m3 [rows, hidden] with scales; topk_idx and weights as dispatch returns
/// them; row_count: int32 [1]; factors: float32 [local experts]. outputs may be x itself.
struct NormalExperts {
  TensorView x, scales, topk_idx, weights, row_count, factors, outputs;
};
void run_experts(cudaStream_t stream, const NormalExperts& arguments);

/// Low latency: outputs[e, row] = x[e, row] * factors[e] for the counts[e] rows of each local
/// expert.
struct LowLatencyExperts {
  TensorView x, scales, counts, factors, outputs;
};
void run_experts(cudaStream_t stream, const LowLatencyExperts& arguments);

/// Finds an element of out that differs from x * factor[token] by more than (error.of_terms *
/// size[token] * |largest| + error.of_result * |factor[token] * x|), where `largest` is the largest
/// x of the `block` channels that share a scale. x, out: bfloat16 [tokens, hidden]; factor, size:
/// float32 [tokens]. Lowers *first_bad (uint64 in device memory) to its index.
void compare(cudaStream_t stream, const TensorView& x, const TensorView& out,
             const TensorView& factor, const TensorView& size,
             const ep::detail::CombineError& error, std::int64_t block, std::uint64_t* first_bad);

/// Occupies one thread block for a time: a gap between the two phases of an operation.
void pause(cudaStream_t stream, std::int64_t nanoseconds);

}  // namespace shoal::bench::gpu
