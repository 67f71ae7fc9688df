// SPDX-License-Identifier: Apache-2.0
// shoal/c/gate.h: the routing gate (shoal/ep/gate.hpp).
#ifndef SHOAL_C_GATE_H
#define SHOAL_C_GATE_H

#include <shoal/c/ep_types.h>
#include <shoal/c/status.h>
#include <shoal/c/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SHOAL_GATE_SIGMOID = 0, SHOAL_GATE_SOFTMAX = 1 };

/// Same fields as ep::GateOptions.
typedef struct shoal_ep_gate_options {
  size_t size;
  int32_t experts;
  int32_t groups;
  int32_t groups_kept;
  int32_t top_k;
  int32_t score;  ///< SHOAL_GATE_*
  int32_t normalize;
  float routed_scaling;
  int32_t reserved;  ///< 0
} shoal_ep_gate_options;
#define SHOAL_EP_GATE_OPTIONS_INIT \
  {sizeof(shoal_ep_gate_options), 256, 1, 1, 8, SHOAL_GATE_SIGMOID, 1, 1.0F, 0}

/// int64 and float32 [tokens, top_k].
typedef struct shoal_ep_gated {
  size_t size;
  shoal_owner* owner;
  shoal_tensor topk_idx;
  shoal_tensor topk_weights;
} shoal_ep_gated;
#define SHOAL_EP_GATED_INIT {sizeof(shoal_ep_gated), NULL, SHOAL_TENSOR_NONE, SHOAL_TENSOR_NONE}

SHOAL_API shoal_status shoal_ep_gated_release(shoal_ep_gated* gated);

/// Chooses experts and weights from router logits. logits: float32 [tokens, experts] on the host.
/// bias: NULL, or float32 [experts]. options: NULL for the defaults. Needs no world.
SHOAL_API shoal_status shoal_ep_gate(const shoal_tensor* logits, const shoal_tensor* bias,
                                     const shoal_ep_gate_options* options, shoal_ep_gated* gated);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_GATE_H
