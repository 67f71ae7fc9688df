// SPDX-License-Identifier: Apache-2.0
// shoal/detail/ep_layouts.hpp: dispatches whose layout is chosen at run time, for bindings whose
// interface has one call for both layouts.
//
// Headers in shoal/detail are installed for code that extends Shoal. They change without notice.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include <shoal/detail/access.hpp>
#include <shoal/ep/group.hpp>

namespace shoal::ep::detail {

/// expert_major: the layout of ExpertMajorOptions, of which expert_alignment is the alignment.
/// apart: the result of a captured dispatch lies where no other graph writes; without such room the
/// dispatch is transient.
/// also_rank_major: an expert-major dispatch of exact size that describes both layouts, so that a
/// combine can sum the rows of a token at each rank before they travel. Where
/// can_be_also_rank_major.
struct AnyDispatchOptions : DispatchOptions {
  bool expert_major = false;
  bool apart = false;
  bool also_rank_major = false;
};

/// A Dispatched or an ExpertMajorDispatched. Tensors that are absent are undefined, vectors empty,
/// and `rows` is -1.
struct AnyDispatched {
  Tensor x, scales, topk_idx, topk_weights, source_token;
  Tensor expert_first_row;  ///< expert-major
  std::vector<std::int64_t> rows_per_source, tokens_per_expert;
  /// tokens_per_expert is present, and empty at a rank without experts.
  bool has_tokens_per_expert = false;
  std::int64_t rows = 0;
  bool transient = false;  ///< as asked for, or for lack of room apart
  /// ReceivedCounts, by the names of the interfaces in C and Python.
  Tensor row_count, expert_counts, expert_ends, source_ends;
  Handle handle;
  // A dispatch that is also_rank_major:
  Handle rank_major;  ///< of a combine with topk_rows
  Tensor topk_rows;   ///< CombineOptions::topk_rows for it: int32 [rows of rank_major, top_k]
};

/// The calls of Group for either layout.
[[nodiscard]] AnyDispatched dispatch(Group& group, const ConstTensorView& x, const Routing& routing,
                                     const AnyDispatchOptions& options);
[[nodiscard]] AnyDispatched dispatch(Group& group, const ConstTensorView& x, const Handle& handle,
                                     const AnyDispatchOptions& options);
[[nodiscard]] std::future<AnyDispatched> dispatch_async(Group& group, const ConstTensorView& x,
                                                        const Routing& routing,
                                                        const AnyDispatchOptions& options,
                                                        Future after = {});
/// True if a plain dispatch finds room for its result where no CUDA graph writes. Any thread.
[[nodiscard]] bool has_room_beside_graphs(const Group& group);
/// True if the memory of normal mode has room for one more result of any size, whatever becomes of
/// those that are held. Any thread.
[[nodiscard]] bool has_room_for_another(const Group& group);
/// True for groups in host memory of one node.
[[nodiscard]] bool can_be_also_rank_major(const Group& group);
/// True if a CUDA graph captures the stream. Any thread.
[[nodiscard]] bool captures(const Group& group, Stream stream) noexcept;
void unpack(Group& group, const AnyDispatched& received, const UnpackOptions& to);

}  // namespace shoal::ep::detail
