// SPDX-License-Identifier: Apache-2.0
// shoal/c/ep.h: expert-parallel groups, normal and low-latency mode (shoal/ep/group.hpp).
#ifndef SHOAL_C_EP_H
#define SHOAL_C_EP_H

#include <shoal/c/ep_types.h>
#include <shoal/c/status.h>
#include <shoal/c/team.h>
#include <shoal/c/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

SHOAL_API shoal_status shoal_ep_routing_release(shoal_ep_routing* routing);
SHOAL_API shoal_status shoal_ep_dispatched_release(shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_combined_release(shoal_ep_combined* combined);
SHOAL_API shoal_status
shoal_ep_low_latency_received_release(shoal_ep_low_latency_received* received);

// Groups.

typedef struct shoal_ep_group shoal_ep_group;
typedef struct shoal_ep_pending_dispatch shoal_ep_pending_dispatch;
typedef struct shoal_ep_pending_combine shoal_ep_pending_combine;

/// The heap that a group of `ranks` ranks takes on each of them. heap: SHOAL_HOST or SHOAL_CUDA.
SHOAL_API shoal_status shoal_ep_size_hint(const shoal_ep_group_options* options, int32_t ranks,
                                          int32_t heap, shoal_ep_sizes* sizes);
/// Collective over the team.
SHOAL_API shoal_status shoal_ep_group_create(const shoal_team* team,
                                             const shoal_ep_group_options* options,
                                             shoal_ep_group** group);
/// Returns the group's memory to the heap. Collective. Results that are still held stay readable
/// until they are released; calls that take their handles return SHOAL_CLOSED.
SHOAL_API shoal_status shoal_ep_group_close(shoal_ep_group* group);
/// Frees the handle. A group that is still open is closed first, which is collective, unless the
/// group or its world has failed.
SHOAL_API shoal_status shoal_ep_group_destroy(shoal_ep_group* group);
/// The experts on this rank.
SHOAL_API shoal_status shoal_ep_group_local_experts(const shoal_ep_group* group,
                                                    int32_t* local_experts);
/// The most experts on any rank: the first dimension of low-latency results.
SHOAL_API shoal_status shoal_ep_group_max_local_experts(const shoal_ep_group* group,
                                                        int32_t* max_local_experts);
/// Rank `rank` holds the experts from *expert up to that of the next rank. With the number of ranks
/// as `rank`, the number of experts.
SHOAL_API shoal_status shoal_ep_group_first_expert(const shoal_ep_group* group, int32_t rank,
                                                   int32_t* expert);
/// *stream: the cudaStream_t of the group; NULL on the host.
SHOAL_API shoal_status shoal_ep_group_stream(const shoal_ep_group* group, void** stream);
SHOAL_API shoal_status shoal_ep_group_statistics(const shoal_ep_group* group,
                                                 shoal_ep_statistics* statistics);
/// Group::warmup (collective) and Group::synchronize.
SHOAL_API shoal_status shoal_ep_group_warmup(shoal_ep_group* group);
SHOAL_API shoal_status shoal_ep_group_synchronize(shoal_ep_group* group);

// Rows (x, y, bias, out) start at a multiple of 16 bytes in GPU memory. On the host they may start
// anywhere, as static arrays do; aligned rows save a copy.

// Normal mode. All calls except shoal_ep_route are collective. options and launch: NULL for the
// defaults.

SHOAL_API shoal_status shoal_ep_route(const shoal_ep_group* group, const shoal_tensor* topk_idx,
                                      const shoal_ep_launch* launch, shoal_ep_routing* routing);
/// *inside: 1 when `token` goes to `rank`, else 0.
SHOAL_API shoal_status shoal_ep_is_token_in_rank(const shoal_ep_routing* routing, int64_t token,
                                                 int32_t rank, int32_t* inside);
SHOAL_API shoal_status shoal_ep_dispatch(shoal_ep_group* group, const shoal_tensor* x,
                                         const shoal_ep_routing* routing,
                                         const shoal_ep_dispatch_options* options,
                                         shoal_ep_dispatched* dispatched);
/// Sends new rows in the layout of an earlier dispatch: no counts are exchanged.
SHOAL_API shoal_status shoal_ep_dispatch_cached(shoal_ep_group* group, const shoal_tensor* x,
                                                const shoal_ep_handle* handle,
                                                const shoal_ep_dispatch_options* options,
                                                shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_combine(shoal_ep_group* group, const shoal_tensor* y,
                                        const shoal_ep_handle* handle,
                                        const shoal_ep_combine_options* options,
                                        shoal_ep_combined* combined);

/// Dispatch and combine on the group's own thread, where operations run one after another. Other
/// calls on the group wait for them. The memory of all tensors must stay valid and unchanged until
/// the result is taken. For groups on the host; on GPUs a shoal_ep_launch needs no thread.
typedef struct shoal_ep_future shoal_ep_future;
SHOAL_API shoal_status shoal_ep_dispatch_async(shoal_ep_group* group, const shoal_tensor* x,
                                               const shoal_ep_routing* routing,
                                               const shoal_ep_dispatch_options* options,
                                               shoal_ep_future** future);
SHOAL_API shoal_status shoal_ep_combine_async(shoal_ep_group* group, const shoal_tensor* y,
                                              const shoal_ep_handle* handle,
                                              const shoal_ep_combine_options* options,
                                              shoal_ep_future** future);
/// *ready: 1 when the result can be taken without waiting, else 0.
SHOAL_API shoal_status shoal_ep_future_ready(const shoal_ep_future* future, int32_t* ready);
/// Waits and returns the result, once, or the failure of the operation. Each function takes futures
/// of its own operation.
SHOAL_API shoal_status shoal_ep_future_dispatched(shoal_ep_future* future,
                                                  shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_future_combined(shoal_ep_future* future,
                                                shoal_ep_combined* combined);
/// Waits for the operation, then frees the future.
SHOAL_API shoal_status shoal_ep_future_destroy(shoal_ep_future* future);

/// Makes a handle that outlives its result; end it with shoal_ep_handle_destroy.
SHOAL_API shoal_status shoal_ep_handle_copy(const shoal_ep_handle* handle, shoal_ep_handle** copy);
SHOAL_API shoal_status shoal_ep_handle_destroy(shoal_ep_handle* handle);

// Low latency. A call sends; the receive of the object that it makes waits. Receives are made once,
// in the order of the sends, and at most two sends are open.

SHOAL_API shoal_status shoal_ep_low_latency_size_hint(int64_t max_tokens, int64_t hidden,
                                                      int32_t ranks, int32_t experts, int32_t top_k,
                                                      int32_t heap, uint64_t* bytes);
SHOAL_API shoal_status shoal_ep_low_latency_dispatch(
    shoal_ep_group* group, const shoal_tensor* x, const shoal_tensor* topk_idx,
    const shoal_ep_low_latency_dispatch_options* options, shoal_ep_pending_dispatch** pending);
/// *ready: 1 when the receive would return without waiting, else 0.
SHOAL_API shoal_status shoal_ep_pending_dispatch_ready(const shoal_ep_pending_dispatch* pending,
                                                       int32_t* ready);
SHOAL_API shoal_status shoal_ep_pending_dispatch_receive(shoal_ep_pending_dispatch* pending,
                                                         shoal_ep_low_latency_received* received);
SHOAL_API shoal_status shoal_ep_pending_dispatch_destroy(shoal_ep_pending_dispatch* pending);
/// weights: may be NULL with shoal_ep_low_latency_combine_options.unsummed.
SHOAL_API shoal_status shoal_ep_low_latency_combine(
    shoal_ep_group* group, const shoal_tensor* y, const shoal_tensor* topk_idx,
    const shoal_tensor* weights, const shoal_ep_low_latency_handle* handle,
    const shoal_ep_low_latency_combine_options* options, shoal_ep_pending_combine** pending);
SHOAL_API shoal_status shoal_ep_pending_combine_ready(const shoal_ep_pending_combine* pending,
                                                      int32_t* ready);
SHOAL_API shoal_status shoal_ep_pending_combine_receive(shoal_ep_pending_combine* pending,
                                                        shoal_ep_combined* combined);
SHOAL_API shoal_status shoal_ep_pending_combine_destroy(shoal_ep_pending_combine* pending);
SHOAL_API shoal_status shoal_ep_low_latency_handle_copy(const shoal_ep_low_latency_handle* handle,
                                                        shoal_ep_low_latency_handle** copy);
SHOAL_API shoal_status shoal_ep_low_latency_handle_destroy(shoal_ep_low_latency_handle* handle);
/// *buffer: memory of the group for the y of the next low-latency combine (zero_copy).
SHOAL_API shoal_status shoal_ep_next_combine_buffer(shoal_ep_group* group, shoal_tensor* buffer);
/// masked: room for `ranks` numbers, at least as many as the group has ranks; 1: the rank is
/// masked.
SHOAL_API shoal_status shoal_ep_masked(const shoal_ep_group* group, int32_t* masked, int32_t ranks);
SHOAL_API shoal_status shoal_ep_set_mask(shoal_ep_group* group, int32_t rank, int32_t masked);
SHOAL_API shoal_status shoal_ep_clear_masks(shoal_ep_group* group);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_EP_H
