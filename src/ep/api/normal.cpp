// SPDX-License-Identifier: Apache-2.0
// normal.cpp: the calls of normal mode: route, dispatch, combine, and their asynchronous
// forms.
#include <algorithm>
#include <vector>

#include "base/check.hpp"
#include "ep/api/calls.hpp"
#include "ep/group/aligned_rows.hpp"
#include "ep/group/checks.hpp"
#include "ep/group/expand.hpp"
#include "ep/group/modes.hpp"

namespace shoal::ep {
namespace detail {
namespace {

void check_handle(const GroupState& group, const char* call, const Handle& handle) {
  require(handle.valid() && handle.state()->group.lock().get() == &group, Code::invalid_argument,
          "SHOAL-N530: {}: the handle is not of a dispatch of this group", call);
}

/// Checks the arguments of a dispatch and runs it: by `routing`, or, where that is nullptr, in the
/// layout of `handle`.
Dispatched run_dispatch(GroupState& group, const TensorView& x, const Routing* routing,
                        const Handle* handle, const DispatchOptions& options) {
  return refusable(group, CallKind::normal, [&] {
    if (routing != nullptr)
      check_routing(group, *routing);
    else
      check_handle(group, "dispatch", *handle);
    const auto cached = routing != nullptr ? nullptr : handle->state();
    const auto& sent = routing != nullptr ? routing->state : cached->routing;
    check_rows(group, x, sent->tokens);
    check_dispatch_options(group, x, options, cached.get());
    const Tensor rows = aligned_rows(x);
    const OperationScope scope(group, record::Operation::dispatch);
    return group.backend->normal().dispatch({rows, options, sent, cached});
  });
}

/// True if the backend takes all rows of a combine as they are.
bool aligned(const TensorView& y, const CombineOptions& options) {
  return rows_aligned(y) && rows_aligned(options.out) &&
         std::all_of(options.bias.begin(), options.bias.end(), rows_aligned);
}

/// A combine of copies of the rows.
Combined combine_copies(GroupState& group, const TensorView& y, const HandleState& handle,
                        CombineOptions options) {
  const TensorView out = options.out;
  const Tensor rows = aligned_rows(y), room = room_for_rows(out);
  options.out = room;
  std::vector<Tensor> biases;
  for (TensorView& bias : options.bias) bias = biases.emplace_back(aligned_rows(bias));
  Combined combined = group.backend->normal().combine(rows, handle, options);
  move_to_caller(combined.x, room, out);
  return combined;
}

Combined run_combine(GroupState& group, const TensorView& y, const Handle& handle,
                     const CombineOptions& options) {
  return refusable(group, CallKind::normal, [&] {
    check_handle(group, "combine", handle);
    check_combine(group, y, *handle.state(), options);
    const OperationScope scope(group, record::Operation::combine);
    if (!aligned(y, options)) return combine_copies(group, y, *handle.state(), options);
    return group.backend->normal().combine(y, *handle.state(), options);
  });
}

}  // namespace
}  // namespace detail

std::int64_t Handle::received_rows() const {
  require(state_ != nullptr, Code::invalid_argument,
          "SHOAL-N530: received_rows: the handle is empty");
  return state_->received;
}

std::int64_t Handle::result_rows() const {
  require(state_ != nullptr, Code::invalid_argument,
          "SHOAL-N530: result_rows: the handle is empty");
  return state_->result_rows;
}

std::int64_t Handle::tokens() const {
  require(state_ != nullptr, Code::invalid_argument, "SHOAL-N530: tokens: the handle is empty");
  return state_->routing->tokens;
}

Routing Group::route(const TensorView& topk_idx, const Launch& launch) const {
  return route(topk_idx, RouteOptions{.launch = launch});
}

Routing Group::route(const TensorView& topk_idx, const RouteOptions& options) const {
  detail::GroupState& group = detail::open_group(state_, "route");
  group.drain_work_queue();  // it may be in a call of this group
  return detail::refusable(group, detail::CallKind::normal, [&] {
    detail::check_launch(group, "route", options.launch);
    detail::check_topk(topk_idx, group.shape, group.device,
                       std::max(group.shape.max_tokens, group.shape.low_latency_max_tokens),
                       "route");
    detail::check_route_options(group, topk_idx.shape[0], options);
    return group.backend->normal().route(topk_idx, options);
  });
}

void Group::unpack(const Dispatched& received, const UnpackOptions& to) {
  detail::GroupState& group = detail::idle_group_for(state_, "unpack", "dispatch", received.handle);
  detail::refusable(group, detail::CallKind::normal, [&] {
    detail::check_handle(group, "unpack", received.handle);
    detail::check_launch(group, "unpack", to.launch);
    group.backend->normal().unpack(received, to);
  });
}

void Group::expand(const ExpandOptions& options) {
  detail::GroupState& group = detail::idle_group(state_, "expand");
  detail::refusable(group, detail::CallKind::normal, [&] {
    detail::check_launch(group, "expand", options.launch);
    detail::check_expand(group, options);
    group.backend->normal().expand(options);
  });
}

Dispatched Group::dispatch(const TensorView& x, const Routing& routing,
                           const DispatchOptions& options) {
  return detail::run_dispatch(detail::idle_group(state_, "dispatch"), x, &routing, nullptr,
                              options);
}

Dispatched Group::dispatch(const TensorView& x, const Handle& handle,
                           const DispatchOptions& options) {
  return detail::run_dispatch(detail::idle_group_for(state_, "dispatch", "dispatch", handle), x,
                              nullptr, &handle, options);
}

Combined Group::combine(const TensorView& y, const Handle& handle, const CombineOptions& options) {
  return detail::run_combine(detail::idle_group_for(state_, "combine", "dispatch", handle), y,
                             handle, options);
}

namespace {

/// Queues `run(group)` after `after`; the result is complete when the future is ready.
template <typename Run>
auto submit(const std::shared_ptr<detail::GroupState>& state, const char* call, Future after,
            Run run) {
  return detail::open_group(state, call)
      .work_queue(call)
      .submit(
          [state, call, run = std::move(run)] {
            detail::GroupState& group = detail::working_group(state, call);
            auto result = run(group);
            group.backend->synchronize();
            return result;
          },
          std::move(after));
}

}  // namespace

std::future<Dispatched> Group::dispatch_async(const TensorView& x, const Routing& routing,
                                              const DispatchOptions& options, Future after) {
  return submit(state_, "dispatch_async", std::move(after),
                [x, routing, options](detail::GroupState& group) {
                  return detail::run_dispatch(group, x, &routing, nullptr, options);
                });
}

std::future<Combined> Group::combine_async(const TensorView& y, const Handle& handle,
                                           const CombineOptions& options, Future after) {
  return submit(state_, "combine_async", std::move(after),
                [y, handle, options](detail::GroupState& group) {
                  return detail::run_combine(group, y, handle, options);
                });
}

}  // namespace shoal::ep
