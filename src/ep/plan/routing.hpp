// SPDX-License-Identifier: Apache-2.0
// routing.hpp: from top-k indices to the list of copies that each token needs (requirement E1).
// Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ep/backend_kind.hpp"
#include "ep/plan/shape.hpp"

namespace shoal::ep::detail {

/// One copy of a token: to which member, and as the how-manyth row that this member sends there.
struct Copy {
  std::int32_t rank;
  std::int32_t row;
};

struct RoutingState {
  BackendKind backend = BackendKind::host;  ///< for of_backend
  Shape shape;
  std::int64_t tokens = 0;
  /// Copies of token t are copies[first_copy[t]] .. copies[first_copy[t + 1] - 1], ordered by the
  /// last top-k slot that asks for the member: the order in which combine adds the members' rows
  /// (DeepEP reference semantics, section 2.6).
  std::vector<std::int32_t> first_copy;
  std::vector<Copy> copies;
  Tensor topk_idx;  ///< int64 [tokens, top_k]
  std::vector<std::int32_t>
      expert_row_index;  ///< [tokens, top_k]: the how-manyth token of this member for that expert
  std::vector<std::int32_t> tokens_per_rank, tokens_per_expert;

  /// The experts that token `token` asks for, [top_k].
  std::span<const std::int64_t> experts_of(std::int64_t token) const {
    return {topk_idx.as<std::int64_t>() + token * shape.top_k,
            static_cast<std::size_t>(shape.top_k)};
  }
  std::span<const Copy> copies_of(std::int64_t token) const {
    return {copies.data() + first_copy[token],
            static_cast<std::size_t>(first_copy[token + 1] - first_copy[token])};
  }
};

/// The expert-major layout of a dispatch: the experts' blocks at each member in ascending order,
/// each at a multiple of the alignment, rows in a block by source, then token.
struct ExpertRows {
  std::vector<std::int32_t>
      first;  ///< [experts]: where one source's rows start, at the member of the expert
  std::vector<std::int64_t> end;  ///< [ranks]: end of the last block
  std::vector<std::int32_t>
      blocks;  ///< [local_experts + 1]: of the source as a member: starts of its blocks, the end
  std::vector<std::int32_t> counts;  ///< [local_experts]: tokens in its blocks
};
/// As seen by member `me`. `counts[source]` are its tokens for each expert, [experts]. Where a
/// member's rows are too many for 32 bits only `end` is valid.
ExpertRows make_expert_rows(const Shape& shape, std::span<const std::int32_t* const> counts,
                            std::int32_t me, std::int32_t alignment);

/// The members that the top-k slots of one token ask for, each once, ordered by its last top-k slot; returns
/// how many were written to `ranks` (room for top_k).
std::int32_t ranks_by_last_topk_slot(std::span<const std::int64_t> experts,
                                     std::int32_t local_experts, std::int32_t* ranks);

/// Checks shape, type and place of [tokens, top_k] indices, not their values. Throws
/// Error{invalid_argument}.
void check_topk(const TensorView& topk_idx, const Shape& shape, const Device& device,
                std::int64_t max_tokens, const char* call);

/// Made-up indices that load all experts evenly and name none twice in a row: int64 [tokens, top_k]
/// on the host.
Tensor even_topk(std::int64_t tokens, std::int32_t top_k, std::int32_t experts);

/// Checks [tokens, top_k] int64 or int32 indices on the host and returns them as int64. Throws
/// Error{invalid_argument}.
Tensor checked_topk(const TensorView& topk_idx, const Shape& shape, std::int64_t max_tokens,
                    const char* call);

/// `topk_idx` as returned by checked_topk.
std::shared_ptr<const RoutingState> make_routing(Tensor topk_idx, const Shape& shape);

}  // namespace shoal::ep::detail
