// SPDX-License-Identifier: Apache-2.0
// normal.cpp: the calls of normal mode: route, dispatch, combine, and their asynchronous
// forms.
#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "ep/api/calls.hpp"
#include "ep/group/aligned_rows.hpp"
#include "ep/group/checks.hpp"
#include "ep/group/expand.hpp"
#include "ep/group/modes.hpp"
#include "shoal/detail/ep_layouts.hpp"

namespace shoal::ep {
namespace detail {
namespace {

void check_handle(const GroupState& group, const char* call, const Handle& handle) {
  require(handle.valid() && state_of(handle)->group.lock().get() == &group, Code::invalid_argument,
          "SHOAL-N530: {}: the handle is not of a dispatch of this group", call);
}

/// Checks the arguments of a dispatch and runs it: by `routing`, or, where that is nullptr, in the
/// layout of `handle`.
AnyDispatched run_dispatch(GroupState& group, const ConstTensorView& x, const Routing* routing,
                           const Handle* handle, const AnyDispatchOptions& options) {
  return refusable(group, CallKind::normal, [&] {
    if (routing != nullptr)
      check_routing(group, *routing);
    else
      check_handle(group, "dispatch", *handle);
    const auto cached = routing != nullptr ? nullptr : state_of(*handle);
    const auto& sent = routing != nullptr ? state_of(*routing) : cached->routing;
    check_rows(group, x, sent->tokens, options, cached.get());
    check_dispatch_options(group, x, options, cached.get());
    const Tensor rows = aligned_rows(x);
    const OperationScope scope(group, record::Operation::dispatch);
    return group.backend->normal().dispatch({rows, options, sent, cached});
  });
}

/// True if the backend takes all rows of a combine as they are.
bool aligned(const ConstTensorView& y, const CombineOptions& options) {
  return rows_aligned(y) && rows_aligned(options.out) &&
         std::all_of(options.bias.begin(), options.bias.end(), rows_aligned);
}

/// A combine of copies of the rows.
Combined combine_copies(GroupState& group, const ConstTensorView& y, const HandleState& handle,
                        CombineOptions options) {
  const TensorView out = options.out;
  const Tensor rows = aligned_rows(y), room = room_for_rows(out);
  options.out = room;
  std::vector<Tensor> biases;
  for (ConstTensorView& bias : options.bias) bias = biases.emplace_back(aligned_rows(bias));
  Combined combined = group.backend->normal().combine(rows, handle, options);
  move_to_caller(combined.x, room, out);
  return combined;
}

Combined run_combine(GroupState& group, const ConstTensorView& y, const Handle& handle,
                     const CombineOptions& options) {
  return refusable(group, CallKind::normal, [&] {
    check_handle(group, "combine", handle);
    check_combine(group, y, *state_of(handle), options);
    const OperationScope scope(group, record::Operation::combine);
    if (!aligned(y, options)) return combine_copies(group, y, *state_of(handle), options);
    return group.backend->normal().combine(y, *state_of(handle), options);
  });
}

GroupState& idle(const Group& group, const char* call) {
  return idle_group(state_of(group), call);
}
GroupState& idle_for(const Group& group, const char* call, const Handle& handle) {
  return idle_group_for(state_of(group), call, "dispatch", handle);
}

/// The layout of a dispatch by handle is the handle's.
void check_layout(const Handle& handle, bool expert_major) {
  require(!handle.valid() || handle.expert_major() == expert_major, Code::invalid_argument,
          "SHOAL-N582: {}: the handle is of {} dispatch; use {}",
          expert_major ? "dispatch_expert_major" : "dispatch",
          expert_major ? "a rank-major" : "an expert-major",
          expert_major ? "dispatch" : "dispatch_expert_major");
}

AnyDispatchOptions any(const DispatchOptions& options) {
  return {options, false};
}
AnyDispatchOptions any(const ExpertMajorOptions& options) {
  return {DispatchOptions{.weights = options.weights,
                          .scales = options.scales,
                          .quantize = options.quantize,
                          .global_scale = options.global_scale,
                          .expert_alignment = options.alignment,
                          .worst_case_rows = options.worst_case_rows,
                          .copy_out = options.copy_out,
                          .transient = options.transient,
                          .launch = options.launch},
          true};
}

template <typename T>
std::optional<T> present(T value, bool is_present) {
  return is_present ? std::optional<T>(std::move(value)) : std::nullopt;
}
std::optional<Tensor> present(Tensor&& tensor) {
  const bool defined = tensor.defined();
  return present(std::move(tensor), defined);
}
Tensor or_undefined(const std::optional<Tensor>& tensor) {
  return tensor.value_or(Tensor());
}

/// The fields that both layouts have.
template <typename Result>
Result typed(AnyDispatched&& any) {
  Result result;
  result.x = std::move(any.x);
  result.scales = present(std::move(any.scales));
  result.topk_idx = present(std::move(any.topk_idx));
  result.topk_weights = present(std::move(any.topk_weights));
  result.source_token = present(std::move(any.source_token));
  if (any.rows >= 0) result.rows = any.rows;
  const bool sources = !any.rows_per_source.empty(), experts = any.has_tokens_per_expert;
  result.rows_per_source = present(std::move(any.rows_per_source), sources);
  result.tokens_per_expert = present(std::move(any.tokens_per_expert), experts);
  if (any.row_count.defined())
    result.device_counts = ReceivedCounts{.rows = std::move(any.row_count),
                                          .tokens_per_expert = std::move(any.expert_counts),
                                          .expert_ends = present(std::move(any.expert_ends)),
                                          .source_ends = present(std::move(any.source_ends))};
  result.handle = std::move(any.handle);
  if constexpr (requires { result.expert_first_row; })
    result.expert_first_row = std::move(any.expert_first_row);
  return result;
}

/// What unpack reads.
template <typename Result>
AnyDispatched untyped(const Result& result) {
  AnyDispatched any;
  any.x = result.x;
  any.scales = or_undefined(result.scales);
  any.topk_idx = or_undefined(result.topk_idx);
  any.topk_weights = or_undefined(result.topk_weights);
  any.source_token = or_undefined(result.source_token);
  if (result.device_counts) {
    any.row_count = result.device_counts->rows;
    any.expert_counts = result.device_counts->tokens_per_expert;
    any.expert_ends = or_undefined(result.device_counts->expert_ends);
    any.source_ends = or_undefined(result.device_counts->source_ends);
  }
  any.handle = result.handle;
  if constexpr (requires { result.expert_first_row; })
    any.expert_first_row = result.expert_first_row;
  return any;
}

/// Queues `run(group)` after `after`; the result is complete when the future is ready.
template <typename Run>
auto submit(const Group& by, const char* call, Future after, Run run) {
  const auto& state = state_of(by);
  return open_group(state, call)
      .work_queue(call)
      .submit(
          [state, call, run = std::move(run)] {
            GroupState& group = working_group(state, call);
            auto result = run(group);
            group.backend->synchronize();
            return result;
          },
          std::move(after));
}

}  // namespace

AnyDispatched dispatch(Group& group, const ConstTensorView& x, const Routing& routing,
                       const AnyDispatchOptions& options) {
  return run_dispatch(idle(group, "dispatch"), x, &routing, nullptr, options);
}

AnyDispatched dispatch(Group& group, const ConstTensorView& x, const Handle& handle,
                       const AnyDispatchOptions& options) {
  return run_dispatch(idle_for(group, "dispatch", handle), x, nullptr, &handle, options);
}

std::future<AnyDispatched> dispatch_async(Group& group, const ConstTensorView& x,
                                          const Routing& routing, const AnyDispatchOptions& options,
                                          Future after) {
  return submit(group, "dispatch_async", std::move(after), [x, routing, options](GroupState& by) {
    return run_dispatch(by, x, &routing, nullptr, options);
  });
}

bool has_room_for_another(const Group& group) {
  const auto& state = state_of(group);
  return state->arena.regions() < static_cast<std::size_t>(state->shape.live_results);
}

bool can_be_also_rank_major(const Group& group) {
  const auto& state = state_of(group);
  return state->backend->normal().kind == BackendKind::host && state->nodes.count == 1;
}

bool has_room_beside_graphs(const Group& group) {
  const auto& state = state_of(group);
  return state == nullptr || state->arena.has_plain_room();
}

bool captures(const Group& group, Stream stream) noexcept {
  const auto& state = state_of(group);
  return state != nullptr && !state->closed && state->backend->captures(stream);
}

void unpack(Group& group, const AnyDispatched& received, const UnpackOptions& to) {
  GroupState& state = idle_for(group, "unpack", received.handle);
  refusable(state, CallKind::normal, [&] {
    check_handle(state, "unpack", received.handle);
    check_launch(state, "unpack", to.launch);
    state.backend->normal().unpack(received, to);
  });
}

}  // namespace detail

bool Handle::expert_major() const {
  require(state_ != nullptr, Code::invalid_argument,
          "SHOAL-N530: expert_major: the handle is empty");
  return state_->expert_alignment > 0;
}

std::optional<std::int64_t> Handle::received_rows() const {
  require(state_ != nullptr, Code::invalid_argument,
          "SHOAL-N530: received_rows: the handle is empty");
  return detail::present(state_->received, state_->received >= 0);
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

Routing Group::route(const ConstTensorView& topk_idx, const RouteOptions& options) const {
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
  detail::unpack(*this, detail::untyped(received), to);
}

void Group::unpack(const ExpertMajorDispatched& received, const UnpackOptions& to) {
  detail::unpack(*this, detail::untyped(received), to);
}

void Group::expand(const ExpandOptions& options) {
  detail::GroupState& group = detail::idle_group(state_, "expand");
  detail::refusable(group, detail::CallKind::normal, [&] {
    detail::check_launch(group, "expand", options.launch);
    detail::check_expand(group, options);
    group.backend->normal().expand(options);
  });
}

Dispatched Group::dispatch(const ConstTensorView& x, const Routing& routing,
                           const DispatchOptions& options) {
  return detail::typed<Dispatched>(detail::dispatch(*this, x, routing, detail::any(options)));
}

Dispatched Group::dispatch(const ConstTensorView& x, const Handle& handle,
                           const DispatchOptions& options) {
  detail::check_layout(handle, false);
  return detail::typed<Dispatched>(detail::dispatch(*this, x, handle, detail::any(options)));
}

ExpertMajorDispatched Group::dispatch_expert_major(const ConstTensorView& x, const Routing& routing,
                                                   const ExpertMajorOptions& options) {
  return detail::typed<ExpertMajorDispatched>(
      detail::dispatch(*this, x, routing, detail::any(options)));
}

ExpertMajorDispatched Group::dispatch_expert_major(const ConstTensorView& x, const Handle& handle,
                                                   const ExpertMajorOptions& options) {
  detail::check_layout(handle, true);
  return detail::typed<ExpertMajorDispatched>(
      detail::dispatch(*this, x, handle, detail::any(options)));
}

Combined Group::combine(const ConstTensorView& y, const Handle& handle,
                        const CombineOptions& options) {
  return detail::run_combine(detail::idle_group_for(state_, "combine", "dispatch", handle), y,
                             handle, options);
}

std::future<Dispatched> Group::dispatch_async(const ConstTensorView& x, const Routing& routing,
                                              const DispatchOptions& options, Future after) {
  return detail::submit(
      *this, "dispatch_async", std::move(after), [x, routing, options](detail::GroupState& group) {
        return detail::typed<Dispatched>(
            detail::run_dispatch(group, x, &routing, nullptr, detail::any(options)));
      });
}

std::future<Dispatched> Group::dispatch_async(const ConstTensorView& x, const Handle& handle,
                                              const DispatchOptions& options, Future after) {
  return detail::submit(
      *this, "dispatch_async", std::move(after), [x, handle, options](detail::GroupState& group) {
        detail::check_layout(handle, false);
        return detail::typed<Dispatched>(
            detail::run_dispatch(group, x, nullptr, &handle, detail::any(options)));
      });
}

std::future<ExpertMajorDispatched> Group::dispatch_expert_major_async(
    const ConstTensorView& x, const Routing& routing, const ExpertMajorOptions& options,
    Future after) {
  return detail::submit(*this, "dispatch_expert_major_async", std::move(after),
                        [x, routing, options](detail::GroupState& group) {
                          return detail::typed<ExpertMajorDispatched>(detail::run_dispatch(
                              group, x, &routing, nullptr, detail::any(options)));
                        });
}

std::future<ExpertMajorDispatched> Group::dispatch_expert_major_async(
    const ConstTensorView& x, const Handle& handle, const ExpertMajorOptions& options,
    Future after) {
  return detail::submit(*this, "dispatch_expert_major_async", std::move(after),
                        [x, handle, options](detail::GroupState& group) {
                          detail::check_layout(handle, true);
                          return detail::typed<ExpertMajorDispatched>(detail::run_dispatch(
                              group, x, nullptr, &handle, detail::any(options)));
                        });
}

std::future<Combined> Group::combine_async(const ConstTensorView& y, const Handle& handle,
                                           const CombineOptions& options, Future after) {
  return detail::submit(*this, "combine_async", std::move(after),
                        [y, handle, options](detail::GroupState& group) {
                          return detail::run_combine(group, y, handle, options);
                        });
}

}  // namespace shoal::ep
