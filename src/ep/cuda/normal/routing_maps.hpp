// SPDX-License-Identifier: Apache-2.0
// routing_maps.hpp: parameters and launchers of routing_maps.cu.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace shoal::ep::cuda {

// Arrays in memory of the GPU, without gaps.

/// Counts tokens by rank and expert. A token counts once per rank.
struct CountTokens {
  static constexpr std::int32_t kMostRanks = 128, kMostExperts = 8192;

  const void* topk_idx;  ///< int64 or int32 [tokens][top_k]; not 0 to experts - 1: no expert
  bool is_int64;
  std::int32_t tokens, top_k, experts, ranks;
  std::int32_t* per_rank;    ///< [ranks]
  std::int32_t* per_expert;  ///< [experts]
  std::uint8_t* in_rank;     ///< [tokens][ranks], 0 or 1
  /// [ranks + 1], set by the launcher: the first expert of each rank, spread evenly, and the end.
  std::int16_t first_expert[kMostRanks + 1];
};

/// Top-k indices of a routing map: the experts of each token, ascending, then -1.
struct TopkOfMap {
  const std::uint8_t* map;  ///< [tokens][experts], 0 or 1
  const float* probs;       ///< [tokens][experts]; nullptr: none
  std::int64_t* topk_idx;   ///< [tokens][top_k]; experts beyond the first top_k are omitted
  float* weights;           ///< [tokens][top_k], 0 without expert; only with probs
  std::int32_t* most;       ///< raised to the experts of a token, if it is less; nullptr: none
  std::int32_t tokens, experts, top_k;
};

/// Values of top-k slots in the columns of their experts, zeros elsewhere.
struct MapOfTopk {
  const std::int64_t* topk_idx;  ///< [tokens][top_k]; negative: no expert
  const float* values;           ///< [tokens][top_k]
  float* map;                    ///< [tokens][columns]
  std::int32_t tokens, top_k, columns;
  std::int32_t first;  ///< column of expert 0
};

/// Rows of each expert in a result that has fewer rows than all of them need.
struct FittingRows {
  const std::int32_t* expert_ends;  ///< [experts]: sums of the rows up to each expert, ascending
  std::int64_t* rows;               ///< [experts]
  std::uint8_t* overflow;           ///< one value: 1 if rows are omitted, else 0
  std::int32_t experts;
  std::int64_t room;  ///< rows of the result
};

/// The status of the launch.
cudaError_t launch_count_tokens(CountTokens call, cudaStream_t stream);
cudaError_t launch_topk_of_map(const TopkOfMap& call, cudaStream_t stream);
cudaError_t launch_map_of_topk(const MapOfTopk& call, cudaStream_t stream);
cudaError_t launch_fitting_rows(const FittingRows& call, cudaStream_t stream);

}  // namespace shoal::ep::cuda
