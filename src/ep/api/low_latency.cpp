// SPDX-License-Identifier: Apache-2.0
// low_latency.cpp: the calls of low-latency mode.
//
// Receives are made in the order of the sends, of which at most two are open: the buffers exist
// twice.
#include <algorithm>

#include "base/check.hpp"
#include "base/log.hpp"
#include "ep/api/calls.hpp"
#include "ep/group/aligned_rows.hpp"
#include "ep/group/checks.hpp"
#include "ep/group/modes.hpp"
#include "ep/group/pending.hpp"

namespace shoal::ep {
namespace detail {
namespace {

void require_next(const char* call, std::uint64_t epoch, std::uint64_t received) {
  require(epoch == received + 1, Code::invalid_argument,
          "SHOAL-N520: {}: this is number {} of the group, and number {} has not been received; "
          "receive them in the order in which they were sent",
          call, epoch, received + 1);
}

void require_half(const char* call, std::uint64_t sent, std::uint64_t received) {
  require(sent < received + 2, Code::invalid_argument,
          "SHOAL-N521: {}: two are sent and not received; receive number {} first", call,
          received + 1);
}

std::uint64_t epoch_of(const PendingDispatchState& pending) {
  return pending.handle->epoch;
}
std::uint64_t epoch_of(const PendingCombineState& pending) {
  return pending.epoch;
}

record::Operation operation_of(const PendingDispatchState&) {
  return record::Operation::low_latency_dispatch;
}
record::Operation operation_of(const PendingCombineState&) {
  return record::Operation::low_latency_combine;
}

void forget_memory(LowLatencyDispatchOptions& options) {
  options.tokens_per_expert = options.wait_ns = {};
  options.weights = options.global_scale = {};
  options.launch = {};
}
void forget_memory(LowLatencyCombineOptions& options) {
  options.out = options.wait_ns = {};
  options.launch = {};
}

/// `pending` as its caller holds it. When the caller drops it before its receive, the group takes
/// it over: other ranks wait until its rows are read. The caller's memory and stream may be gone by
/// then.
template <typename Pending>
std::shared_ptr<Pending> owned_by_caller(
    std::shared_ptr<Pending> pending, std::vector<std::shared_ptr<Pending>> GroupState::* dropped) {
  Pending* const raw = pending.get();
  const auto take_over = [pending = std::move(pending), dropped](Pending*) {
    const auto group = pending->group.lock();
    if (pending->received || group == nullptr || group->closed) return;
    pending->dropped = true;
    forget_memory(pending->options);
    const std::lock_guard lock(group->dropped_mutex);
    ((*group).*dropped).push_back(pending);
  };
  return {raw, take_over};
}

/// Receives dropped operations as long as the next one to be received is among them. Discards the
/// results, and errors after which the group works.
template <typename Pending>
void receive_dropped(GroupState& group, std::vector<std::shared_ptr<Pending>> GroupState::* dropped,
                     std::uint64_t GroupState::* received) {
  const auto take_next = [&]() -> std::shared_ptr<Pending> {
    const std::lock_guard lock(group.dropped_mutex);
    auto& all = group.*dropped;
    const auto next = std::find_if(all.begin(), all.end(), [&](const auto& pending) {
      return epoch_of(*pending) == group.*received + 1;
    });
    if (next == all.end()) return nullptr;
    auto pending = std::move(*next);
    all.erase(next);
    return pending;
  };
  while (const auto pending = take_next()) {
    pending->received = true;
    ++(group.*received);
    try {
      const auto scope = OperationScope::receive(group, operation_of(*pending), epoch_of(*pending));
      group.backend->low_latency().receive(*pending);
    } catch (const Error& error) {
      if (!group.failure.empty()) throw;
      log::debug("a low-latency operation that was dropped: {}", error.what());
    }
  }
}

void receive_dropped_dispatches(GroupState& group) {
  receive_dropped(group, &GroupState::dropped_dispatches,
                  &GroupState::low_latency_dispatch_received);
}
void receive_dropped_combines(GroupState& group) {
  receive_dropped(group, &GroupState::dropped_combines, &GroupState::low_latency_combine_received);
}

/// The group of an operation that is to be received.
template <typename Pending>
GroupState& group_of(const std::shared_ptr<Pending>& pending, const char* call, const char* what) {
  require(pending != nullptr && !pending->received, Code::invalid_argument,
          "SHOAL-N522: {}: this {} has been received, or is empty", call, what);
  return idle_group(pending->group.lock(), call);
}

}  // namespace
}  // namespace detail

PendingDispatch Group::low_latency_dispatch(const ConstTensorView& x,
                                            const ConstTensorView& topk_idx,
                                            const LowLatencyDispatchOptions& options) {
  const char* call = "low_latency_dispatch";
  detail::GroupState& group = detail::idle_group(state_, call);
  return detail::refusable(group, detail::CallKind::low_latency_dispatch, [&] {
    detail::check_low_latency_dispatch(group, x, topk_idx, options);
    const Tensor rows = detail::aligned_rows(x);
    const detail::OperationScope scope(group, detail::record::Operation::low_latency_dispatch,
                                       true);
    // Otherwise later, so that a send waits for no other rank.
    if (!options.defer_receive ||
        group.low_latency_dispatch_epoch == group.low_latency_dispatch_received + 2)
      detail::receive_dropped_dispatches(group);
    detail::require_half(call, group.low_latency_dispatch_epoch,
                         group.low_latency_dispatch_received);
    return shoal::detail::Access::make<PendingDispatch>(
        detail::owned_by_caller(group.backend->low_latency().dispatch(rows, topk_idx, options),
                                &detail::GroupState::dropped_dispatches));
  });
}

const LowLatencyReceived* PendingDispatch::result() const noexcept {
  return state_ != nullptr && !state_->received && state_->result ? &*state_->result : nullptr;
}

bool PendingDispatch::ready() const {
  return detail::group_of(state_, "ready", "low-latency dispatch")
      .backend->low_latency()
      .ready(*state_);
}

LowLatencyReceived PendingDispatch::receive() {
  detail::GroupState& group = detail::group_of(state_, "receive", "low-latency dispatch");
  detail::receive_dropped_dispatches(group);
  detail::require_next("low_latency_dispatch", state_->handle->epoch,
                       group.low_latency_dispatch_received);
  const auto scope = detail::OperationScope::receive(
      group, detail::record::Operation::low_latency_dispatch, state_->handle->epoch);
  state_->received = true;
  ++group.low_latency_dispatch_received;
  return group.backend->low_latency().receive(*state_);
}

PendingCombine Group::low_latency_combine(const ConstTensorView& y, const ConstTensorView& topk_idx,
                                          const ConstTensorView& weights,
                                          const LowLatencyHandle& handle,
                                          const LowLatencyCombineOptions& options) {
  const char* call = "low_latency_combine";
  detail::GroupState& group = detail::idle_group_for(state_, call, "low_latency_dispatch", handle);
  return detail::refusable(group, detail::CallKind::low_latency_combine, [&] {
    detail::check_low_latency_combine(group, y, topk_idx, weights, state_of(handle).get(), options);
    // The rows travel as those of an exact sum, and no weight is read.
    LowLatencyCombineOptions travels = options;
    if (options.unsummed) travels.reduction = Reduction::exact;
    const Tensor rows = detail::aligned_rows(y);
    const detail::OperationScope scope(group, detail::record::Operation::low_latency_combine, true);
    if (!options.defer_receive ||
        group.low_latency_combine_epoch == group.low_latency_combine_received + 2)
      detail::receive_dropped_combines(group);
    detail::require_half(call, group.low_latency_combine_epoch, group.low_latency_combine_received);
    auto pending = shoal::detail::Access::make<PendingCombine>(detail::owned_by_caller(
        group.backend->low_latency().combine(rows, topk_idx,
                                             options.unsummed ? ConstTensorView() : weights,
                                             state_of(handle), travels),
        &detail::GroupState::dropped_combines));
    group.combine_buffer = {};  // the next combine uses the other half
    return pending;
  });
}

bool PendingCombine::ready() const {
  return detail::group_of(state_, "ready", "low-latency combine")
      .backend->low_latency()
      .ready(*state_);
}

Tensor PendingCombine::receive() {
  detail::GroupState& group = detail::group_of(state_, "receive", "low-latency combine");
  detail::receive_dropped_combines(group);
  detail::require_next("low_latency_combine", state_->epoch, group.low_latency_combine_received);
  const auto scope = detail::OperationScope::receive(
      group, detail::record::Operation::low_latency_combine, state_->epoch);
  state_->received = true;
  ++group.low_latency_combine_received;
  const TensorView out = state_->options.out;
  const Tensor room = detail::room_for_rows(out);
  state_->options.out = room;
  Tensor combined = group.backend->low_latency().receive(*state_);
  detail::move_to_caller(combined, room, out);
  return combined;
}

TensorView Group::next_combine_buffer() {
  detail::GroupState& group = detail::idle_group(state_, "next_combine_buffer");
  detail::check_low_latency_mode(group, "next_combine_buffer");
  group.combine_buffer = group.backend->low_latency().next_combine_buffer();
  return group.combine_buffer;
}

}  // namespace shoal::ep
