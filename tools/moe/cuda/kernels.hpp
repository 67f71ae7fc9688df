// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: the kernels of the experts besides matrix products: packing rows, unpacking expert
// output, quantisation and activation.
//
// A product takes the rows of one expert as one matrix. Packing copies rows into an array sorted by
// expert, as bfloat16; expert e's rows begin at first_row[e]. All functions only queue kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "shoal/tensor.hpp"

namespace shoal::moe {

/// The packed rows and expert output. All pointers are to GPU memory.
struct Packed {
  std::uint16_t* x = nullptr;               ///< bfloat16 [rows, hidden]
  const float* y = nullptr;                 ///< expert output [rows, hidden]
  const std::int32_t* first_row = nullptr;  ///< [local experts]
};

/// Loads the code of all kernels. Loading it later could wait for kernels of other PEs that wait
/// for this PE.
void load_kernels();

/// Quantises x, bfloat16 [tokens, hidden], to codes, float8_e4m3 [tokens, hidden], and scales,
/// float32 [tokens, groups of 128 channels], like numeric::quantize_row.
void quantize_rows(cudaStream_t stream, const TensorView& x, const TensorView& codes,
                   const TensorView& scales);

/// Normal mode: sets slots, int32 [rows, top_k], to the packed row of each row and top-k slot,
/// where topk_idx is not -1. Each expert's packed rows keep the order of the rows. topk_idx is
/// int64 [rows, top_k], with strided rows.
void index_rows(cudaStream_t stream, const TensorView& topk_idx, const std::int32_t* first_row,
                std::int64_t experts, std::int32_t* slots);
/// Copies each row to its packed rows, one per local expert. x is bfloat16, or float8_e4m3 with
/// float32 scales [rows, groups].
void pack_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
               const TensorView& topk_idx, const std::int32_t* slots, const Packed& packed);
/// target[row] = sum of weight * packed.y over the row's local experts, in ascending top-k slots,
/// in float32, rounded once. weights is float32 [rows, top_k], with strided rows; target is
/// bfloat16 [rows, hidden].
void unpack_rows(cudaStream_t stream, const Packed& packed, const TensorView& topk_idx,
                 const TensorView& weights, const std::int32_t* slots, const TensorView& target);

/// Low latency: packs the counts[e] valid rows of each expert. x is [experts, capacity, hidden]
/// with contiguous channels and any other strides; scales is float32 [experts, capacity, groups]
/// with any strides.
void pack_expert_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
                      const std::int32_t* counts, const Packed& packed);
/// Copies expert output to target: bfloat16, with the shape and strides of x.
void unpack_expert_rows(cudaStream_t stream, const Packed& packed, const std::int32_t* counts,
                        const TensorView& target);

/// inner[r, f] = silu(gate_up[r, f]) * gate_up[r, width + f], rounded to bfloat16. gate_up is
/// float32 [rows, 2 * width].
void activate(cudaStream_t stream, const float* gate_up, std::uint16_t* inner, std::int64_t rows,
              std::int64_t width);

}  // namespace shoal::moe
