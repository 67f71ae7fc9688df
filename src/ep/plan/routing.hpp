// SPDX-License-Identifier: Apache-2.0
// routing.hpp: from top-k indices to the copies that each token needs. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ep/plan/place.hpp"
#include "ep/plan/shape.hpp"

namespace shoal::ep::detail {

/// One copy of a token: its destination rank, and its row index among the rows sent there.
struct Copy {
  std::int32_t rank;
  std::int32_t row;
};

struct RoutingState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  Shape shape;
  std::int64_t tokens = 0;
  /// Copies of token t are copies[first_copy[t]] .. copies[first_copy[t + 1] - 1], ordered by the
  /// last top-k slot that names the rank. Combine adds the ranks' rows in this order, as DeepEP
  /// does.
  std::vector<std::int32_t> first_copy;
  std::vector<Copy> copies;
  Tensor topk_idx;  ///< int64 [tokens, top_k]
  /// [tokens, top_k]: index of the token among those that this rank sends to the expert, or -1.
  std::vector<std::int32_t> expert_row_index;
  std::vector<std::int32_t> tokens_per_rank, tokens_per_expert;
  /// Reads the experts of a token, [top_k], from GPU memory; nullptr where `copies` has them.
  void (*read_experts)(const RoutingState& routing, std::int64_t token,
                       std::int64_t* experts) = nullptr;

  /// The experts of a token, [top_k].
  std::span<const std::int64_t> experts_of(std::int64_t token) const {
    return {topk_idx.as<std::int64_t>() + token * shape.top_k,
            static_cast<std::size_t>(shape.top_k)};
  }
  std::span<const Copy> copies_of(std::int64_t token) const {
    return {copies.data() + first_copy[token],
            static_cast<std::size_t>(first_copy[token + 1] - first_copy[token])};
  }
};

/// Rows that the sources before rank `source` send to each rank, so the first row of `source`
/// there; with `source` = `ranks`, all rows of the rank. `counts[i * ranks + j]` are the rows from
/// i to j.
std::vector<std::int64_t> rows_before(std::span<const std::int32_t> counts, std::int32_t ranks,
                                      std::int32_t source);
/// rows_before, where it is known to fit 32 bits.
std::vector<std::int32_t> first_rows(std::span<const std::int32_t> counts, std::int32_t ranks,
                                     std::int32_t source);

/// The expert-major layout of a dispatch: at each rank a block per expert in ascending order, which
/// starts at a multiple of the alignment. The rows of a block are ordered by source, then token.
struct ExpertRows {
  std::vector<std::int32_t> first;   ///< [experts]: first row of one source, at the expert's rank
  std::vector<std::int64_t> end;     ///< [ranks]: end of the last block
  std::vector<std::int32_t> blocks;  ///< [experts here + 1]: this rank's block starts, and the end
  std::vector<std::int32_t> counts;  ///< [experts here]: tokens in this rank's blocks
};
/// The layout as rank `me` sees it. `counts[source]` are a source's tokens for each expert,
/// [experts]. If a rank has more rows than 32 bits can count, only `end` is valid.
ExpertRows make_expert_rows(const Shape& shape, std::span<const std::int32_t* const> counts,
                            std::int32_t me, std::int32_t alignment);

/// The ranks that hold the experts of one token, each once, ordered by its last top-k slot. Returns
/// how many were written to `ranks`, which has room for top_k.
std::int32_t ranks_by_last_topk_slot(std::span<const std::int64_t> experts, const Shape& shape,
                                     std::int32_t* ranks);

/// Checks the shape, type and device of [tokens, top_k] indices, not their values. Throws
/// Error{invalid_argument}.
void check_topk(const ConstTensorView& topk_idx, const Shape& shape, const Device& device,
                std::int64_t max_tokens, const char* call);

/// Indices that load all experts evenly, without duplicates in a row: int64 [tokens, top_k] on the
/// host. For warm-up.
Tensor even_topk(std::int64_t tokens, std::int32_t top_k, std::int32_t experts);

/// Checks [tokens, top_k] int64 or int32 indices on the host and returns them as int64. Throws
/// Error{invalid_argument}.
Tensor checked_topk(const ConstTensorView& topk_idx, const Shape& shape, std::int64_t max_tokens,
                    const char* call);

/// Tokens for each node, of which a token counts once; `node_of`: by rank.
std::vector<std::int32_t> count_by_node(const RoutingState& routing,
                                        std::span<const std::int32_t> node_of, std::int32_t nodes);

/// `topk_idx` as returned by checked_topk.
std::shared_ptr<const RoutingState> make_routing(Tensor topk_idx, const Shape& shape);

}  // namespace shoal::ep::detail
