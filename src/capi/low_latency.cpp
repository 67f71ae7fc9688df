// SPDX-License-Identifier: Apache-2.0
// low_latency.cpp: low-latency mode: sends and their receives.
#include "capi/ep.hpp"

namespace shoal::capi {
namespace {

using ReceivedOwner = Owned<ep::LowLatencyReceived, shoal_ep_low_latency_handle>;
using LowLatencyCombinedOwner = Owned<Tensor>;

ep::LowLatencyDispatchOptions low_latency_dispatch_options(
    const shoal_ep_low_latency_dispatch_options* given, const char* call) {
  const shoal_ep_low_latency_dispatch_options defaults = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
  const auto c = read_struct("shoal_ep_low_latency_dispatch_options", given, defaults);
  return {
      .quantize = enumeration(c.quantize, ep::Quantize::nvfp4, call,
                              "shoal_ep_low_latency_dispatch_options.quantize"),
      .scale_layout = enumeration(c.scale_layout, ep::ScaleLayout::tiles, call,
                                  "shoal_ep_low_latency_dispatch_options.scale_layout"),
      .global_scale = optional_view_of(c.global_scale, call,
                                       "shoal_ep_low_latency_dispatch_options.global_scale"),
      .tokens_per_expert = optional_view_of(c.expert_counts, call,
                                            "shoal_ep_low_latency_dispatch_options.expert_counts"),
      .wait_ns = optional_view_of(c.wait_ns, call, "shoal_ep_low_latency_dispatch_options.wait_ns"),
      .weights = optional_view_of(c.weights, call, "shoal_ep_low_latency_dispatch_options.weights"),
      .defer_receive = c.defer_receive != 0,
      .launch = launch_of(c.launch),
  };
}

ep::LowLatencyCombineOptions low_latency_combine_options(
    const shoal_ep_low_latency_combine_options* given, const char* call) {
  const shoal_ep_low_latency_combine_options defaults = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
  const auto c = read_struct("shoal_ep_low_latency_combine_options", given, defaults);
  return {
      .log_fmt = c.log_fmt != 0,
      .quantize = enumeration(c.quantize, ep::Quantize::nvfp4, call,
                              "shoal_ep_low_latency_combine_options.quantize"),
      .zero_copy = c.zero_copy != 0,
      .reduction = enumeration(c.reduction, ep::Reduction::exact, call,
                               "shoal_ep_low_latency_combine_options.reduction"),
      .unsummed = c.unsummed != 0,
      .out = optional_view_of(c.out, call, "shoal_ep_low_latency_combine_options.out"),
      .wait_ns = optional_view_of(c.wait_ns, call, "shoal_ep_low_latency_combine_options.wait_ns"),
      .defer_receive = c.defer_receive != 0,
      .launch = launch_of(c.launch),
  };
}

shoal_ep_low_latency_received received_of(std::unique_ptr<ReceivedOwner> owner) {
  const ep::LowLatencyReceived& received = owner->value;
  shoal_ep_low_latency_received c = SHOAL_EP_LOW_LATENCY_RECEIVED_INIT;
  c.handle = &owner->handle;
  c.x = tensor_of(received.x);
  c.scales = tensor_of(received.scales.value_or(Tensor()));
  c.counts = tensor_of(received.counts);
  c.source_token = tensor_of(received.source_token);
  c.layout = tensor_of(received.layout);
  c.owner = owner.release();
  return c;
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_ep_low_latency_received_release(shoal_ep_low_latency_received* received) {
  return release("shoal_ep_low_latency_received_release", "shoal_ep_low_latency_received", received,
                 SHOAL_EP_LOW_LATENCY_RECEIVED_INIT);
}

shoal_status shoal_ep_low_latency_dispatch(shoal_ep_group* group, const shoal_tensor* x,
                                           const shoal_tensor* topk_idx,
                                           const shoal_ep_low_latency_dispatch_options* options,
                                           shoal_ep_pending_dispatch** pending) {
  const char* call = "shoal_ep_low_latency_dispatch";
  return guarded([&] {
    shoal_ep_pending_dispatch*& out = required(pending, call, "pending");
    out = new shoal_ep_pending_dispatch{
        group_of(group, call)
            .low_latency_dispatch(view_of(x, call, "x"), view_of(topk_idx, call, "topk_idx"),
                                  low_latency_dispatch_options(options, call))};
  });
}

shoal_status shoal_ep_pending_dispatch_ready(const shoal_ep_pending_dispatch* pending,
                                             int32_t* ready) {
  const char* call = "shoal_ep_pending_dispatch_ready";
  return guarded([&] {
    required(ready, call, "ready") = required(pending, call, "pending").value.ready() ? 1 : 0;
  });
}

shoal_status shoal_ep_pending_dispatch_receive(shoal_ep_pending_dispatch* pending,
                                               shoal_ep_low_latency_received* received) {
  const char* call = "shoal_ep_pending_dispatch_receive";
  return guarded([&] {
    check_fillable(call, "shoal_ep_low_latency_received", received);
    shoal::ep::LowLatencyReceived result = required(pending, call, "pending").value.receive();
    shoal_ep_low_latency_handle handle{result.handle};
    fill_struct(received,
                received_of(std::make_unique<ReceivedOwner>(std::move(result), std::move(handle))));
  });
}

shoal_status shoal_ep_pending_dispatch_destroy(shoal_ep_pending_dispatch* pending) {
  return destroy(pending);
}

shoal_status shoal_ep_low_latency_combine(shoal_ep_group* group, const shoal_tensor* y,
                                          const shoal_tensor* topk_idx, const shoal_tensor* weights,
                                          const shoal_ep_low_latency_handle* handle,
                                          const shoal_ep_low_latency_combine_options* options,
                                          shoal_ep_pending_combine** pending) {
  const char* call = "shoal_ep_low_latency_combine";
  return guarded([&] {
    shoal_ep_pending_combine*& out = required(pending, call, "pending");
    const shoal::ep::LowLatencyCombineOptions given = low_latency_combine_options(options, call);
    out = new shoal_ep_pending_combine{
        group_of(group, call)
            .low_latency_combine(view_of(y, call, "y"), view_of(topk_idx, call, "topk_idx"),
                                 given.unsummed ? optional_view_of(weights, call, "weights")
                                                : view_of(weights, call, "weights"),
                                 required(handle, call, "handle").value, given)};
  });
}

shoal_status shoal_ep_pending_combine_ready(const shoal_ep_pending_combine* pending,
                                            int32_t* ready) {
  const char* call = "shoal_ep_pending_combine_ready";
  return guarded([&] {
    required(ready, call, "ready") = required(pending, call, "pending").value.ready() ? 1 : 0;
  });
}

shoal_status shoal_ep_pending_combine_receive(shoal_ep_pending_combine* pending,
                                              shoal_ep_combined* combined) {
  const char* call = "shoal_ep_pending_combine_receive";
  return guarded([&] {
    check_fillable(call, "shoal_ep_combined", combined);
    auto owner = std::make_unique<LowLatencyCombinedOwner>(
        required(pending, call, "pending").value.receive());
    shoal_ep_combined c = SHOAL_EP_COMBINED_INIT;
    c.x = tensor_of(owner->value);
    c.owner = owner.release();
    fill_struct(combined, c);
  });
}

shoal_status shoal_ep_pending_combine_destroy(shoal_ep_pending_combine* pending) {
  return destroy(pending);
}

shoal_status shoal_ep_low_latency_handle_copy(const shoal_ep_low_latency_handle* handle,
                                              shoal_ep_low_latency_handle** copy) {
  const char* call = "shoal_ep_low_latency_handle_copy";
  return guarded([&] {
    shoal_ep_low_latency_handle*& out = required(copy, call, "copy");
    out = new shoal_ep_low_latency_handle(required(handle, call, "handle"));
  });
}

shoal_status shoal_ep_low_latency_handle_destroy(shoal_ep_low_latency_handle* handle) {
  return destroy(handle);
}

shoal_status shoal_ep_next_combine_buffer(shoal_ep_group* group, shoal_tensor* buffer) {
  const char* call = "shoal_ep_next_combine_buffer";
  return guarded([&] {
    shoal_tensor& out = required(buffer, call, "buffer");
    out = tensor_of(group_of(group, call).next_combine_buffer());
  });
}
