// SPDX-License-Identifier: Apache-2.0
// shoal/c/ep_types.h: options and results of expert parallelism (shoal/ep/options.hpp, routing.hpp,
// normal.hpp, low_latency.hpp).
#ifndef SHOAL_C_EP_TYPES_H
#define SHOAL_C_EP_TYPES_H

#include <shoal/c/status.h>
#include <shoal/c/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

// Options. Members are those of the C++ structs of the same name, with the same meaning and limits.
// Pointers to tensors and to a launch are optional: NULL means none. Truth values are 0 or not 0.

typedef struct shoal_ep_group_options {
  size_t size;
  int64_t max_tokens;
  int64_t hidden;
  int32_t top_k;
  int32_t experts;
  int32_t dtype;
  int32_t live_results;
  int64_t max_scales;
  int64_t low_latency_max_tokens;
  int64_t timeout_ms;
  int32_t preinitialize;
  int32_t mask_failed;
  int32_t threads;
  int32_t combine_staging;
  int64_t chunk_bytes;
  int32_t chunks_in_flight;
  int32_t none_expert;          ///< 0: -1 alone
  const int32_t* first_expert;  ///< [first_experts]; not read after the call
  int64_t first_experts;        ///< 0, the number of ranks, or one more
} shoal_ep_group_options;
#define SHOAL_EP_GROUP_OPTIONS_INIT \
  {sizeof(shoal_ep_group_options),  \
   0,                               \
   0,                               \
   0,                               \
   0,                               \
   SHOAL_BFLOAT16,                  \
   2,                               \
   0,                               \
   0,                               \
   0,                               \
   0,                               \
   0,                               \
   0,                               \
   1,                               \
   0,                               \
   0,                               \
   0,                               \
   NULL,                            \
   0}

/// CUDA stream and events for a call of a group in GPU memory (ep::Launch).
typedef struct shoal_ep_launch {
  size_t size;
  void* stream;  ///< cudaStream_t
  void* after;   ///< cudaEvent_t
  void* done;    ///< cudaEvent_t
  int32_t sms;
  int32_t reserved;  ///< 0
} shoal_ep_launch;
#define SHOAL_EP_LAUNCH_INIT {sizeof(shoal_ep_launch), NULL, NULL, NULL, 0, 0}

enum {
  SHOAL_QUANTIZE_NONE = 0,
  SHOAL_FP8 = 1,
  SHOAL_FP8_POWER_OF_TWO = 2,
  SHOAL_FP8_UE8M0 = 3,
  SHOAL_MXFP8 = 4,
  SHOAL_NVFP4 = 5
};

typedef struct shoal_ep_dispatch_options {
  size_t size;
  const shoal_tensor* weights;
  const shoal_tensor* scales;
  const shoal_ep_launch* launch;
  int64_t worst_case_rows;
  int32_t expert_alignment;
  int32_t expert_major;
  int32_t copy_out;
  int32_t quantize;  ///< SHOAL_QUANTIZE_NONE, SHOAL_FP8 and so on
  const shoal_tensor* global_scale;
} shoal_ep_dispatch_options;
#define SHOAL_EP_DISPATCH_OPTIONS_INIT \
  {sizeof(shoal_ep_dispatch_options), NULL, NULL, NULL, 0, 1, 0, 0, SHOAL_QUANTIZE_NONE, NULL}

typedef struct shoal_ep_combine_options {
  size_t size;
  const shoal_tensor* weights;
  const shoal_tensor* bias;  ///< an array of `biases` tensors
  int64_t biases;            ///< 0, 1 or 2
  const shoal_tensor* out;
  const shoal_ep_launch* launch;
  int32_t unsummed;  ///< not 0: expert-major rows in top-k order, [tokens, top_k, hidden]
  int32_t quantize;  ///< SHOAL_FP8 or SHOAL_MXFP8: rows travel in this format
} shoal_ep_combine_options;
#define SHOAL_EP_COMBINE_OPTIONS_INIT \
  {sizeof(shoal_ep_combine_options), NULL, NULL, 0, NULL, NULL, 0, SHOAL_QUANTIZE_NONE}

enum {
  SHOAL_SCALES_AUTOMATIC = 0,
  SHOAL_SCALES_ROWS = 1,
  SHOAL_SCALES_COLUMNS = 2,
  SHOAL_SCALES_TILES = 3
};
enum { SHOAL_REDUCTION_AUTOMATIC = 0, SHOAL_PER_RANK = 1, SHOAL_EXACT = 2 };

typedef struct shoal_ep_low_latency_dispatch_options {
  size_t size;
  const shoal_tensor* expert_counts;
  const shoal_tensor* wait_ns;
  const shoal_tensor* weights;
  const shoal_ep_launch* launch;
  int32_t quantize;  ///< SHOAL_FP8 and so on
  int32_t defer_receive;
  const shoal_tensor* global_scale;
  int32_t scale_layout;  ///< SHOAL_SCALES_ROWS and so on
  int32_t reserved;
} shoal_ep_low_latency_dispatch_options;
#define SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT \
  {sizeof(shoal_ep_low_latency_dispatch_options),  \
   NULL,                                           \
   NULL,                                           \
   NULL,                                           \
   NULL,                                           \
   SHOAL_FP8,                                      \
   1,                                              \
   NULL,                                           \
   SHOAL_SCALES_AUTOMATIC,                         \
   0}

typedef struct shoal_ep_low_latency_combine_options {
  size_t size;
  const shoal_tensor* out;
  const shoal_tensor* wait_ns;
  const shoal_ep_launch* launch;
  int32_t reduction;  ///< SHOAL_PER_RANK and so on
  /// LogFMT-10 rows: one per (token, rank); one per (token, expert) with SHOAL_EXACT, or where the
  /// receive is deferred and the dispatch had no weights.
  int32_t log_fmt;
  int32_t zero_copy;
  int32_t defer_receive;
  /// SHOAL_FP8 or SHOAL_MXFP8: the rows of log_fmt travel in this format instead.
  int32_t quantize;
  int32_t unsummed;  ///< not 0: expert outputs in top-k order, [tokens, top_k, hidden]
} shoal_ep_low_latency_combine_options;
#define SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT \
  {sizeof(shoal_ep_low_latency_combine_options),  \
   NULL,                                          \
   NULL,                                          \
   NULL,                                          \
   SHOAL_REDUCTION_AUTOMATIC,                     \
   0,                                             \
   0,                                             \
   1,                                             \
   SHOAL_QUANTIZE_NONE,                           \
   0}

// Results. Pass them as SHOAL_EP_..._INIT or released: a struct that still holds a result is
// refused. A call fills as much as `size` has room for. The C++ headers state when each member is
// set; a tensor that is not set is SHOAL_TENSOR_NONE, an array that is not set is NULL. Pointers
// stay valid until the release.

/// Owns the memory of one result.
typedef struct shoal_owner shoal_owner;
typedef struct shoal_ep_handle shoal_ep_handle;
typedef struct shoal_ep_low_latency_handle shoal_ep_low_latency_handle;

typedef struct shoal_ep_routing {
  size_t size;
  shoal_owner* owner;
  shoal_tensor topk_idx;
  shoal_tensor rank_counts;
  shoal_tensor expert_counts;
  const int32_t* tokens_per_rank;    ///< [ranks]
  const int32_t* tokens_per_expert;  ///< [experts]
  int64_t tokens;
  int32_t ranks;
  int32_t experts;
  shoal_tensor node_counts;
  const int32_t* tokens_per_node;  ///< [nodes]
  int32_t nodes;
  int32_t reserved;
} shoal_ep_routing;

typedef struct shoal_ep_dispatched {
  size_t size;
  shoal_owner* owner;
  const shoal_ep_handle* handle;  ///< ends with the result; shoal_ep_handle_copy keeps it longer
  shoal_tensor x;
  shoal_tensor scales;
  shoal_tensor topk_idx;
  shoal_tensor topk_weights;
  shoal_tensor source_token;
  shoal_tensor expert_first_row;
  shoal_tensor row_count;
  shoal_tensor expert_counts;
  const int64_t* rows_per_source;    ///< [ranks]
  const int64_t* tokens_per_expert;  ///< [local_experts]
  int64_t rows;
  int32_t ranks;
  int32_t local_experts;
} shoal_ep_dispatched;

/// The result of both combines; low-latency combine sets no topk_weights.
typedef struct shoal_ep_combined {
  size_t size;
  shoal_owner* owner;
  shoal_tensor x;
  shoal_tensor topk_weights;
} shoal_ep_combined;

typedef struct shoal_ep_low_latency_received {
  size_t size;
  shoal_owner* owner;
  const shoal_ep_low_latency_handle* handle;  ///< shoal_ep_low_latency_handle_copy keeps it longer
  shoal_tensor x;
  shoal_tensor scales;
  shoal_tensor counts;
  shoal_tensor source_token;
  shoal_tensor layout;
} shoal_ep_low_latency_received;

/// Bytes of the heap that a group takes, by part (ep::SizeHint).
typedef struct shoal_ep_sizes {
  size_t size;
  uint64_t control;
  uint64_t normal;
  uint64_t low_latency;
  uint64_t total;
  uint64_t results;  ///< on GPUs, outside the heap and not in total: low-latency results
} shoal_ep_sizes;

/// Counters since the group was made; times in nanoseconds (ep::Statistics). On GPUs rows_sent and
/// wait_ns are 0, and rows_received counts dispatches that set rows_per_source.
typedef struct shoal_ep_statistics {
  size_t size;
  uint64_t dispatches;
  uint64_t combines;
  uint64_t low_latency_dispatches;
  uint64_t low_latency_combines;
  uint64_t rows_sent;
  uint64_t rows_received;
  int64_t dispatch_ns;
  int64_t combine_ns;
  int64_t low_latency_dispatch_ns;
  int64_t low_latency_combine_ns;
  int64_t wait_ns;
} shoal_ep_statistics;

#define SHOAL_EP_ROUTING_INIT \
  {sizeof(shoal_ep_routing),  \
   NULL,                      \
   SHOAL_TENSOR_NONE,         \
   SHOAL_TENSOR_NONE,         \
   SHOAL_TENSOR_NONE,         \
   NULL,                      \
   NULL,                      \
   0,                         \
   0,                         \
   0,                         \
   SHOAL_TENSOR_NONE,         \
   NULL,                      \
   0,                         \
   0}
#define SHOAL_EP_DISPATCHED_INIT \
  {sizeof(shoal_ep_dispatched),  \
   NULL,                         \
   NULL,                         \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   SHOAL_TENSOR_NONE,            \
   NULL,                         \
   NULL,                         \
   0,                            \
   0,                            \
   0}
#define SHOAL_EP_COMBINED_INIT \
  {sizeof(shoal_ep_combined), NULL, SHOAL_TENSOR_NONE, SHOAL_TENSOR_NONE}
#define SHOAL_EP_LOW_LATENCY_RECEIVED_INIT \
  {sizeof(shoal_ep_low_latency_received),  \
   NULL,                                   \
   NULL,                                   \
   SHOAL_TENSOR_NONE,                      \
   SHOAL_TENSOR_NONE,                      \
   SHOAL_TENSOR_NONE,                      \
   SHOAL_TENSOR_NONE,                      \
   SHOAL_TENSOR_NONE}
#define SHOAL_EP_SIZES_INIT {sizeof(shoal_ep_sizes), 0, 0, 0, 0, 0}
#define SHOAL_EP_STATISTICS_INIT {sizeof(shoal_ep_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_C_EP_TYPES_H
