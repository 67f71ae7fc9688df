// SPDX-License-Identifier: Apache-2.0
// group_low_latency.cpp: the calls of low-latency mode.
//
// Receives are made in the order of the sends, of which at most two are open: the buffers exist
// twice.
#include "base/check.hpp"
#include "ep/backend.hpp"
#include "ep/calls.hpp"
#include "ep/checks.hpp"
#include "ep/pending.hpp"

namespace shoal::ep {
namespace detail {
namespace {

void require_next(const char* call, std::uint64_t epoch, std::uint64_t received) {
  require(
      epoch == received + 1, Code::invalid_argument,
      "{}: this is number {} of the group, and number {} has not been received; receive them in the order in which "
      "they were sent",
      call, epoch, received + 1);
}

void require_half(const char* call, std::uint64_t sent, std::uint64_t received) {
  require(sent < received + 2, Code::invalid_argument,
          "{}: two are sent and not received; receive number {} first", call, received + 1);
}

/// The group of an operation that is to be received.
template <typename Pending>
GroupState& group_of(const std::shared_ptr<Pending>& pending, const char* call, const char* what) {
  require(pending != nullptr && !pending->received, Code::invalid_argument,
          "{}: this {} has been received, or is empty", call, what);
  return idle_group(pending->group.lock(), call);
}

}  // namespace
}  // namespace detail

PendingDispatch Group::low_latency_dispatch(const TensorView& x, const TensorView& topk_idx,
                                            const LowLatencyDispatchOptions& options) {
  const char* call = "low_latency_dispatch";
  detail::GroupState& group = detail::idle_group(state_, call);
  detail::check_low_latency_dispatch(group, x, topk_idx, options);
  detail::require_half(call, group.low_latency_dispatch_epoch, group.low_latency_dispatch_received);
  const detail::Timer timer(group.statistics.low_latency_dispatch_time);
  return PendingDispatch(group.backend->low_latency_dispatch(x, topk_idx, options));
}

bool PendingDispatch::ready() const {
  return detail::group_of(state_, "ready", "low-latency dispatch").backend->ready(*state_);
}

LowLatencyReceived PendingDispatch::receive() {
  detail::GroupState& group = detail::group_of(state_, "receive", "low-latency dispatch");
  detail::require_next("low_latency_dispatch", state_->handle->epoch,
                       group.low_latency_dispatch_received);
  const detail::Timer timer(group.statistics.low_latency_dispatch_time);
  state_->received = true;
  ++group.low_latency_dispatch_received;
  return group.backend->receive(*state_);
}

PendingCombine Group::low_latency_combine(const TensorView& y, const TensorView& topk_idx,
                                          const TensorView& weights, const LowLatencyHandle& handle,
                                          const LowLatencyCombineOptions& options) {
  const char* call = "low_latency_combine";
  detail::GroupState& group = detail::idle_group(state_, call);
  detail::check_low_latency_combine(group, y, topk_idx, weights, handle.state().get(), options);
  detail::require_half(call, group.low_latency_combine_epoch, group.low_latency_combine_received);
  const detail::Timer timer(group.statistics.low_latency_combine_time);
  PendingCombine pending(
      group.backend->low_latency_combine(y, topk_idx, weights, handle.state(), options));
  group.combine_buffer = {};  // the next combine uses the other half
  return pending;
}

bool PendingCombine::ready() const {
  return detail::group_of(state_, "ready", "low-latency combine").backend->ready(*state_);
}

Tensor PendingCombine::receive() {
  detail::GroupState& group = detail::group_of(state_, "receive", "low-latency combine");
  detail::require_next("low_latency_combine", state_->epoch, group.low_latency_combine_received);
  const detail::Timer timer(group.statistics.low_latency_combine_time);
  state_->received = true;
  ++group.low_latency_combine_received;
  return group.backend->receive(*state_);
}

TensorView Group::next_combine_buffer() {
  detail::GroupState& group = detail::idle_group(state_, "next_combine_buffer");
  detail::check_low_latency_mode(group, "next_combine_buffer");
  group.combine_buffer = group.backend->next_combine_buffer();
  return group.combine_buffer;
}

}  // namespace shoal::ep
