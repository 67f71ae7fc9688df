// SPDX-License-Identifier: Apache-2.0
// A mixture-of-experts layer in C: normal mode, then low latency. Expert e multiplies by e + 1, so
// every token returns as x * sum(weight * (e + 1)). All values are exact in float32 and bfloat16.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <shoal/shoal.h>

enum { TOKENS = 12, HIDDEN = 128, TOP_K = 2, LOCAL_EXPERTS = 2 };

/// Prints the message of a failed call and ends the program; the other PEs notice.
static void check(shoal_status status) {
  if (status == SHOAL_OK) return;
  fprintf(stderr, "%s (%s)\n", shoal_last_error(), shoal_status_name(status));
  exit(1);
}

/// `value` must need no rounding.
static uint16_t bfloat16_of(float value) {
  uint32_t bits = 0;
  memcpy(&bits, &value, sizeof bits);
  return (uint16_t)(bits >> 16);
}
static float float_of(uint16_t bfloat16) {
  const uint32_t bits = (uint32_t)bfloat16 << 16;
  float value = 0;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static shoal_tensor matrix(void* data, int32_t dtype, int64_t rows, int64_t columns) {
  shoal_tensor tensor;
  const int64_t shape[2] = {rows, columns};
  check(shoal_tensor_init(&tensor, data, dtype, 2, shape));
  return tensor;
}

/// The tokens of one PE, their experts and weights.
typedef struct {
  float x[TOKENS][HIDDEN];
  int64_t topk_idx[TOKENS][TOP_K];
  float weights[TOKENS][TOP_K];
} Batch;

static void make_batch(Batch* batch, int32_t pe, int32_t experts) {
  for (int t = 0; t < TOKENS; ++t) {
    for (int c = 0; c < HIDDEN; ++c) batch->x[t][c] = (float)((pe + t + c) % 4);
    batch->topk_idx[t][0] = (pe + t) % experts;
    batch->topk_idx[t][1] = (pe + t + experts / 2) % experts;  // with several PEs: on another PE
    batch->weights[t][0] = 0.5F;
    batch->weights[t][1] = 0.25F;
  }
}

static float expected(const Batch* batch, int t, int c) {
  float factor = 0;
  for (int k = 0; k < TOP_K; ++k)
    factor += batch->weights[t][k] * (float)(batch->topk_idx[t][k] + 1);
  return factor * batch->x[t][c];
}

/// Runs the local experts in place: each row becomes the weighted sum of its local experts' output.
static void run_experts(const shoal_ep_dispatched* received, int32_t first_expert) {
  float* rows = received->x.data;
  const int64_t* experts = received->topk_idx.data;
  const float* weights = received->topk_weights.data;
  for (int64_t row = 0; row < received->rows; ++row) {
    float factor = 0;
    for (int k = 0; k < TOP_K; ++k) {
      const int64_t local = experts[row * TOP_K + k];  // -1: an expert of another PE
      if (local >= 0) factor += weights[row * TOP_K + k] * (float)(first_expert + local + 1);
    }
    for (int c = 0; c < HIDDEN; ++c) rows[row * HIDDEN + c] *= factor;
  }
}

/// Returns the number of wrong values.
static int run_normal(shoal_ep_group* group, Batch* batch, int32_t pe) {
  const shoal_tensor x = matrix(batch->x, SHOAL_FLOAT32, TOKENS, HIDDEN);
  const shoal_tensor topk_idx = matrix(batch->topk_idx, SHOAL_INT64, TOKENS, TOP_K);
  const shoal_tensor weights = matrix(batch->weights, SHOAL_FLOAT32, TOKENS, TOP_K);

  shoal_ep_routing routing = SHOAL_EP_ROUTING_INIT;
  check(shoal_ep_route(group, &topk_idx, NULL, &routing));

  shoal_ep_dispatch_options options = SHOAL_EP_DISPATCH_OPTIONS_INIT;
  options.weights = &weights;
  shoal_ep_dispatched received = SHOAL_EP_DISPATCHED_INIT;
  check(shoal_ep_dispatch(group, &x, &routing, &options, &received));
  printf("PE %d received %d rows\n", (int)pe, (int)received.rows);

  run_experts(&received, pe * LOCAL_EXPERTS);

  shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
  check(shoal_ep_combine(group, &received.x, received.handle, NULL, &combined));

  int wrong = 0;
  const float* y = combined.x.data;
  for (int t = 0; t < TOKENS; ++t)
    for (int c = 0; c < HIDDEN; ++c) wrong += y[t * HIDDEN + c] != expected(batch, t, c);
  check(shoal_ep_combined_release(&combined));
  check(shoal_ep_dispatched_release(&received));
  check(shoal_ep_routing_release(&routing));
  return wrong;
}

/// Low-latency mode: bfloat16 rows in one block per local expert; combine applies the weights.
static int run_low_latency(shoal_ep_group* group, Batch* batch, int32_t pe) {
  uint16_t rows[TOKENS][HIDDEN];
  for (int t = 0; t < TOKENS; ++t)
    for (int c = 0; c < HIDDEN; ++c) rows[t][c] = bfloat16_of(batch->x[t][c]);
  const shoal_tensor x = matrix(rows, SHOAL_BFLOAT16, TOKENS, HIDDEN);
  const shoal_tensor topk_idx = matrix(batch->topk_idx, SHOAL_INT64, TOKENS, TOP_K);
  const shoal_tensor weights = matrix(batch->weights, SHOAL_FLOAT32, TOKENS, TOP_K);

  shoal_ep_low_latency_dispatch_options options = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
  options.quantize = SHOAL_QUANTIZE_NONE;
  shoal_ep_pending_dispatch* dispatch = NULL;
  check(shoal_ep_low_latency_dispatch(group, &x, &topk_idx, &options, &dispatch));
  // The rows are in flight: other work can run here.
  shoal_ep_low_latency_received received = SHOAL_EP_LOW_LATENCY_RECEIVED_INIT;
  check(shoal_ep_pending_dispatch_receive(dispatch, &received));

  const int32_t* counts = received.counts.data;
  const int64_t room = received.x.shape[1];  // [local experts, rows, hidden]; counts[e] are valid
  uint16_t* y = received.x.data;
  for (int e = 0; e < LOCAL_EXPERTS; ++e)
    for (int64_t i = 0; i < counts[e] * HIDDEN; ++i) {
      uint16_t* value = &y[e * room * HIDDEN + i];
      *value = bfloat16_of(float_of(*value) * (float)(pe * LOCAL_EXPERTS + e + 1));
    }

  shoal_ep_pending_combine* combine = NULL;
  check(shoal_ep_low_latency_combine(group, &received.x, &topk_idx, &weights, received.handle, NULL,
                                     &combine));
  shoal_ep_combined combined = SHOAL_EP_COMBINED_INIT;
  check(shoal_ep_pending_combine_receive(combine, &combined));

  int wrong = 0;
  const uint16_t* sums = combined.x.data;
  for (int t = 0; t < TOKENS; ++t)
    for (int c = 0; c < HIDDEN; ++c)
      wrong += float_of(sums[t * HIDDEN + c]) != expected(batch, t, c);
  check(shoal_ep_combined_release(&combined));
  check(shoal_ep_low_latency_received_release(&received));
  check(shoal_ep_pending_combine_destroy(combine));
  check(shoal_ep_pending_dispatch_destroy(dispatch));
  return wrong;
}

int main(void) {
  shoal_world* world = NULL;
  check(shoal_world_open(NULL, &world));  // one PE, or as many as shoal-run started
  shoal_team* team = NULL;
  check(shoal_world_team(world, SHOAL_TEAM_WORLD, &team));
  int32_t pe = 0, n_pes = 0;
  check(shoal_world_pe(world, &pe));
  check(shoal_world_n_pes(world, &n_pes));

  shoal_ep_group_options options = SHOAL_EP_GROUP_OPTIONS_INIT;
  options.max_tokens = TOKENS;
  options.low_latency_max_tokens = TOKENS;
  options.hidden = HIDDEN;
  options.top_k = TOP_K;
  options.experts = LOCAL_EXPERTS * n_pes;
  options.dtype = SHOAL_FLOAT32;
  shoal_ep_group* group = NULL;
  check(shoal_ep_group_create(team, &options, &group));

  Batch batch;
  make_batch(&batch, pe, options.experts);
  const int wrong = run_normal(group, &batch, pe),
            wrong_low_latency = run_low_latency(group, &batch, pe);
  printf("PE %d of %d: %d values wrong in normal mode, %d in low latency\n", (int)pe, (int)n_pes,
         wrong, wrong_low_latency);

  check(shoal_ep_group_close(group));
  check(shoal_ep_group_destroy(group));
  check(shoal_team_destroy(team));
  check(shoal_world_close(world));
  check(shoal_world_destroy(world));
  return wrong == 0 && wrong_low_latency == 0 ? 0 : 1;
}
