// SPDX-License-Identifier: Apache-2.0
// normal.cpp: normal mode: route, dispatch, combine.
#include "capi/ep.hpp"

namespace shoal::capi {
namespace {

using RoutingOwner = Owned<ep::Routing>;
using DispatchedOwner = Owned<ep::detail::AnyDispatched, shoal_ep_handle>;
using CombinedOwner = Owned<ep::Combined>;

ep::detail::AnyDispatchOptions dispatch_options(const shoal_ep_dispatch_options* given,
                                                const char* call) {
  const shoal_ep_dispatch_options defaults = SHOAL_EP_DISPATCH_OPTIONS_INIT;
  const auto c = read_struct("shoal_ep_dispatch_options", given, defaults);
  return {{.weights = optional_view_of(c.weights, call, "shoal_ep_dispatch_options.weights"),
           .scales = optional_view_of(c.scales, call, "shoal_ep_dispatch_options.scales"),
           .quantize = enumeration(c.quantize, ep::Quantize::nvfp4, call,
                                   "shoal_ep_dispatch_options.quantize"),
           .global_scale =
               optional_view_of(c.global_scale, call, "shoal_ep_dispatch_options.global_scale"),
           .expert_alignment = c.expert_alignment,
           .worst_case_rows = c.worst_case_rows,
           .copy_out = c.copy_out != 0,
           .launch = launch_of(c.launch)},
          c.expert_major != 0};
}

ep::CombineOptions combine_options(const shoal_ep_combine_options* given, const char* call) {
  const shoal_ep_combine_options defaults = SHOAL_EP_COMBINE_OPTIONS_INIT;
  const auto c = read_struct("shoal_ep_combine_options", given, defaults);
  require(c.biases >= 0 && c.biases <= 2, Code::invalid_argument,
          "SHOAL-N881: {}: shoal_ep_combine_options.biases is {}; allowed: 0 to 2", call, c.biases);
  ep::CombineOptions options{
      .weights = optional_view_of(c.weights, call, "shoal_ep_combine_options.weights"),
      .quantize =
          enumeration(c.quantize, ep::Quantize::nvfp4, call, "shoal_ep_combine_options.quantize"),
      .unsummed = c.unsummed != 0,
      .out = optional_view_of(c.out, call, "shoal_ep_combine_options.out"),
      .launch = launch_of(c.launch),
  };
  const char* name = "shoal_ep_combine_options.bias";
  for (std::int64_t i = 0; i < c.biases; ++i)
    options.bias.push_back(view_of(&required(c.bias, call, name) + i, call, name));
  return options;
}

template <typename T>
const T* data_of(const std::vector<T>& numbers) {
  return numbers.empty() ? nullptr : numbers.data();
}

void fill_routing(shoal_ep_routing* out, ep::Routing&& result, const Counts& counts) {
  auto owner = std::make_unique<RoutingOwner>(std::move(result));
  const ep::Routing& routing = owner->value;
  shoal_ep_routing c = SHOAL_EP_ROUTING_INIT;
  c.topk_idx = tensor_of(routing.topk_idx);
  c.tokens = routing.tokens();
  c.ranks = counts.ranks;
  c.experts = counts.experts;
  if (const auto& here = routing.counts) {
    c.tokens_per_rank = data_of(here->tokens_per_rank);
    c.tokens_per_expert = data_of(here->tokens_per_expert);
    c.tokens_per_node = data_of(here->tokens_per_node);
    c.nodes = static_cast<std::int32_t>(here->tokens_per_node.size());
  } else if (const auto& on_gpu = routing.device_counts) {
    c.rank_counts = tensor_of(on_gpu->tokens_per_rank);
    c.expert_counts = tensor_of(on_gpu->tokens_per_expert);
    c.node_counts = tensor_of(on_gpu->tokens_per_node);
    c.nodes = static_cast<std::int32_t>(on_gpu->tokens_per_node.shape[0]);
  }
  c.owner = owner.release();
  fill_struct(out, c);
}

void fill_dispatched(shoal_ep_dispatched* out, ep::detail::AnyDispatched&& result,
                     const Counts& counts) {
  shoal_ep_handle handle{result.handle};
  auto owner = std::make_unique<DispatchedOwner>(std::move(result), std::move(handle));
  const ep::detail::AnyDispatched& dispatched = owner->value;
  shoal_ep_dispatched c = SHOAL_EP_DISPATCHED_INIT;
  c.handle = &owner->handle;
  c.x = tensor_of(dispatched.x);
  c.scales = tensor_of(dispatched.scales);
  c.topk_idx = tensor_of(dispatched.topk_idx);
  c.topk_weights = tensor_of(dispatched.topk_weights);
  c.source_token = tensor_of(dispatched.source_token);
  c.expert_first_row = tensor_of(dispatched.expert_first_row);
  c.row_count = tensor_of(dispatched.row_count);
  c.expert_counts = tensor_of(dispatched.expert_counts);
  c.rows_per_source = data_of(dispatched.rows_per_source);
  c.tokens_per_expert = data_of(dispatched.tokens_per_expert);
  c.rows = dispatched.rows;
  c.ranks = counts.ranks;
  c.local_experts = counts.local_experts;
  c.owner = owner.release();
  fill_struct(out, c);
}

void fill_combined(shoal_ep_combined* out, ep::Combined&& result) {
  auto owner = std::make_unique<CombinedOwner>(std::move(result));
  shoal_ep_combined c = SHOAL_EP_COMBINED_INIT;
  c.x = tensor_of(owner->value.x);
  c.topk_weights = tensor_of(owner->value.topk_weights.value_or(Tensor()));
  c.owner = owner.release();
  fill_struct(out, c);
}

const ep::Routing& routing_in(const shoal_ep_routing* routing, const char* call) {
  return owner_of<RoutingOwner>(required(routing, call, "routing").owner, call, "routing").value;
}

/// Both forms of dispatch. `layout`: a routing or a handle.
template <typename Layout>
void dispatch(const char* call, shoal_ep_group* handle, const shoal_tensor* x, const Layout& layout,
              const shoal_ep_dispatch_options* options, shoal_ep_dispatched* out) {
  check_fillable(call, "shoal_ep_dispatched", out);
  ep::Group& group = group_of(handle, call);
  fill_dispatched(
      out,
      ep::detail::dispatch(group, view_of(x, call, "x"), layout, dispatch_options(options, call)),
      Counts(group));
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_ep_routing_release(shoal_ep_routing* routing) {
  return release("shoal_ep_routing_release", "shoal_ep_routing", routing, SHOAL_EP_ROUTING_INIT);
}
shoal_status shoal_ep_dispatched_release(shoal_ep_dispatched* dispatched) {
  return release("shoal_ep_dispatched_release", "shoal_ep_dispatched", dispatched,
                 SHOAL_EP_DISPATCHED_INIT);
}
shoal_status shoal_ep_combined_release(shoal_ep_combined* combined) {
  return release("shoal_ep_combined_release", "shoal_ep_combined", combined,
                 SHOAL_EP_COMBINED_INIT);
}

shoal_status shoal_ep_route(const shoal_ep_group* group, const shoal_tensor* topk_idx,
                            const shoal_ep_launch* launch, shoal_ep_routing* routing) {
  const char* call = "shoal_ep_route";
  return guarded([&] {
    check_fillable(call, "shoal_ep_routing", routing);
    const shoal::ep::Group& made_by = group_of(group, call);
    fill_routing(routing, made_by.route(view_of(topk_idx, call, "topk_idx"), launch_of(launch)),
                 Counts(made_by));
  });
}

shoal_status shoal_ep_is_token_in_rank(const shoal_ep_routing* routing, int64_t token, int32_t rank,
                                       int32_t* inside) {
  const char* call = "shoal_ep_is_token_in_rank";
  return guarded([&] {
    required(inside, call, "inside") =
        routing_in(routing, call).is_token_in_rank(token, rank) ? 1 : 0;
  });
}

shoal_status shoal_ep_dispatch(shoal_ep_group* group, const shoal_tensor* x,
                               const shoal_ep_routing* routing,
                               const shoal_ep_dispatch_options* options,
                               shoal_ep_dispatched* dispatched) {
  const char* call = "shoal_ep_dispatch";
  return guarded([&] { dispatch(call, group, x, routing_in(routing, call), options, dispatched); });
}

shoal_status shoal_ep_dispatch_cached(shoal_ep_group* group, const shoal_tensor* x,
                                      const shoal_ep_handle* handle,
                                      const shoal_ep_dispatch_options* options,
                                      shoal_ep_dispatched* dispatched) {
  const char* call = "shoal_ep_dispatch_cached";
  return guarded([&] {
    dispatch(call, group, x, required(handle, call, "handle").value, options, dispatched);
  });
}

shoal_status shoal_ep_combine(shoal_ep_group* group, const shoal_tensor* y,
                              const shoal_ep_handle* handle,
                              const shoal_ep_combine_options* options,
                              shoal_ep_combined* combined) {
  const char* call = "shoal_ep_combine";
  return guarded([&] {
    check_fillable(call, "shoal_ep_combined", combined);
    const shoal::ep::Handle& layout = required(handle, call, "handle").value;
    fill_combined(combined,
                  group_of(group, call)
                      .combine(view_of(y, call, "y"), layout, combine_options(options, call)));
  });
}

shoal_status shoal_ep_handle_copy(const shoal_ep_handle* handle, shoal_ep_handle** copy) {
  const char* call = "shoal_ep_handle_copy";
  return guarded([&] {
    shoal_ep_handle*& out = required(copy, call, "copy");
    out = new shoal_ep_handle(required(handle, call, "handle"));
  });
}

shoal_status shoal_ep_handle_destroy(shoal_ep_handle* handle) {
  return destroy(handle);
}

// Operations on the group's own thread.

namespace shoal::capi {
namespace {

template <typename Result>
Result take(const shoal_ep_future& owner, std::future<Result>& future, const char* call) {
  require(future.valid(), Code::invalid_argument,
          "SHOAL-N880: {}: this future is of another operation, or its result was taken", call);
  require(getpid() == owner.process, Code::closed,
          "SHOAL-N885: {}: this process is a fork of the one that started the operation", call);
  return future.get();
}

template <typename Result>
bool ready(const std::future<Result>& future) {
  return !future.valid() || future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace
}  // namespace shoal::capi

shoal_status shoal_ep_dispatch_async(shoal_ep_group* group, const shoal_tensor* x,
                                     const shoal_ep_routing* routing,
                                     const shoal_ep_dispatch_options* options,
                                     shoal_ep_future** future) {
  const char* call = "shoal_ep_dispatch_async";
  return guarded([&] {
    shoal_ep_future*& out = required(future, call, "future");
    shoal::ep::Group& by = group_of(group, call);
    auto made = std::make_unique<shoal_ep_future>(by);
    made->dispatched = shoal::ep::detail::dispatch_async(
        by, view_of(x, call, "x"), routing_in(routing, call), dispatch_options(options, call));
    out = made.release();
  });
}

shoal_status shoal_ep_combine_async(shoal_ep_group* group, const shoal_tensor* y,
                                    const shoal_ep_handle* handle,
                                    const shoal_ep_combine_options* options,
                                    shoal_ep_future** future) {
  const char* call = "shoal_ep_combine_async";
  return guarded([&] {
    shoal_ep_future*& out = required(future, call, "future");
    shoal::ep::Group& by = group_of(group, call);
    auto made = std::make_unique<shoal_ep_future>(by);
    made->combined = by.combine_async(view_of(y, call, "y"), required(handle, call, "handle").value,
                                      combine_options(options, call));
    out = made.release();
  });
}

shoal_status shoal_ep_future_ready(const shoal_ep_future* future, int32_t* is_ready) {
  const char* call = "shoal_ep_future_ready";
  return guarded([&] {
    const shoal_ep_future& asked = required(future, call, "future");
    required(is_ready, call, "ready") = ready(asked.dispatched) && ready(asked.combined) ? 1 : 0;
  });
}

shoal_status shoal_ep_future_dispatched(shoal_ep_future* future, shoal_ep_dispatched* dispatched) {
  const char* call = "shoal_ep_future_dispatched";
  return guarded([&] {
    check_fillable(call, "shoal_ep_dispatched", dispatched);
    shoal_ep_future& taken = required(future, call, "future");
    fill_dispatched(dispatched, take(taken, taken.dispatched, call), taken.counts);
  });
}

shoal_status shoal_ep_future_combined(shoal_ep_future* future, shoal_ep_combined* combined) {
  const char* call = "shoal_ep_future_combined";
  return guarded([&] {
    check_fillable(call, "shoal_ep_combined", combined);
    shoal_ep_future& taken = required(future, call, "future");
    fill_combined(combined, take(taken, taken.combined, call));
  });
}

shoal_status shoal_ep_future_destroy(shoal_ep_future* future) {
  if (future == nullptr) return SHOAL_OK;
  const bool here = getpid() == future->process;
  if (here && future->dispatched.valid()) future->dispatched.wait();
  if (here && future->combined.valid()) future->combined.wait();
  return destroy(future);
}
