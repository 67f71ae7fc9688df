// SPDX-License-Identifier: Apache-2.0
// low_latency.hpp: the phases of low-latency mode on the host.
//
//   dispatch: low_latency_dispatch_send | low_latency_dispatch_receive
//   combine:  low_latency_combine_send  | low_latency_combine_receive
//
// A send phase does not wait for other ranks' part in the same operation, so two operations of each
// kind may be in flight. Slots and combine rows exist twice, by parity of the epoch. A half is
// written again only after its readers have acknowledged the use before last (slots_read,
// combine_read). Dispatch and combine have epochs of their own.
#pragma once

#include <chrono>
#include <cstring>
#include <optional>

#include "ep/group/pending.hpp"
#include "ep/host/group/group.hpp"
#include "ep/host/rows/row_ops.hpp"
#include "ep/host/rows/store_choice.hpp"
#include "ep/host/signals/signals.hpp"

namespace shoal::ep::host {

using detail::LowLatencyHandleState;
using detail::PendingCombineState;
using detail::PendingDispatchState;

/// The message to a rank of another node: headers, then rows, in the format of slots and outbox.
struct InternodeSlots {
  std::size_t header_bytes, row_bytes;

  InternodeSlots(const Shape& shape, const GroupLayout& layout, Quantize quantize, bool has_weights)
      : header_bytes(layout.remote_header_bytes(has_weights, shape)),
        row_bytes(outbox_row_bytes(shape.hidden, quantize)) {}
  /// Offset of the rows after `count` headers.
  std::size_t rows(std::int64_t count) const { return align_up(count * header_bytes, kLine); }
};

/// Writes each token once to the outbox, quantized, and a header to a slot of every rank that needs
/// it.
std::shared_ptr<LowLatencyHandleState> low_latency_dispatch_send(
    HostGroup& group, const ConstTensorView& x, std::shared_ptr<const detail::RoutingState> routing,
    const LowLatencyDispatchOptions& options);
/// One of the two sets of result arrays, made when first needed. Pages of rows that are never
/// received are never touched.
LowLatencyResult& result_arrays(HostGroup& group, std::uint64_t epoch, Quantize quantize);
/// Waits for the slots of all ranks and expands them to the rows of the local experts.
LowLatencyReceived low_latency_dispatch_receive(HostGroup& group, PendingDispatchState& pending);

inline CombineRowForm agreed_form(const LowLatencyCombineOptions& options) {
  return detail::agreed_form(options.log_fmt, options.quantize,
                             options.reduction == Reduction::exact);
}
/// The form of combine rows between two ranks that agree on `agreed`. Inside a node the reader
/// fetches a row per expert; to another node goes one row per token if the sender has the weights.
/// Rows per expert are encoded only where they are what the ranks agree on, or `unsummed`
/// (detail::sends_unsummed): otherwise the reader sums them and passes the sum through the format.
CombineRowForm combine_row_form(CombineRowForm agreed, bool remote, bool has_weights,
                                bool unsummed);
/// Waits until all ranks have fetched the rows of the combine before last, whose half `epoch`
/// reuses.
void wait_for_combine_buffer(HostGroup& group, std::uint64_t epoch);
/// Makes y available to the other ranks and publishes where their rows lie.
std::uint64_t low_latency_combine_send(HostGroup& group, const ConstTensorView& y,
                                       const LowLatencyHandleState& handle,
                                       const LowLatencyCombineOptions& options);
/// Fetches the combine rows of this rank's tokens and forms the weighted sums.
Tensor low_latency_combine_receive(HostGroup& group, PendingCombineState& pending);

/// The notice at `offset` of this rank's block that `from` announces by `signals`; nullopt where it
/// is masked, or has masked this rank.
template <class Notice>
std::optional<Notice> wait_for_notice(HostGroup& group, std::size_t signals, std::size_t offset,
                                      std::int32_t from, const Step& step) {
  if (!wait_or_mask(group, signals, from, step.epoch, step)) return std::nullopt;
  Notice notice;
  std::memcpy(&notice, group.state.block + offset, sizeof notice);
  if (notice.epoch == step.epoch) return notice;
  masked_by(group, from, step);
  return std::nullopt;
}

/// Adds the duration of its scope to `wait_ns[rank]` (int64 [ranks], or undefined).
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
