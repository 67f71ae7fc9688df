// SPDX-License-Identifier: Apache-2.0
// shoal/ep/normal.hpp: options and results of dispatch and combine in normal mode.
//
// R ranks, E experts, E / R of them on each rank. "Rows" are what a rank receives:
// - rank-major (the default): one row per token with an expert here, ordered by source rank, then
//   token;
// - expert-major: one row per (token, expert here), grouped by expert.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <shoal/ep/options.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

namespace detail {
struct HandleState;
}

/// The layout of one dispatch. Its combine needs it, and a later dispatch of the same routing may
/// use it as a cached handle. Cheap to copy.
class Handle {
 public:
  Handle() = default;  ///< invalid
  explicit Handle(std::shared_ptr<const detail::HandleState> state) : state_(std::move(state)) {}
  bool valid() const noexcept { return state_ != nullptr; }
  /// As Dispatched::rows.
  std::int64_t received_rows() const;
  /// Rows of the result, and of the expert output: unused ones included.
  std::int64_t result_rows() const;
  /// Tokens that this rank sent.
  std::int64_t tokens() const;
  /// For Shoal's own layers.
  const std::shared_ptr<const detail::HandleState>& state() const noexcept { return state_; }

 private:
  std::shared_ptr<const detail::HandleState> state_;
};

struct DispatchOptions {
  /// float32 [tokens, top_k]; optional. Travels with the rows.
  TensorView weights{};
  /// float32 or int32 [tokens, n], any strides; optional. Travels with the rows: the scales of
  /// float8 rows.
  TensorView scales{};
  /// Dispatched::tokens_per_expert is rounded up to a multiple of it. 1 to 65,536.
  std::int32_t expert_alignment = 1;
  /// Expert-major layout. Rows are grouped by expert, ascending. The block of an expert starts at a
  /// multiple of expert_alignment and lists its tokens by source rank, then token. The gaps between
  /// blocks hold -1 in topk_idx and source_token and 0 in topk_weights; rows of x and scales there
  /// are undefined.
  ///
  /// expert_major and expert_alignment must then be equal on all ranks; a cached handle brings both
  /// along. A result must fit into the room of a rank-major one with max_tokens from every rank,
  /// else Error{exhausted} on all ranks; with worst_case_rows it may take the room of several
  /// (GroupOptions::live_results).
  bool expert_major = false;
  /// Dispatched::topk_weights has the weights of all top-k slots, also of those whose expert is
  /// elsewhere (0 otherwise). Not with expert_major.
  bool all_weights = false;
  /// Above 0: results have exactly this many rows, so that no size has to reach the host. Rows
  /// without a token have topk_idx -1. At most R * max_tokens; expert-major, gaps included:
  /// R * max_tokens * min(top_k, E / R) + E / R * (expert_alignment - 1).
  std::int64_t worst_case_rows = 0;
  /// Results lie in ordinary memory of their own instead of the heap.
  bool copy_out = false;
  /// The result is read only by work that is queued before the next call or replay of this group,
  /// and released then, so that it may lie where captured dispatches write. No effect on the host.
  bool transient = false;
  Launch launch{};
};

/// The rows that a rank received. Tensors lie in the symmetric heap and stay readable while any
/// copy of them lives, also after Group::close and World::close. With `slots` = top_k, or 1 in the
/// expert-major layout:
///
/// | field | shape | set |
/// |---|---|---|
/// | x | [rows, hidden], dtype of the input | always |
/// | scales | [rows, n], dtype of the input | when DispatchOptions::scales is given |
/// | topk_idx | int64 [rows, slots] | not with a cached handle |
/// | topk_weights | float32 [rows, slots] | when DispatchOptions::weights is given |
/// | source_token | int32 [rows] | not with a cached handle |
/// | expert_first_row | int32 [E / R + 1] | expert-major; on GPUs in device memory |
/// | rows_per_source | [R] | always on the host; on GPUs without worst_case_rows |
/// | tokens_per_expert | [E / R] | without worst_case_rows, not with a cached handle |
/// | rows | | always on the host; -1 on GPUs with worst_case_rows |
/// | row_count | int32 [1] | on GPUs, in device memory |
/// | expert_counts | int32 [E / R] | on GPUs, in device memory |
/// | expert_ends | int32 [E / R] | on GPUs, in device memory; not with a cached handle |
/// | source_ends | int32 [R] | as expert_ends, and not expert-major |
/// | handle | | always |
///
/// With worst_case_rows the tensors have that many rows. On GPUs the rows of scales, topk_idx,
/// topk_weights and source_token are contiguous but lie apart (their first stride is larger than a
/// row).
struct Dispatched {
  Tensor x;
  Tensor scales;
  /// Experts of this rank, numbered from 0; -1 for an expert elsewhere. Expert-major: the expert of
  /// the row; -1 between blocks.
  Tensor topk_idx;
  /// 0 where topk_idx is -1.
  Tensor topk_weights;
  /// Index of the token on its source rank. Expert-major: -1 between blocks.
  Tensor source_token;
  /// First row of the block of each local expert, then the end of the last block.
  Tensor expert_first_row;
  /// Rows from each source rank. Rank-major results consist of blocks of these lengths, in order.
  std::vector<std::int64_t> rows_per_source;
  /// Tokens of each local expert, rounded up to expert_alignment.
  std::vector<std::int64_t> tokens_per_expert;
  /// Rows that hold tokens; expert-major: including the gaps between blocks.
  std::int64_t rows = 0;
  /// `rows` in device memory.
  Tensor row_count;
  /// Tokens of each local expert, not rounded.
  Tensor expert_counts;
  /// Sums of tokens_per_expert up to each local expert.
  Tensor expert_ends;
  /// Sums of rows_per_source up to each source rank.
  Tensor source_ends;
  Handle handle;
};

/// Where Group::unpack copies what travelled beside the rows of a dispatch. Each array is optional;
/// it has the shape of the field of Dispatched with its name, any strides, and its device.
struct UnpackOptions {
  TensorView scales{};                                       ///< float32 or int32
  TensorView topk_idx{};                                     ///< int64
  TensorView topk_weights{};                                 ///< float32
  TensorView source_token{};                                 ///< int32
  TensorView expert_counts{}, expert_ends{}, source_ends{};  ///< int32; on GPUs
  /// Rows of Dispatched::x without a token become 0 (DispatchOptions::worst_case_rows); else they
  /// hold anything. Rank-major results only.
  bool clear_unused = false;
  Launch launch{};
};

/// Rank-major rows of a dispatch, for Group::expand, and where their copies go: a copy for each
/// top-k slot whose expert is on this rank, grouped by expert. Arrays are contiguous unless stated
/// otherwise; E is the number of local experts.
///
/// The block of expert e starts at expert_ends[e - 1] (0 for the first one) and holds
/// expert_counts[e] rows in the order of x; padding follows up to expert_ends[e].
struct ExpandOptions {
  TensorView x{};         ///< [rows, n]; rows a multiple of 16 bytes
  TensorView topk_idx{};  ///< int64 [rows, top_k]: local experts; -1: no copy
  /// int32 [1], optional: only the first rows, as many as this says, have copies.
  TensorView row_count{};
  TensorView expert_counts{}, expert_ends{};  ///< int32 [E]; Dispatched's
  TensorView weights{};                       ///< float32 [rows, top_k]; optional
  TensorView scales{};  ///< float32 or int32 [rows, m]; optional. Elements of a row contiguous

  /// int32 [rows, top_k], result: the copy of each top-k slot, -1: none. CombineOptions::topk_rows
  /// takes it. Where `numbered`, it is the result of an earlier call for the same layout. A number
  /// outside `out` is Error{invalid_argument}; on GPUs it counts as -1.
  TensorView topk_rows{};
  bool numbered = false;
  TensorView out{};          ///< result, [copies, n]; with room for all blocks
  TensorView out_weights{};  ///< result, float32 [copies]; with weights. 0 in rows without a token
  TensorView out_scales{};   ///< result, [copies, m]; with scales. Any strides
  TensorView block_ends{};   ///< result, int32 [E], optional: the end of each block before padding
  /// Rows of `out` and `out_scales` without a token become 0; else they keep what they have.
  bool zero_padding = false;
  Launch launch{};
};

struct CombineOptions {
  /// float32 [rows, top_k], expert-major [rows, 1]; optional. Returned to the source rank and
  /// summed there like the rows; expert-major: each to its top-k slot.
  TensorView weights{};
  /// int64 [rows, top_k]; optional, rank-major: weights of slots with -1 count as 0.
  TensorView topk_idx{};
  /// int32 [rows, top_k]; optional, rank-major: y has any number of rows, and the expert output of
  /// a received row is the sum of the rows of y that are listed here (-1: none), in float32 in
  /// ascending top-k slots, rounded to y's dtype. `weights` are then float32 [rows of y], one for
  /// each row. y may not lie in the group's memory. An index outside y is
  /// Error{invalid_argument}; where GPUs find it, it counts as -1 and Group::synchronize throws.
  TensorView topk_rows{};
  /// 0, 1 or 2 tensors [tokens, hidden] of y's dtype, added before the rows.
  std::vector<TensorView> bias{};
  /// [tokens, hidden]; optional: the memory of the result.
  TensorView out{};
  /// float32 [tokens, top_k]; optional: the memory of Combined::topk_weights.
  TensorView out_weights{};
  Launch launch{};
};

/// The sum of the expert output of this rank's tokens.
///
/// | field | shape | set |
/// |---|---|---|
/// | x | [tokens, hidden], dtype of y | always; CombineOptions::out when that is given |
/// | topk_weights | float32 [tokens, top_k] | when CombineOptions::weights is given |
///
/// topk_weights is CombineOptions::out_weights when that is given.
struct Combined {
  Tensor x;
  Tensor topk_weights;
};

}  // namespace shoal::ep
