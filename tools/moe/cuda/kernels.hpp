// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: what the experts do on a GPU besides matrix products: rows to where the products
// want them and back.
//
// Products take the rows of one expert as one matrix. So rows are copied into a packed array,
// expert after expert, as bfloat16; first_row[e] says where expert e's begin. All calls only put
// kernels on the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "shoal/tensor.hpp"

namespace shoal::moe {

/// Where packed rows lie. All in GPU memory.
struct Packed {
  std::uint16_t* x = nullptr;               ///< bfloat16 [rows, hidden]
  const float* y = nullptr;                 ///< [rows, hidden]: the answers
  const std::int32_t* first_row = nullptr;  ///< [local experts]
};

/// Loads the code of all kernels: later that might wait for kernels of other PEs that wait for this
/// one.
void load_kernels();

/// x: bfloat16 [tokens, hidden] to codes: float8_e4m3 [tokens, hidden] and scales: float32 [tokens,
/// groups of 128], as numeric::quantize_row.
void quantize_rows(cudaStream_t stream, const TensorView& x, const TensorView& codes,
                   const TensorView& scales);

/// Normal mode. slots: int32 [rows, top_k] of the packed row for each row and choice; set where
/// topk_idx is not -1. In the order of the rows for each expert. topk_idx: int64 [rows, top_k],
/// rows strided.
void index_rows(cudaStream_t stream, const TensorView& topk_idx, const std::int32_t* first_row,
                std::int64_t experts, std::int32_t* slots);
/// Packs each row for all of its experts here. x: bfloat16, or float8_e4m3 with float32 scales
/// [rows, groups].
void pack_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
               const TensorView& topk_idx, const std::int32_t* slots, const Packed& packed);
/// target[row] = sum of weight * packed.y over its experts here, in ascending order of choices, in
/// float32, rounded once. weights: float32 [rows, top_k], rows strided. target: bfloat16 [rows,
/// hidden].
void unpack_rows(cudaStream_t stream, const Packed& packed, const TensorView& topk_idx,
                 const TensorView& weights, const std::int32_t* slots, const TensorView& target);

/// Low latency. x: [experts, capacity, hidden] of which counts[e] rows are valid, any strides but
/// of the channels; scales: float32 [experts, capacity, groups], any strides.
void pack_expert_rows(cudaStream_t stream, const TensorView& x, const TensorView& scales,
                      const std::int32_t* counts, const Packed& packed);
/// target: bfloat16, shaped and strided as x.
void unpack_expert_rows(cudaStream_t stream, const Packed& packed, const std::int32_t* counts,
                        const TensorView& target);

/// inner[r, f] = silu(gate_up[r, f]) * gate_up[r, width + f], rounded to bfloat16. gate_up: float32
/// [rows, 2 * width].
void activate(cudaStream_t stream, const float* gate_up, std::uint16_t* inner, std::int64_t rows,
              std::int64_t width);

}  // namespace shoal::moe
