// SPDX-License-Identifier: Apache-2.0
// shoal/ep/normal.hpp: options and results of dispatch and combine in normal mode.
//
// R ranks, E experts, L of them on this rank (Group::local_experts). "Rows" are what a rank
// receives:
// - rank-major (the default): one row per token with an expert here, ordered by source rank, then
//   token;
// - expert-major: one row per (token, expert here), grouped by expert.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <shoal/ep/formats.hpp>
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
  [[nodiscard]] bool valid() const noexcept { return state_ != nullptr; }
  /// True for the layout of a dispatch_expert_major.
  [[nodiscard]] bool expert_major() const;
  /// The rows that hold tokens: `rows` of the result, absent where that is absent.
  [[nodiscard]] std::optional<std::int64_t> received_rows() const;
  /// Rows of the result, and of the expert output: unused ones included.
  [[nodiscard]] std::int64_t result_rows() const;
  /// The number of tokens that this rank sent.
  [[nodiscard]] std::int64_t tokens() const;

 private:
  friend struct shoal::detail::Access;
  explicit Handle(std::shared_ptr<const detail::HandleState> state) : state_(std::move(state)) {}
  const std::shared_ptr<const detail::HandleState>& state() const noexcept { return state_; }

  std::shared_ptr<const detail::HandleState> state_;
};

/// Options of Group::dispatch, rank-major.
struct DispatchOptions {
  /// float32 [tokens, top_k]; optional. Travels with the rows.
  ConstTensorView weights{};
  /// float32 or int32 [tokens, n], any strides; optional. Travels with the rows: the scales of
  /// float8 rows, for instance. One-byte scales are passed four to an int32.
  ConstTensorView scales{};
  /// Not none: the rows of x, bfloat16, are encoded as they are sent. The result has their codes as
  /// x, float8_e4m3 [rows, hidden], for nvfp4 uint8 [rows, hidden / 2], two channels a byte with
  /// the first in the lower half, and the scales of each row: float32, uint8 for UE8M0, float8_e4m3
  /// for nvfp4; rows of one-byte scales are whole words of four. Equal on all ranks.
  Quantize quantize = Quantize::none;
  /// float32 [1], for nvfp4: as LowLatencyDispatchOptions::global_scale. Ranks that differ get
  /// Error{mismatch}.
  ConstTensorView global_scale{};
  /// Dispatched::tokens_per_expert is rounded up to a multiple of it. 1 to 65,536.
  std::int32_t expert_alignment = 1;
  /// Dispatched::topk_weights has the weights of all top-k slots, also of those whose expert is
  /// elsewhere (0 otherwise).
  bool all_weights = false;
  /// Above 0: results have exactly this many rows, so that no size has to reach the host. Rows
  /// without a token have topk_idx -1. At most R * max_tokens.
  std::int64_t worst_case_rows = 0;
  /// Results lie in ordinary memory of their own instead of the heap.
  bool copy_out = false;
  /// The result is read only by work that is queued before the next call or replay of this group,
  /// and released then, so that it may lie where captured dispatches write. No effect on the host.
  bool transient = false;
  Launch launch{};
};

/// Options of Group::dispatch_expert_major. Equal on all ranks, except weights, scales and launch.
///
/// A result must fit into the room of a rank-major one with max_tokens from every rank, else
/// Error{exhausted} on all ranks; with worst_case_rows it may take the room of several
/// (GroupOptions::live_results).
struct ExpertMajorOptions {
  /// float32 [tokens, top_k]; optional. Travels with the rows.
  ConstTensorView weights{};
  /// float32 or int32 [tokens, n], any strides; optional. Travels with the rows: the scales of
  /// float8 rows, for instance. One-byte scales are passed four to an int32.
  ConstTensorView scales{};
  /// Not none: the rows of x, bfloat16, are encoded as they are sent. The result has their codes as
  /// x, float8_e4m3 [rows, hidden], for nvfp4 uint8 [rows, hidden / 2], two channels a byte with
  /// the first in the lower half, and the scales of each row: float32, uint8 for UE8M0, float8_e4m3
  /// for nvfp4; rows of one-byte scales are whole words of four. Equal on all ranks.
  Quantize quantize = Quantize::none;
  /// For nvfp4: float32 [1] as LowLatencyDispatchOptions::global_scale, or float32 [E], the scale
  /// of the rows for each expert of all ranks. Ranks that differ get Error{mismatch}. [E] is
  /// Error{unsupported} in groups that span nodes and on GPUs before Hopper.
  ConstTensorView global_scale{};
  /// Blocks start at a multiple of it. 1 to 65,536. A cached handle brings its own along.
  std::int32_t alignment = 1;
  /// Above 0: results have exactly this many rows, gaps between blocks included, so that no size
  /// has to reach the host. At most R * max_tokens * min(top_k, L) + L * (alignment - 1), with
  /// Group::max_local_experts as L.
  std::int64_t worst_case_rows = 0;
  /// Results lie in ordinary memory of their own instead of the heap.
  bool copy_out = false;
  /// The result is read only by work that is queued before the next call or replay of this group,
  /// and released then, so that it may lie where captured dispatches write. No effect on the host.
  bool transient = false;
  Launch launch{};
};

/// Counts of the rows that a rank received, int32 in device memory. UnpackOptions and ExpandOptions
/// have the same names.
struct ReceivedCounts {
  Tensor rows;               ///< [1]
  Tensor tokens_per_expert;  ///< [L], not rounded
  /// [L]: sums of the rounded counts up to each local expert. Absent with a cached handle.
  std::optional<Tensor> expert_ends;
  /// [R]: sums of the rows of the source ranks up to each one. Absent in expert-major results and
  /// with a cached handle.
  std::optional<Tensor> source_ends;
};

/// The rows that a rank received, rank-major: the blocks of the source ranks, in order. Tensors lie
/// in the symmetric heap and stay readable while any copy of them lives, also after Group::close
/// and World::close. With worst_case_rows they have that many rows.
///
/// On GPUs the rows of scales, topk_idx, topk_weights and source_token are contiguous but lie apart
/// (their first stride is larger than a row).
struct Dispatched {
  Tensor x;  ///< [rows, hidden], dtype of the input, or as DispatchOptions::quantize says
  /// [rows, n]; when DispatchOptions::scales or quantize is given.
  std::optional<Tensor> scales;
  /// int64 [rows, top_k]: experts of this rank, numbered from 0; -1 for an expert elsewhere. Not
  /// with a cached handle.
  std::optional<Tensor> topk_idx;
  /// float32 [rows, top_k], 0 where topk_idx is -1; when DispatchOptions::weights is given.
  std::optional<Tensor> topk_weights;
  /// int32 [rows]: index of the token on its source rank. Not with a cached handle.
  std::optional<Tensor> source_token;
  /// Rows that hold tokens. Absent on GPUs with worst_case_rows.
  std::optional<std::int64_t> rows;
  /// [R]: the lengths of the blocks. Absent on GPUs with worst_case_rows.
  std::optional<std::vector<std::int64_t>> rows_per_source;
  /// [L], rounded up to expert_alignment. Absent with worst_case_rows or a cached handle.
  std::optional<std::vector<std::int64_t>> tokens_per_expert;
  std::optional<ReceivedCounts> device_counts;  ///< on GPUs
  Handle handle;
};

/// The rows that a rank received, expert-major: the blocks of its experts, ascending. The block of
/// an expert starts at a multiple of ExpertMajorOptions::alignment and lists its tokens by source
/// rank, then token. Memory and strides are those of Dispatched. Gaps between blocks hold -1 in
/// topk_idx and source_token and 0 in topk_weights; rows of x and scales there are not
/// initialized.
struct ExpertMajorDispatched {
  Tensor x;  ///< [rows, hidden], dtype of the input, or as ExpertMajorOptions::quantize says
  /// [rows, n]; when ExpertMajorOptions::scales or quantize is given.
  std::optional<Tensor> scales;
  /// int32 [L + 1], on GPUs in device memory: the first row of each block, then the end of the
  /// last one.
  Tensor expert_first_row;
  /// int64 [rows, 1]: the expert of the row, numbered from 0. Not with a cached handle.
  std::optional<Tensor> topk_idx;
  /// float32 [rows, 1]; when ExpertMajorOptions::weights is given.
  std::optional<Tensor> topk_weights;
  /// int32 [rows]: index of the token on its source rank. Not with a cached handle.
  std::optional<Tensor> source_token;
  /// Rows up to the end of the last block. Absent on GPUs with worst_case_rows.
  std::optional<std::int64_t> rows;
  /// [R]. Absent on GPUs with worst_case_rows.
  std::optional<std::vector<std::int64_t>> rows_per_source;
  /// [L]: the lengths of the blocks, padding included. Absent with worst_case_rows or a cached
  /// handle.
  std::optional<std::vector<std::int64_t>> tokens_per_expert;
  std::optional<ReceivedCounts> device_counts;  ///< on GPUs
  Handle handle;
};

/// Where Group::unpack copies what travelled beside the rows of a dispatch. Each array is optional.
/// It has the shape and the device of the field with its name, for the last three in device_counts
/// (ReceivedCounts), and any strides.
struct UnpackOptions {
  /// float32 or int32. One-byte scales are int32 [rows, ceil(n / 4)], four to a word; or, of
  /// expert-major results whose alignment is a multiple of 128, contiguous tiles (ScaleLayout),
  /// uint8 [ceil(rows / 128), ceil(n / 4), 512], where rows without a token hold anything.
  TensorView scales{};
  TensorView topk_idx{};                                         ///< int64
  TensorView topk_weights{};                                     ///< float32
  TensorView source_token{};                                     ///< int32
  TensorView tokens_per_expert{}, expert_ends{}, source_ends{};  ///< int32; on GPUs
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
/// tokens_per_expert[e] rows in the order of x; padding follows up to expert_ends[e].
struct ExpandOptions {
  ConstTensorView x{};         ///< [rows, n]; rows a multiple of 16 bytes
  ConstTensorView topk_idx{};  ///< int64 [rows, top_k]: local experts; -1: no copy
  /// int32 [1], optional: the number of rows of x that have copies, from the first on
  /// (ReceivedCounts::rows).
  ConstTensorView rows{};
  ConstTensorView tokens_per_expert{}, expert_ends{};  ///< int32 [E], of ReceivedCounts
  ConstTensorView weights{};                           ///< float32 [rows, top_k]; optional
  ConstTensorView scales{};  ///< float32 or int32 [rows, m]; optional. Elements of a row contiguous

  /// int32 [rows, top_k], result: the copy of each top-k slot, -1: none. CombineOptions::topk_rows
  /// takes it. Where `numbered`, it is the result of an earlier call for the same layout. A number
  /// outside `out` is Error{invalid_argument}; on GPUs it counts as -1.
  TensorView topk_rows{};
  bool numbered = false;
  TensorView out{};          ///< result, [copies, n]; with room for all blocks
  TensorView out_weights{};  ///< result, float32 [copies]; with weights. 0 in rows without a token
  /// Result, with scales: [copies, m], any strides. Words of one-byte scales also in contiguous
  /// tiles (ScaleLayout), uint8 [ceil(copies / 128), m, 512]; expert_ends are then multiples of
  /// 128, otherwise Error{invalid_argument}, on the host.
  TensorView out_scales{};
  TensorView block_ends{};  ///< result, int32 [E], optional: the end of each block before padding
  /// Rows of `out` and `out_scales` without a token become 0; else they keep what they have.
  bool zero_padding = false;
  Launch launch{};
};

/// Options of Group::combine. topk_idx, topk_rows and several weights a row are for rank-major
/// handles, unsummed for expert-major ones.
struct CombineOptions {
  /// float32 [rows, top_k], expert-major [rows, 1]; optional. Returned to the source rank and
  /// summed there like the rows; expert-major: each to its top-k slot.
  ConstTensorView weights{};
  /// int64 [rows, top_k]; optional, rank-major: weights of slots with -1 count as 0.
  ConstTensorView topk_idx{};
  /// int32 [rows, top_k]; optional, rank-major: y has any number of rows, and the expert output of
  /// a received row is the sum of the rows of y that are listed here (-1: none), in float32 in
  /// ascending top-k slots, rounded to y's dtype. `weights` are then float32 [rows of y], one for
  /// each row. y may not lie in the group's memory. An index outside y is
  /// Error{invalid_argument}; where GPUs find it, it counts as -1 and Group::synchronize throws.
  ConstTensorView topk_rows{};
  /// fp8 or mxfp8, for bfloat16 y: rows travel in e4m3 with scales, as Quantize defines these
  /// formats, 1.03 bytes a channel; hidden is a multiple of 16 (fp8) or 32. The receiver decodes
  /// them to float32 and adds them in the order of bfloat16 rows. On one node each row of y travels
  /// encoded (of topk_rows: each sum); between nodes the sum of each node does, rounded to bfloat16
  /// before. A rank's own rows, or the sum of its own node, pass through the encoding too, so that
  /// a result does not depend on where its rows come from. Equal on all ranks, else
  /// Error{mismatch}. Other formats, and unsummed at the same time, are Error{invalid_argument}.
  ///
  /// On one node rows are encoded to the memory of GroupOptions::combine_staging wherever y lies;
  /// without it: Error{invalid_argument}. Bound of a channel's error, in addition to the roundings
  /// to bfloat16: c * amax of each row that travels, summed over the rows, with c and amax as in
  /// LowLatencyCombineOptions::quantize. A NaN or an infinity makes all channels that share its
  /// scale NaN.
  ///
  ///     auto arrived = group.dispatch(x, group.route(topk_idx));
  ///     auto sums = group.combine(y, arrived.handle, {.quantize = shoal::ep::Quantize::mxfp8});
  Quantize quantize = Quantize::none;
  /// 0, 1 or 2 tensors [tokens, hidden] of y's dtype, added before the rows. Not with unsummed.
  std::vector<ConstTensorView> bias{};
  /// true: the result has the row of each top-k slot, [tokens, top_k, hidden], for an engine that
  /// sums them in another kernel: the bits that the slot's expert wrote to y, or zeros without one.
  /// Expert-major handles only, since rows of the others are summed at their rank:
  /// Error{invalid_argument}. The same on all ranks where they are on several nodes, else
  /// Error{mismatch}. Not where kernels send between NVLink domains.
  ///
  ///     shoal::ep::ExpertMajorDispatched got = group.dispatch_expert_major(x, routing);
  ///     shoal::Tensor rows = group.combine(got.x, got.handle, {.unsummed = true}).x;
  bool unsummed = false;
  /// [tokens, hidden], with `unsummed` [tokens, top_k, hidden]; optional: the memory of the result.
  TensorView out{};
  /// float32 [tokens, top_k]; optional: the memory of Combined::topk_weights.
  TensorView out_weights{};
  Launch launch{};
};

/// The sum of the expert output of this rank's tokens, or its rows (CombineOptions::unsummed).
struct Combined {
  /// [tokens, hidden] or [tokens, top_k, hidden], dtype of y; CombineOptions::out when that is
  /// given.
  Tensor x;
  /// float32 [tokens, top_k], when CombineOptions::weights is given; CombineOptions::out_weights
  /// when that is given as well.
  std::optional<Tensor> topk_weights;
};

}  // namespace shoal::ep
