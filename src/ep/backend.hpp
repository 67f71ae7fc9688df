// SPDX-License-Identifier: Apache-2.0
// backend.hpp: what a group needs of the place where its memory lies: one implementation on the
// host (host/), one on GPUs (cuda/), with the same semantics and numbers.
//
// Arguments have been checked (checks.hpp) and the group is usable. Errors are those of
// shoal/ep/group.hpp.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ep/pending.hpp"

namespace shoal::ep::detail {

/// One dispatch on its way through the phases.
struct DispatchCall {
  TensorView x;
  const DispatchOptions& options;
  std::shared_ptr<const RoutingState> routing;
  std::shared_ptr<const HandleState> cached{};  ///< whose layout is used again; nullptr: a new one

  std::size_t row_bytes() const { return x.shape[1] * size_of(x.dtype); }
  std::size_t scale_bytes() const {
    return options.scales.defined() ? options.scales.shape[1] * 4 : 0;
  }
  /// Alignment of the blocks of an expert-major layout; 0: flat.
  std::int32_t expert_alignment() const {
    if (cached) return cached->expert_alignment;
    return options.expert_major ? options.expert_alignment : 0;
  }
  /// Top-k lanes that are described beside a row of the result.
  std::int32_t lanes() const { return expert_alignment() > 0 ? 1 : routing->shape.top_k; }
};

class Backend {
 public:
  virtual ~Backend() = default;

  /// Called once the group has its memory; before any other member is let in.
  virtual void open() = 0;
  /// The first other member that is known to have given its group up; asked at every call.
  virtual std::optional<std::int32_t> failed_member() const = 0;
  /// The same, with as much effort as it takes; asked at the end.
  virtual std::optional<std::int32_t> ask_failed_member() { return failed_member(); }

  virtual Routing route(const TensorView& topk_idx, const Launch& launch) = 0;
  virtual Dispatched dispatch(const DispatchCall& call) = 0;
  virtual Combined combine(const TensorView& y, const HandleState& handle,
                           const CombineOptions& options) = 0;

  virtual std::shared_ptr<PendingDispatchState> low_latency_dispatch(
      const TensorView& x, const TensorView& topk_idx,
      const LowLatencyDispatchOptions& options) = 0;
  virtual bool ready(const PendingDispatchState& pending) = 0;
  virtual LowLatencyReceived receive(PendingDispatchState& pending) = 0;
  virtual std::shared_ptr<PendingCombineState> low_latency_combine(
      const TensorView& y, const TensorView& topk_idx, const TensorView& weights,
      const std::shared_ptr<const LowLatencyHandleState>& handle,
      const LowLatencyCombineOptions& options) = 0;
  virtual bool ready(const PendingCombineState& pending) = 0;
  virtual Tensor receive(PendingCombineState& pending) = 0;
  /// Waits until the buffer of the next combine is free.
  virtual TensorView next_combine_buffer() = 0;

  virtual std::vector<int> masked() const = 0;
  virtual void set_mask(std::int32_t member, bool masked) = 0;
  virtual void clear_masks() = 0;

  virtual void warmup(Group& group) = 0;
  virtual void* stream() const { return nullptr; }
  virtual void synchronize() {}
  /// Waits for queued work as synchronize does, but throws only where the group is beyond use.
  virtual void drain() {}
};

std::unique_ptr<Backend> make_backend(GroupState& state);

/// Says in the log why rows of a group of this team go through host memory, on a member that does
/// not reach all others: a warning where the GPUs of a node should reach each other; information
/// where nodes or the settings make it so.
void report_staging(const Team& team);

}  // namespace shoal::ep::detail
