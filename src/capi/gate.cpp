// SPDX-License-Identifier: Apache-2.0
// gate.cpp: the routing gate.
#include "shoal/ep/gate.hpp"

#include "capi/ep.hpp"

namespace shoal::capi {
namespace {

using GatedOwner = Owned<ep::Gated>;

ep::GateOptions gate_options(const shoal_ep_gate_options* given, const char* call) {
  const shoal_ep_gate_options defaults = SHOAL_EP_GATE_OPTIONS_INIT;
  const shoal_ep_gate_options c = read_struct("shoal_ep_gate_options", given, defaults);
  check_reserved("shoal_ep_gate_options", c.reserved);
  return {
      .experts = c.experts,
      .groups = c.groups,
      .groups_kept = c.groups_kept,
      .top_k = c.top_k,
      .score = enumeration(c.score, ep::GateScore::softmax, call, "shoal_ep_gate_options.score"),
      .normalize = c.normalize != 0,
      .routed_scaling = c.routed_scaling,
  };
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_ep_gate(const shoal_tensor* logits, const shoal_tensor* bias,
                           const shoal_ep_gate_options* options, shoal_ep_gated* gated) {
  const char* call = "shoal_ep_gate";
  return guarded([&] {
    check_fillable(call, "shoal_ep_gated", gated);
    auto owner = std::make_unique<GatedOwner>(shoal::ep::gate(view_of(logits, call, "logits"),
                                                              optional_view_of(bias, call, "bias"),
                                                              gate_options(options, call)));
    shoal_ep_gated c = SHOAL_EP_GATED_INIT;
    c.topk_idx = tensor_of(owner->value.topk_idx);
    c.topk_weights = tensor_of(owner->value.topk_weights);
    c.owner = owner.release();
    fill_struct(gated, c);
  });
}

shoal_status shoal_ep_gated_release(shoal_ep_gated* gated) {
  const shoal_ep_gated empty = SHOAL_EP_GATED_INIT;
  return release("shoal_ep_gated_release", "shoal_ep_gated", gated, empty);
}
