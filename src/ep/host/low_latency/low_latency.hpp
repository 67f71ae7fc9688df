// SPDX-License-Identifier: Apache-2.0
// low_latency.hpp: the phases of low-latency mode on the host backend.
//
//   dispatch: low_latency_dispatch_send | low_latency_dispatch_receive      combine:
//   low_latency_combine_send |
//   .._receive
//
// Send phases return without waiting for this operation of anybody else, so two operations of each
// kind may be on their way; slots and answer buffers exist twice, by parity of the epoch. A half is
// written again only after its readers have acknowledged the use before last (slots_read,
// combine_read). Dispatch and combine have epochs of their own.
#pragma once

#include "ep/host/group.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "ep/host/rows/store_choice.hpp"
#include "ep/host/signals/signals.hpp"
#include "ep/pending.hpp"

namespace shoal::ep::host {

using detail::LowLatencyHandleState;
using detail::PendingCombineState;
using detail::PendingDispatchState;

/// What goes to a member of another node: headers, then rows, as they lie in slots and outbox.
struct RemoteSlots {
  std::size_t header_bytes, row_bytes;

  RemoteSlots(const Shape& shape, const GroupLayout& layout, Quantize quantize, bool has_weights)
      : header_bytes(layout.remote_header_bytes(has_weights, shape)),
        row_bytes(OutboxLayout(shape.hidden, quantize != Quantize::none).total) {}
  /// Where the rows start behind `count` headers.
  std::size_t rows(std::int64_t count) const { return align_up(count * header_bytes, kLine); }
};

/// Puts each token once into the outbox, quantised, and a header into a slot of every member that
/// needs it.
std::shared_ptr<LowLatencyHandleState> low_latency_dispatch_send(
    HostGroup& group, const TensorView& x, std::shared_ptr<const detail::RoutingState> routing,
    const LowLatencyDispatchOptions& options);
/// Waits for every member's slots and expands them to the rows of the local experts.
LowLatencyReceived low_latency_dispatch_receive(HostGroup& group, PendingDispatchState& pending);

/// How answers travel between two members. Within a node the reader fetches the rows of the
/// experts; to another node goes one row per token, where the answering member has the weights.
CombineRowForm combine_row_form(const LowLatencyCombineOptions& options, bool far,
                                bool has_weights);
/// Waits until every member has fetched what the combine before last left in the half of the answer
/// buffers that `epoch` uses.
void wait_for_combine_buffer(HostGroup& group, std::uint64_t epoch);
/// Puts y where others can fetch it and says where their rows lie.
std::uint64_t low_latency_combine_send(HostGroup& group, const TensorView& y,
                                       const LowLatencyHandleState& handle,
                                       const LowLatencyCombineOptions& options);
/// Fetches the answers to this member's tokens and forms the weighted sums.
Tensor low_latency_combine_receive(HostGroup& group, PendingCombineState& pending);

/// Adds what was waited for member `rank` to `wait_ns` (int64 [ranks], or undefined) when it goes.
class WaitTimer {
 public:
  WaitTimer(const TensorView& wait_ns, std::int32_t rank) : wait_ns_(wait_ns), rank_(rank) {
    if (wait_ns_.defined()) start_ = std::chrono::steady_clock::now();
  }
  ~WaitTimer() {
    if (wait_ns_.defined())
      wait_ns_.as<std::int64_t>()[rank_] +=
          std::chrono::nanoseconds(std::chrono::steady_clock::now() - start_).count();
  }
  WaitTimer(const WaitTimer&) = delete;
  WaitTimer& operator=(const WaitTimer&) = delete;

 private:
  const TensorView& wait_ns_;
  std::int32_t rank_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace shoal::ep::host
