// SPDX-License-Identifier: Apache-2.0
// The layout of the structs of the C ABI, as numbers: a program that was compiled against an older
// header goes by them. To append a member, add its row and change the size. Any other change of a
// number breaks programs.
#include <gtest/gtest.h>

#include <cstddef>
#include <type_traits>

#include "shoal/detail/ep_layouts.hpp"
#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/shoal.h"

namespace shoal::test {
namespace {

static_assert(sizeof(void*) == 8 && sizeof(size_t) == 8,
              "the numbers are those of 64-bit platforms");

#define EXPECT_STRUCT(type, bytes) static_assert(sizeof(type) == (bytes) && alignof(type) == 8)
/// A member, its offset, and the type that gives it its size.
#define EXPECT_MEMBER(type, member, offset, of_type)  \
  static_assert(offsetof(type, member) == (offset) && \
                std::is_same_v<decltype(type::member), of_type>)

EXPECT_STRUCT(shoal_tensor, 88);
EXPECT_MEMBER(shoal_tensor, data, 0, void*);
EXPECT_MEMBER(shoal_tensor, shape, 8, int64_t[4]);
EXPECT_MEMBER(shoal_tensor, strides, 40, int64_t[4]);
EXPECT_MEMBER(shoal_tensor, dtype, 72, int32_t);
EXPECT_MEMBER(shoal_tensor, rank, 76, int32_t);
EXPECT_MEMBER(shoal_tensor, device, 80, int32_t);
EXPECT_MEMBER(shoal_tensor, device_index, 84, int32_t);

EXPECT_STRUCT(shoal_ep_group_options, 112);
EXPECT_MEMBER(shoal_ep_group_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_group_options, max_tokens, 8, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, hidden, 16, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, top_k, 24, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, experts, 28, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, dtype, 32, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, live_results, 36, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, max_scales, 40, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, low_latency_max_tokens, 48, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, timeout_ms, 56, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, preinitialize, 64, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, mask_failed, 68, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, threads, 72, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, combine_staging, 76, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, chunk_bytes, 80, int64_t);
EXPECT_MEMBER(shoal_ep_group_options, chunks_in_flight, 88, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, none_expert, 92, int32_t);
EXPECT_MEMBER(shoal_ep_group_options, first_expert, 96, const int32_t*);
EXPECT_MEMBER(shoal_ep_group_options, first_experts, 104, int64_t);

EXPECT_STRUCT(shoal_ep_launch, 40);
EXPECT_MEMBER(shoal_ep_launch, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_launch, stream, 8, void*);
EXPECT_MEMBER(shoal_ep_launch, after, 16, void*);
EXPECT_MEMBER(shoal_ep_launch, done, 24, void*);
EXPECT_MEMBER(shoal_ep_launch, sms, 32, int32_t);
EXPECT_MEMBER(shoal_ep_launch, reserved, 36, int32_t);

EXPECT_STRUCT(shoal_ep_dispatch_options, 64);
EXPECT_MEMBER(shoal_ep_dispatch_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, weights, 8, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_dispatch_options, scales, 16, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_dispatch_options, launch, 24, const shoal_ep_launch*);
EXPECT_MEMBER(shoal_ep_dispatch_options, worst_case_rows, 32, int64_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, expert_alignment, 40, int32_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, expert_major, 44, int32_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, copy_out, 48, int32_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, quantize, 52, int32_t);
EXPECT_MEMBER(shoal_ep_dispatch_options, global_scale, 56, const shoal_tensor*);

EXPECT_STRUCT(shoal_ep_combine_options, 56);
EXPECT_MEMBER(shoal_ep_combine_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_combine_options, weights, 8, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_combine_options, bias, 16, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_combine_options, biases, 24, int64_t);
EXPECT_MEMBER(shoal_ep_combine_options, out, 32, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_combine_options, launch, 40, const shoal_ep_launch*);
EXPECT_MEMBER(shoal_ep_combine_options, unsummed, 48, int32_t);
EXPECT_MEMBER(shoal_ep_combine_options, quantize, 52, int32_t);

EXPECT_STRUCT(shoal_ep_low_latency_dispatch_options, 64);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, expert_counts, 8, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, wait_ns, 16, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, weights, 24, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, launch, 32, const shoal_ep_launch*);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, quantize, 40, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, defer_receive, 44, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, global_scale, 48, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, scale_layout, 56, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_dispatch_options, reserved, 60, int32_t);

EXPECT_STRUCT(shoal_ep_low_latency_combine_options, 56);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, out, 8, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, wait_ns, 16, const shoal_tensor*);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, launch, 24, const shoal_ep_launch*);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, reduction, 32, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, log_fmt, 36, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, zero_copy, 40, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, defer_receive, 44, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, quantize, 48, int32_t);
EXPECT_MEMBER(shoal_ep_low_latency_combine_options, unsummed, 52, int32_t);

EXPECT_STRUCT(shoal_ep_routing, 416);
EXPECT_MEMBER(shoal_ep_routing, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_routing, owner, 8, shoal_owner*);
EXPECT_MEMBER(shoal_ep_routing, topk_idx, 16, shoal_tensor);
EXPECT_MEMBER(shoal_ep_routing, rank_counts, 104, shoal_tensor);
EXPECT_MEMBER(shoal_ep_routing, expert_counts, 192, shoal_tensor);
EXPECT_MEMBER(shoal_ep_routing, tokens_per_rank, 280, const int32_t*);
EXPECT_MEMBER(shoal_ep_routing, tokens_per_expert, 288, const int32_t*);
EXPECT_MEMBER(shoal_ep_routing, tokens, 296, int64_t);
EXPECT_MEMBER(shoal_ep_routing, ranks, 304, int32_t);
EXPECT_MEMBER(shoal_ep_routing, experts, 308, int32_t);
EXPECT_MEMBER(shoal_ep_routing, node_counts, 312, shoal_tensor);
EXPECT_MEMBER(shoal_ep_routing, tokens_per_node, 400, const int32_t*);
EXPECT_MEMBER(shoal_ep_routing, nodes, 408, int32_t);
EXPECT_MEMBER(shoal_ep_routing, reserved, 412, int32_t);

EXPECT_STRUCT(shoal_ep_dispatched, 760);
EXPECT_MEMBER(shoal_ep_dispatched, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_dispatched, owner, 8, shoal_owner*);
EXPECT_MEMBER(shoal_ep_dispatched, handle, 16, const shoal_ep_handle*);
EXPECT_MEMBER(shoal_ep_dispatched, x, 24, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, scales, 112, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, topk_idx, 200, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, topk_weights, 288, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, source_token, 376, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, expert_first_row, 464, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, row_count, 552, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, expert_counts, 640, shoal_tensor);
EXPECT_MEMBER(shoal_ep_dispatched, rows_per_source, 728, const int64_t*);
EXPECT_MEMBER(shoal_ep_dispatched, tokens_per_expert, 736, const int64_t*);
EXPECT_MEMBER(shoal_ep_dispatched, rows, 744, int64_t);
EXPECT_MEMBER(shoal_ep_dispatched, ranks, 752, int32_t);
EXPECT_MEMBER(shoal_ep_dispatched, local_experts, 756, int32_t);

EXPECT_STRUCT(shoal_ep_combined, 192);
EXPECT_MEMBER(shoal_ep_combined, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_combined, owner, 8, shoal_owner*);
EXPECT_MEMBER(shoal_ep_combined, x, 16, shoal_tensor);
EXPECT_MEMBER(shoal_ep_combined, topk_weights, 104, shoal_tensor);

EXPECT_STRUCT(shoal_ep_low_latency_received, 464);
EXPECT_MEMBER(shoal_ep_low_latency_received, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_low_latency_received, owner, 8, shoal_owner*);
EXPECT_MEMBER(shoal_ep_low_latency_received, handle, 16, const shoal_ep_low_latency_handle*);
EXPECT_MEMBER(shoal_ep_low_latency_received, x, 24, shoal_tensor);
EXPECT_MEMBER(shoal_ep_low_latency_received, scales, 112, shoal_tensor);
EXPECT_MEMBER(shoal_ep_low_latency_received, counts, 200, shoal_tensor);
EXPECT_MEMBER(shoal_ep_low_latency_received, source_token, 288, shoal_tensor);
EXPECT_MEMBER(shoal_ep_low_latency_received, layout, 376, shoal_tensor);

EXPECT_STRUCT(shoal_ep_sizes, 48);
EXPECT_MEMBER(shoal_ep_sizes, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_sizes, control, 8, uint64_t);
EXPECT_MEMBER(shoal_ep_sizes, normal, 16, uint64_t);
EXPECT_MEMBER(shoal_ep_sizes, low_latency, 24, uint64_t);
EXPECT_MEMBER(shoal_ep_sizes, total, 32, uint64_t);
EXPECT_MEMBER(shoal_ep_sizes, results, 40, uint64_t);

EXPECT_STRUCT(shoal_ep_statistics, 96);
EXPECT_MEMBER(shoal_ep_statistics, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_statistics, dispatches, 8, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, combines, 16, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, low_latency_dispatches, 24, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, low_latency_combines, 32, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, rows_sent, 40, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, rows_received, 48, uint64_t);
EXPECT_MEMBER(shoal_ep_statistics, dispatch_ns, 56, int64_t);
EXPECT_MEMBER(shoal_ep_statistics, combine_ns, 64, int64_t);
EXPECT_MEMBER(shoal_ep_statistics, low_latency_dispatch_ns, 72, int64_t);
EXPECT_MEMBER(shoal_ep_statistics, low_latency_combine_ns, 80, int64_t);
EXPECT_MEMBER(shoal_ep_statistics, wait_ns, 88, int64_t);

EXPECT_STRUCT(shoal_ep_gate_options, 40);
EXPECT_MEMBER(shoal_ep_gate_options, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_gate_options, experts, 8, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, groups, 12, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, groups_kept, 16, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, top_k, 20, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, score, 24, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, normalize, 28, int32_t);
EXPECT_MEMBER(shoal_ep_gate_options, routed_scaling, 32, float);
EXPECT_MEMBER(shoal_ep_gate_options, reserved, 36, int32_t);

EXPECT_STRUCT(shoal_ep_gated, 192);
EXPECT_MEMBER(shoal_ep_gated, size, 0, size_t);
EXPECT_MEMBER(shoal_ep_gated, owner, 8, shoal_owner*);
EXPECT_MEMBER(shoal_ep_gated, topk_idx, 16, shoal_tensor);
EXPECT_MEMBER(shoal_ep_gated, topk_weights, 104, shoal_tensor);

/// No padding: a member that is appended later must not lie in padding, whose bytes an older
/// program leaves undefined. The compiler counts: a struct without padding is exactly as long as
/// its members.
static_assert(std::has_unique_object_representations_v<shoal_tensor> &&
              std::has_unique_object_representations_v<shoal_ep_group_options> &&
              std::has_unique_object_representations_v<shoal_ep_launch> &&
              std::has_unique_object_representations_v<shoal_ep_dispatch_options> &&
              std::has_unique_object_representations_v<shoal_ep_combine_options> &&
              std::has_unique_object_representations_v<shoal_ep_low_latency_dispatch_options> &&
              std::has_unique_object_representations_v<shoal_ep_low_latency_combine_options> &&
              std::has_unique_object_representations_v<shoal_ep_routing> &&
              std::has_unique_object_representations_v<shoal_ep_dispatched> &&
              std::has_unique_object_representations_v<shoal_ep_combined> &&
              std::has_unique_object_representations_v<shoal_ep_low_latency_received> &&
              std::has_unique_object_representations_v<shoal_ep_sizes> &&
              std::has_unique_object_representations_v<shoal_ep_gated> &&
              std::has_unique_object_representations_v<shoal_ep_statistics>);

TEST(CApiLayout, InitMacrosSetTheSize){
#define EXPECT_SIZE(type, init)                 \
  {                                             \
    const type made = init;                     \
    EXPECT_EQ(made.size, sizeof made) << #type; \
  }
    EXPECT_SIZE(shoal_ep_group_options,
                SHOAL_EP_GROUP_OPTIONS_INIT) EXPECT_SIZE(shoal_ep_launch, SHOAL_EP_LAUNCH_INIT)
        EXPECT_SIZE(shoal_ep_dispatch_options, SHOAL_EP_DISPATCH_OPTIONS_INIT)
            EXPECT_SIZE(shoal_ep_combine_options, SHOAL_EP_COMBINE_OPTIONS_INIT) EXPECT_SIZE(
                shoal_ep_low_latency_dispatch_options, SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT)
                EXPECT_SIZE(shoal_ep_low_latency_combine_options,
                            SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT)
                    EXPECT_SIZE(shoal_ep_routing, SHOAL_EP_ROUTING_INIT)
                        EXPECT_SIZE(shoal_ep_dispatched, SHOAL_EP_DISPATCHED_INIT)
                            EXPECT_SIZE(shoal_ep_combined, SHOAL_EP_COMBINED_INIT)
                                EXPECT_SIZE(shoal_ep_low_latency_received,
                                            SHOAL_EP_LOW_LATENCY_RECEIVED_INIT)
                                    EXPECT_SIZE(shoal_ep_sizes, SHOAL_EP_SIZES_INIT)
                                        EXPECT_SIZE(shoal_ep_statistics, SHOAL_EP_STATISTICS_INIT)
                                            EXPECT_SIZE(shoal_ep_gate_options,
                                                        SHOAL_EP_GATE_OPTIONS_INIT)
                                                EXPECT_SIZE(shoal_ep_gated, SHOAL_EP_GATED_INIT)}

/// The defaults are those of C++.
TEST(CApiLayout, InitMacrosHaveTheDefaults) {
  const shoal_ep_group_options group = SHOAL_EP_GROUP_OPTIONS_INIT;
  const ep::GroupOptions wanted;
  EXPECT_EQ(group.dtype, static_cast<int>(wanted.dtype));
  EXPECT_EQ(group.live_results, wanted.live_results);
  EXPECT_EQ(group.combine_staging != 0, wanted.combine_staging);
  EXPECT_EQ(group.preinitialize != 0, wanted.preinitialize);
  EXPECT_EQ(group.mask_failed != 0, wanted.mask_failed);
  EXPECT_EQ(group.timeout_ms, wanted.timeout.count());
  const shoal_ep_dispatch_options dispatch = SHOAL_EP_DISPATCH_OPTIONS_INIT;
  EXPECT_EQ(dispatch.expert_alignment, ep::DispatchOptions().expert_alignment);
  EXPECT_EQ(dispatch.expert_major != 0, ep::detail::AnyDispatchOptions().expert_major);
  EXPECT_EQ(dispatch.copy_out != 0, ep::DispatchOptions().copy_out);
  const shoal_ep_low_latency_dispatch_options send = SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT;
  EXPECT_EQ(send.quantize, static_cast<int>(ep::LowLatencyDispatchOptions().quantize));
  EXPECT_EQ(send.defer_receive != 0, ep::LowLatencyDispatchOptions().defer_receive);
  EXPECT_EQ(send.scale_layout, static_cast<int>(ep::LowLatencyDispatchOptions().scale_layout));
  const shoal_ep_low_latency_combine_options combine = SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT;
  EXPECT_EQ(combine.reduction, static_cast<int>(ep::LowLatencyCombineOptions().reduction));
  EXPECT_EQ(combine.defer_receive != 0, ep::LowLatencyCombineOptions().defer_receive);
  EXPECT_EQ(combine.log_fmt != 0, ep::LowLatencyCombineOptions().log_fmt);
  EXPECT_EQ(combine.quantize, static_cast<int32_t>(ep::LowLatencyCombineOptions().quantize));
  EXPECT_EQ(combine.zero_copy != 0, ep::LowLatencyCombineOptions().zero_copy);
  const shoal_ep_gate_options gate = SHOAL_EP_GATE_OPTIONS_INIT;
  const ep::GateOptions chosen;
  EXPECT_EQ(gate.experts, chosen.experts);
  EXPECT_EQ(gate.groups, chosen.groups);
  EXPECT_EQ(gate.groups_kept, chosen.groups_kept);
  EXPECT_EQ(gate.top_k, chosen.top_k);
  EXPECT_EQ(gate.score, static_cast<int>(chosen.score));
  EXPECT_EQ(gate.normalize != 0, chosen.normalize);
  EXPECT_EQ(gate.routed_scaling, chosen.routed_scaling);
}

}  // namespace
}  // namespace shoal::test
