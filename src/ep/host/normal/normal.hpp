// SPDX-License-Identifier: Apache-2.0
// normal.hpp: the phases of normal mode on the host, in the order in which a rank runs them.
//
//   dispatch: notify -> dispatch_send -> dispatch_receive
//   combine:  combine_send (with notify's exchange) -> combine_receive
//
// Every operation has one epoch and two signals between all ranks. `entered` publishes the notice:
// counts, and the offset of the granted region (dispatch) or of y (combine). `finished` means that
// all rows for the receiver are written (dispatch) or that all its rows have been fetched
// (combine). A rank ends an operation only after `finished` from all ranks, so it is never two
// operations ahead of another, and two copies of each notice, by parity of the epoch, suffice.
#pragma once

#include <optional>
#include <vector>

#include "ep/group/modes.hpp"
#include "ep/host/group/group.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "ep/host/rows/store_choice.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

using detail::DispatchCall;
using detail::HandleState;
using detail::Region;

/// The notices of all ranks for one epoch, in this rank's block or in that of the first one.
class NoticeBoard {
 public:
  NoticeBoard(const HostGroup& group, std::uint64_t epoch) : group_(&group), epoch_(epoch) {}
  const NormalNotice& operator[](std::int32_t rank) const;
  const std::int32_t* rows_per_rank(std::int32_t rank) const;  ///< [ranks]
  /// [experts]. Rank-major, those of other ranks than this one may be unset.
  const std::int32_t* tokens_per_expert(std::int32_t rank) const;

 private:
  const HostGroup* group_;
  std::uint64_t epoch_;
};

/// Publishes the notice and counts (nullptr: unchanged) to all ranks, raises `entered`, waits for
/// all ranks. Throws Error{mismatch} when ranks differ in operation, dtype, scales, weights, layout
/// or handle; the group stays usable.
NoticeBoard exchange_notices(HostGroup& group, const Step& step, const NormalNotice& notice,
                             const std::int32_t* rows_per_rank,
                             const std::int32_t* tokens_per_expert);

/// The row of one top-k slot of a token in an expert-major layout.
struct TopkRow {
  std::int32_t topk_slot, rank;  ///< rank: that holds the row; -1: the slot has no expert
  std::int64_t row;

  TopkRow() = default;
  TopkRow(const HandleState& handle, std::int64_t token, std::int32_t slot)
      : topk_slot(slot), rank(-1), row(0) {
    const detail::RoutingState& routing = *handle.routing;
    const std::int64_t expert = routing.experts_of(token)[slot];
    if (expert < 0) return;
    rank = routing.shape.rank_of(expert);
    row = std::int64_t{handle.expert_rows.first[expert]} +
          routing.expert_row_index[token * routing.shape.top_k + slot];
  }
};

/// The rows of a token, by ascending top-k slot.
class TopkRows {
 public:
  TopkRows(const HandleState& handle, std::int64_t token) {
    for (std::int32_t topk_slot = 0; topk_slot < handle.routing->shape.top_k; ++topk_slot)
      if (const TopkRow at(handle, token, topk_slot); at.rank >= 0) rows_[count_++] = at;
  }
  const TopkRow* begin() const { return rows_; }
  const TopkRow* end() const { return rows_ + count_; }

 private:
  TopkRow rows_[kMaxTopK];
  std::int32_t count_ = 0;
};

/// The layout of a dispatch, and the room that every rank granted.
struct DispatchPlan {
  std::shared_ptr<HandleState> handle;
  std::shared_ptr<Region> region;               ///< this rank's
  std::vector<std::byte*> target;               ///< [ranks]: each rank's region, as an address here
  std::vector<ReceiveLayout> layout;            ///< [ranks]
  std::vector<std::int64_t> tokens_per_expert;  ///< [experts here] received here, not aligned
};

/// Throws Error{exhausted} on all ranks when one has no room, or fewer worst_case_rows than rows.
DispatchPlan notify(HostGroup& group, const DispatchCall& call);
/// Writes every token to its final row at every rank that needs it, then raises `finished`.
void dispatch_send(HostGroup& group, const DispatchCall& call, const DispatchPlan& plan);
/// Waits for the rows of all ranks and describes them.
detail::AnyDispatched dispatch_receive(HostGroup& group, const DispatchCall& call,
                                       const DispatchPlan& plan);

/// Group::expand of checked arguments. Throws Error{invalid_argument} for the caller's numbers of
/// rows outside `out`.
void expand(HostGroup& group, const ExpandOptions& options);

/// True if a combine encodes each row of y: all ranks are on this node. Between nodes it encodes
/// the sums of nodes.
inline bool encodes_rows(const HostGroup& group, const CombineOptions& options) {
  return options.quantize != Quantize::none && group.state.nodes.count == 1;
}
/// Throws Error{invalid_argument} when y or weights need staging and there is no room for them.
/// Runs before the operation begins, so that the group stays usable.
void check_staging(const HostGroup& group, const ConstTensorView& y, const CombineOptions& options);
/// Stages y and weights unless they lie in the group's memory, y also where its rows are encoded,
/// and publishes their offsets.
NoticeBoard combine_send(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                         const CombineOptions& options);
/// Fetches and sums the rows of this rank's tokens, then raises `finished`.
Combined combine_receive(HostGroup& group, const ConstTensorView& y, const HandleState& handle,
                         const CombineOptions& options, const NoticeBoard& board);

}  // namespace shoal::ep::host
