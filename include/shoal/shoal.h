// SPDX-License-Identifier: Apache-2.0
// shoal/shoal.h: Shoal for C (C11), and for every language that calls C. Guide: docs/guide/c.md.
//
// What an operation does, its order, shapes and failures are said once, where C++ declares it:
// world.hpp, heap.hpp, team.hpp, ep/group.hpp. This header says what is different in C:
//
// - Every function returns shoal_status, 0 for success, but for the few that only look something
// up. shoal_last_error
//   has the message. A call that fails changes nothing that it was given to write to. No C++
//   exception leaves a call.
// - Objects (shoal_world, shoal_team, ...) are opaque. X_create, X_open and the like make one,
// X_destroy ends it and
//   takes NULL as well. One thread uses an object, and what was made from it, at a time.
// - Structs that you fill, or have filled, start with their size. Begin with the SHOAL_..._INIT of
// the struct, which
//   also has the defaults. Members are only ever appended, and a library takes the structs of older
//   and of newer headers: what an older one lacks has its default; what a newer one has is refused
//   unless it is zero.
// - Results are structs of tensors that lie in memory of the library. X_release gives the memory
// back and empties the
//   struct; the tensors are gone then, also in copies of the struct. On GPUs all work that was
//   queued goes on.
//
// Compiles as C++ too. Needs a platform with 64-bit pointers.
#ifndef SHOAL_SHOAL_H
#define SHOAL_SHOAL_H

#include <stddef.h>  // NOLINT(modernize-deprecated-headers): a C header
#include <stdint.h>  // NOLINT(modernize-deprecated-headers)

#define SHOAL_VERSION_MAJOR 0
#define SHOAL_VERSION_MINOR 1
#define SHOAL_VERSION_PATCH 0

#if defined(__GNUC__)
#define SHOAL_API __attribute__((visibility("default")))
#else
#define SHOAL_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Errors, version.

/// 0, or why a call failed (error.hpp).
typedef int32_t shoal_status;
enum {
  SHOAL_OK = 0,
  SHOAL_INVALID_ARGUMENT = 1,
  SHOAL_EXHAUSTED = 2,
  SHOAL_TIMEOUT = 3,
  SHOAL_PEER_FAILED = 4,
  SHOAL_MISMATCH = 5,
  SHOAL_UNSUPPORTED = 6,
  SHOAL_SYSTEM = 7,
  SHOAL_CLOSED = 8,
  SHOAL_INTERNAL = 9  ///< an exception that is not one of Shoal's, or a number of your own that a
                      ///< shoal_body returned
};

/// What the last call that failed on this thread said, "" when none has; complete on its own. Valid
/// until the next call on this thread that fails.
SHOAL_API const char* shoal_last_error(void);
/// "invalid_argument" and so on; "unknown" for other numbers.
SHOAL_API const char* shoal_status_name(shoal_status status);
/// Of the library that runs, to be compared with SHOAL_VERSION_*. Each may be NULL.
SHOAL_API shoal_status shoal_version(int32_t* major, int32_t* minor, int32_t* patch);

// Settings (docs/reference/settings.md).

typedef struct shoal_settings shoal_settings;

/// The defaults, or the defaults overridden by the SHOAL_* variables of the environment.
SHOAL_API shoal_status shoal_settings_create(shoal_settings** settings);
SHOAL_API shoal_status shoal_settings_from_environment(shoal_settings** settings);
/// "SHOAL_TIMEOUT_MS", "5000": names (also the NVSHMEM_ ones) and values as in the environment.
SHOAL_API shoal_status shoal_settings_set(shoal_settings* settings, const char* name,
                                          const char* value);
/// Writes the value as text with a final zero. Secrets are only "(set)" or "(not set)".
/// SHOAL_INVALID_ARGUMENT when `capacity` bytes are too few; the message says how many are needed.
SHOAL_API shoal_status shoal_settings_get(const shoal_settings* settings, const char* name,
                                          char* text, size_t capacity);
SHOAL_API shoal_status shoal_settings_destroy(shoal_settings* settings);

// World.

typedef struct shoal_world shoal_world;
typedef struct shoal_unique_id shoal_unique_id;

/// Collective. settings: NULL for those of the environment, where shoal-run puts what it starts.
SHOAL_API shoal_status shoal_world_open(const shoal_settings* settings, shoal_world** world);
/// Ends the world after a barrier; what was made from it can only be destroyed then. Again: does
/// nothing.
SHOAL_API shoal_status shoal_world_close(shoal_world* world);
/// A world that is still open ends without a barrier.
SHOAL_API shoal_status shoal_world_destroy(shoal_world* world);
SHOAL_API shoal_status shoal_world_pe(const shoal_world* world, int32_t* pe);
SHOAL_API shoal_status shoal_world_n_pes(const shoal_world* world, int32_t* n_pes);

/// For launchers of your own: makes an id in one process, which keeps the object until all PEs are
/// open. Hand its text to all PEs by any means; they set SHOAL_UNIQUE_ID to it, SHOAL_PE and
/// SHOAL_N_PES. It is a secret.
SHOAL_API shoal_status shoal_unique_id_create(const shoal_settings* settings, shoal_unique_id** id);
/// Valid as long as the object.
SHOAL_API shoal_status shoal_unique_id_text(const shoal_unique_id* id, const char** text);
SHOAL_API shoal_status shoal_unique_id_destroy(shoal_unique_id* id);

/// What a PE of shoal_run_threads does. The world belongs to the caller: it may be closed, not
/// destroyed.
typedef shoal_status (*shoal_body)(shoal_world* world, void* context);
/// Runs body(world, context) on n_pes threads of this process, a PE each; returns the first
/// failure, with its message. settings: NULL for the defaults.
SHOAL_API shoal_status shoal_run_threads(int32_t n_pes, const shoal_settings* settings,
                                         shoal_body body, void* context);

// Symmetric heap, one-sided operations, signals.

/// Collective, with equal sizes, in the same order on all PEs: *pointer is this PE's copy; NULL for
/// 0 bytes.
SHOAL_API shoal_status shoal_malloc(shoal_world* world, size_t bytes, void** pointer);
SHOAL_API shoal_status shoal_calloc(shoal_world* world, size_t count, size_t size, void** pointer);
SHOAL_API shoal_status shoal_free(shoal_world* world, void* pointer);
/// Where `symmetric`, an address in this PE's heap, lies in the heap of `pe`; NULL when loads and
/// stores do not reach it.
SHOAL_API shoal_status shoal_peer_pointer(const shoal_world* world, const void* symmetric,
                                          int32_t pe, void** pointer);

/// In all of these `target` of a put and `source` of a get are addresses in this PE's heap: they
/// name the same place in the heap of `pe`. With _nbi the local buffer stays untouched until
/// shoal_quiet.
SHOAL_API shoal_status shoal_put(shoal_world* world, void* target, const void* source, size_t bytes,
                                 int32_t pe);
SHOAL_API shoal_status shoal_get(shoal_world* world, void* target, const void* source, size_t bytes,
                                 int32_t pe);
SHOAL_API shoal_status shoal_put_nbi(shoal_world* world, void* target, const void* source,
                                     size_t bytes, int32_t pe);
SHOAL_API shoal_status shoal_get_nbi(shoal_world* world, void* target, const void* source,
                                     size_t bytes, int32_t pe);
SHOAL_API shoal_status shoal_fence(shoal_world* world);
SHOAL_API shoal_status shoal_quiet(shoal_world* world);

enum {
  SHOAL_ATOMIC_FETCH = 0,
  SHOAL_ATOMIC_SET = 1,
  SHOAL_ATOMIC_ADD = 2,
  SHOAL_ATOMIC_AND = 3,
  SHOAL_ATOMIC_OR = 4,
  SHOAL_ATOMIC_XOR = 5,
  SHOAL_ATOMIC_SWAP = 6,
  SHOAL_ATOMIC_COMPARE_SWAP = 7
};
/// On `width` aligned bytes, 4 or 8; op: SHOAL_ATOMIC_*. compare: what COMPARE_SWAP expects.
/// before: NULL, or the value before, of 4 bytes in the low half.
SHOAL_API shoal_status shoal_atomic(shoal_world* world, int32_t op, void* target, size_t width,
                                    uint64_t operand, uint64_t compare, int32_t pe,
                                    uint64_t* before);

/// Memory of any allocator on this PE's GPU that all PEs share in one call (heap.hpp,
/// share_buffer).
typedef struct shoal_shared_buffer shoal_shared_buffer;
/// Collective.
SHOAL_API shoal_status shoal_share_buffer(shoal_world* world, const void* pointer, size_t bytes,
                                          shoal_shared_buffer** buffer);
/// Where the memory of `pe` lies for this PE's GPU; NULL where that shared no bytes or is out of
/// reach.
SHOAL_API shoal_status shoal_shared_buffer_pointer(const shoal_shared_buffer* buffer, int32_t pe,
                                                   void** pointer);
/// Collective, before the memory is freed. Frees the handle when it succeeds.
SHOAL_API shoal_status shoal_unshare_buffer(shoal_world* world, shoal_shared_buffer* buffer);
/// Frees the handle alone, of a world that is closed or failed.
SHOAL_API shoal_status shoal_shared_buffer_destroy(shoal_shared_buffer* buffer);

enum { SHOAL_SIGNAL_SET = 0, SHOAL_SIGNAL_ADD = 1 };
enum {
  SHOAL_EQUAL = 0,
  SHOAL_NOT_EQUAL = 1,
  SHOAL_GREATER = 2,
  SHOAL_GREATER_EQUAL = 3,
  SHOAL_LESS = 4,
  SHOAL_LESS_EQUAL = 5
};

/// `flag` is an address of 8 aligned bytes in this PE's heap; op: SHOAL_SIGNAL_*; compare:
/// SHOAL_EQUAL and so on.
SHOAL_API shoal_status shoal_signal(shoal_world* world, uint64_t* flag, int32_t op, uint64_t value,
                                    int32_t pe);
/// The data is visible at `pe` before the signal is.
SHOAL_API shoal_status shoal_put_signal(shoal_world* world, void* target, const void* source,
                                        size_t bytes, uint64_t* flag, int32_t op, uint64_t value,
                                        int32_t pe);
SHOAL_API shoal_status shoal_signal_fetch(shoal_world* world, const uint64_t* flag,
                                          uint64_t* value);
/// Waits, for at most SHOAL_TIMEOUT_MS, until this PE's flag compares so with `value`; seen: NULL,
/// or what it was.
SHOAL_API shoal_status shoal_signal_wait(shoal_world* world, const uint64_t* flag, int32_t compare,
                                         uint64_t value, uint64_t* seen);

// Teams.

typedef struct shoal_team shoal_team;
enum {
  SHOAL_TEAM_WORLD = 0,       ///< all PEs
  SHOAL_TEAM_NODE = 1,        ///< PEs of this PE's node
  SHOAL_TEAM_SHARED = 2,      ///< PEs whose heaps this PE reaches by load and store
  SHOAL_TEAM_SAME_INDEX = 3,  ///< PEs with this PE's index on every node
  SHOAL_TEAM_SELF = 4         ///< this PE alone
};

/// A handle of a predefined team, SHOAL_TEAM_*. Not collective.
SHOAL_API shoal_status shoal_world_team(const shoal_world* world, int32_t which, shoal_team** team);
/// Collective over `team`: the PEs start, start + stride, ... of it, `count` in all. *part is NULL
/// on PEs that are none of them.
SHOAL_API shoal_status shoal_team_split(const shoal_team* team, int32_t start, int32_t stride,
                                        int32_t count, shoal_team** part);
/// Frees the handle in any case. Of a team of shoal_team_split it is collective over the members
/// and returns the slot (SHOAL_MAX_TEAMS), unless the world is closed.
SHOAL_API shoal_status shoal_team_destroy(shoal_team* team);
SHOAL_API shoal_status shoal_team_pe(const shoal_team* team, int32_t* pe);
SHOAL_API shoal_status shoal_team_size(const shoal_team* team, int32_t* size);
/// Member `pe` as numbered in the world.
SHOAL_API shoal_status shoal_team_world_pe(const shoal_team* team, int32_t pe, int32_t* world_pe);

// Collectives: addresses in this PE's heap, at the same offset on every member but for
// all_to_all_v.

enum {
  SHOAL_SUM = 0,
  SHOAL_PROD = 1,
  SHOAL_MIN = 2,
  SHOAL_MAX = 3,
  SHOAL_BIT_AND = 4,
  SHOAL_BIT_OR = 5,
  SHOAL_BIT_XOR = 6
};

/// Completes this PE's operations, then waits for all members.
SHOAL_API shoal_status shoal_barrier(const shoal_team* team);
/// Waits for all members; operations stay outstanding.
SHOAL_API shoal_status shoal_sync(const shoal_team* team);
SHOAL_API shoal_status shoal_broadcast(const shoal_team* team, void* target, const void* source,
                                       size_t bytes, int32_t root);
/// `bytes` of each member.
SHOAL_API shoal_status shoal_all_gather(const shoal_team* team, void* target, const void* source,
                                        size_t bytes);
/// `bytes` for each pair.
SHOAL_API shoal_status shoal_all_to_all(const shoal_team* team, void* target, const void* source,
                                        size_t bytes);
/// Arrays of a number per member, in bytes.
SHOAL_API shoal_status shoal_all_to_all_v(const shoal_team* team, void* target,
                                          const size_t* receive_bytes,
                                          const size_t* receive_offsets, const void* source,
                                          const size_t* send_bytes, const size_t* send_offsets);
/// dtype: SHOAL_FLOAT32 and so on; op: SHOAL_SUM and so on. `count` elements; reduce_scatter:
/// `count` for each member.
SHOAL_API shoal_status shoal_reduce(const shoal_team* team, int32_t dtype, int32_t op, void* target,
                                    const void* source, size_t count);
SHOAL_API shoal_status shoal_reduce_scatter(const shoal_team* team, int32_t dtype, int32_t op,
                                            void* target, const void* source, size_t count);

// Tensors.

enum {
  SHOAL_NONE = 0,  ///< no tensor: what a result has in the place of one that it lacks
  SHOAL_FLOAT32 = 1,
  SHOAL_FLOAT16 = 2,
  SHOAL_BFLOAT16 = 3,
  SHOAL_FLOAT8_E4M3 = 4,
  SHOAL_INT8 = 5,
  SHOAL_UINT8 = 6,
  SHOAL_INT32 = 7,
  SHOAL_INT64 = 8,
  SHOAL_FLOAT64 = 9
};
enum { SHOAL_HOST = 0, SHOAL_CUDA = 1 };

/// An array of one to four dimensions, not owned. Never changes, so it has no size in front.
typedef struct shoal_tensor {
  void* data;
  int64_t shape[4];
  int64_t strides[4];    ///< in elements
  int32_t dtype;         ///< SHOAL_FLOAT32 and so on
  int32_t rank;          ///< how many of shape and strides count
  int32_t device;        ///< SHOAL_HOST or SHOAL_CUDA
  int32_t device_index;  ///< GPU, as CUDA numbers them; 0 on the host
} shoal_tensor;

/// A contiguous, row-major tensor of the host. shape: `rank` numbers. For GPU memory set device and
/// device_index after.
SHOAL_API shoal_status shoal_tensor_init(shoal_tensor* tensor, void* data, int32_t dtype,
                                         int32_t rank, const int64_t* shape);

// Expert parallelism: options.
// Members are those of the C++ structs of the same name, with the same meaning and limits
// (ep/group.hpp). Pointers to tensors and to a launch are optional: NULL means none. Truth values
// are 0 or not 0.

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
} shoal_ep_group_options;
#define SHOAL_EP_GROUP_OPTIONS_INIT \
  {sizeof(shoal_ep_group_options), 0, 0, 0, 0, SHOAL_BFLOAT16, 2, 0, 0, 0, 0, 0, 0, 1}

/// Streams and events of CUDA for a group in GPU memory.
typedef struct shoal_ep_launch {
  size_t size;
  void* stream;  ///< cudaStream_t
  void* after;   ///< cudaEvent_t
  void* done;    ///< cudaEvent_t
  int32_t sms;
  int32_t reserved;  ///< 0
} shoal_ep_launch;
#define SHOAL_EP_LAUNCH_INIT {sizeof(shoal_ep_launch), NULL, NULL, NULL, 0, 0}

typedef struct shoal_ep_dispatch_options {
  size_t size;
  const shoal_tensor* weights;
  const shoal_tensor* scales;
  const shoal_ep_launch* launch;
  int64_t worst_case_rows;
  int32_t expert_alignment;
  int32_t expert_major;
  int32_t copy_out;
  int32_t reserved;  ///< 0
} shoal_ep_dispatch_options;
#define SHOAL_EP_DISPATCH_OPTIONS_INIT \
  {sizeof(shoal_ep_dispatch_options), NULL, NULL, NULL, 0, 1, 0, 0, 0}

typedef struct shoal_ep_combine_options {
  size_t size;
  const shoal_tensor* weights;
  const shoal_tensor* bias;  ///< `biases` tensors one after another
  int64_t biases;            ///< 0, 1 or 2
  const shoal_tensor* out;
  const shoal_ep_launch* launch;
} shoal_ep_combine_options;
#define SHOAL_EP_COMBINE_OPTIONS_INIT {sizeof(shoal_ep_combine_options), NULL, NULL, 0, NULL, NULL}

enum { SHOAL_QUANTIZE_NONE = 0, SHOAL_FP8 = 1, SHOAL_FP8_POWER_OF_TWO = 2, SHOAL_FP8_UE8M0 = 3 };
enum { SHOAL_REDUCTION_AUTOMATIC = 0, SHOAL_PER_RANK = 1, SHOAL_EXACT = 2 };

typedef struct shoal_ep_low_latency_dispatch_options {
  size_t size;
  const shoal_tensor* expert_counts;
  const shoal_tensor* wait_ns;
  const shoal_tensor* weights;
  const shoal_ep_launch* launch;
  int32_t quantize;  ///< SHOAL_FP8 and so on
  int32_t defer_receive;
} shoal_ep_low_latency_dispatch_options;
#define SHOAL_EP_LOW_LATENCY_DISPATCH_OPTIONS_INIT \
  {sizeof(shoal_ep_low_latency_dispatch_options), NULL, NULL, NULL, NULL, SHOAL_FP8, 1}

typedef struct shoal_ep_low_latency_combine_options {
  size_t size;
  const shoal_tensor* out;
  const shoal_tensor* wait_ns;
  const shoal_ep_launch* launch;
  int32_t reduction;  ///< SHOAL_PER_RANK and so on
  int32_t log_fmt;
  int32_t zero_copy;
  int32_t defer_receive;
} shoal_ep_low_latency_combine_options;
#define SHOAL_EP_LOW_LATENCY_COMBINE_OPTIONS_INIT \
  {sizeof(shoal_ep_low_latency_combine_options),  \
   NULL,                                          \
   NULL,                                          \
   NULL,                                          \
   SHOAL_REDUCTION_AUTOMATIC,                     \
   0,                                             \
   0,                                             \
   1}

// Expert parallelism: results.
// Pass them as SHOAL_EP_..._INIT or released; a struct that still holds a result is refused. A call
// fills as much as `size` has room for. Pointers stay valid until the release; those to numbers are
// NULL where C++ has an empty vector.

typedef struct shoal_owner shoal_owner;  ///< of the memory of one result
typedef struct shoal_ep_handle shoal_ep_handle;
typedef struct shoal_ep_low_latency_handle shoal_ep_low_latency_handle;

typedef struct shoal_ep_routing {
  size_t size;
  shoal_owner* owner;
  shoal_tensor topk_idx;
  shoal_tensor rank_counts;
  shoal_tensor expert_counts;
  const int32_t* tokens_per_rank;    ///< [ranks]
  const int32_t* tokens_per_expert;  ///< [experts], of all members together
  int64_t tokens;
  int32_t ranks;
  int32_t experts;
} shoal_ep_routing;

typedef struct shoal_ep_dispatched {
  size_t size;
  shoal_owner* owner;
  const shoal_ep_handle* handle;  ///< to keep it longer than the result: shoal_ep_handle_copy
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

/// Of both combines; the low-latency one has no topk_weights.
typedef struct shoal_ep_combined {
  size_t size;
  shoal_owner* owner;
  shoal_tensor x;
  shoal_tensor topk_weights;
} shoal_ep_combined;

typedef struct shoal_ep_low_latency_received {
  size_t size;
  shoal_owner* owner;
  const shoal_ep_low_latency_handle*
      handle;  ///< to keep it longer: shoal_ep_low_latency_handle_copy
  shoal_tensor x;
  shoal_tensor scales;
  shoal_tensor counts;
  shoal_tensor source_token;
  shoal_tensor layout;
} shoal_ep_low_latency_received;

/// Bytes of the heap, by part.
typedef struct shoal_ep_sizes {
  size_t size;
  uint64_t control;
  uint64_t normal;
  uint64_t low_latency;
  uint64_t total;
} shoal_ep_sizes;

/// Counters since the group was made; times in nanoseconds. On GPUs (ep::Statistics) rows_sent and
/// wait_ns are 0, rows_received counts dispatches that fill rows_per_source.
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

enum { SHOAL_GATE_SIGMOID = 0, SHOAL_GATE_SOFTMAX = 1 };

/// As ep::GateOptions (ep/gate.hpp).
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

typedef struct shoal_ep_gated {
  size_t size;
  shoal_owner* owner;
  shoal_tensor topk_idx;
  shoal_tensor topk_weights;
} shoal_ep_gated;
#define SHOAL_EP_GATED_INIT {sizeof(shoal_ep_gated), NULL, SHOAL_TENSOR_NONE, SHOAL_TENSOR_NONE}

#define SHOAL_TENSOR_NONE {NULL, {0, 0, 0, 0}, {0, 0, 0, 0}, SHOAL_NONE, 0, SHOAL_HOST, 0}
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
#define SHOAL_EP_SIZES_INIT {sizeof(shoal_ep_sizes), 0, 0, 0, 0}
#define SHOAL_EP_STATISTICS_INIT {sizeof(shoal_ep_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

SHOAL_API shoal_status shoal_ep_routing_release(shoal_ep_routing* routing);
SHOAL_API shoal_status shoal_ep_dispatched_release(shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_combined_release(shoal_ep_combined* combined);
SHOAL_API shoal_status
shoal_ep_low_latency_received_release(shoal_ep_low_latency_received* received);
SHOAL_API shoal_status shoal_ep_gated_release(shoal_ep_gated* gated);

/// From router logits, float32 [tokens, experts] on the host, to experts and weights. bias: NULL,
/// or float32 [experts]. options: NULL for the defaults. Needs no world.
SHOAL_API shoal_status shoal_ep_gate(const shoal_tensor* logits, const shoal_tensor* bias,
                                     const shoal_ep_gate_options* options, shoal_ep_gated* gated);

// Expert parallelism: groups.

typedef struct shoal_ep_group shoal_ep_group;
typedef struct shoal_ep_pending_dispatch shoal_ep_pending_dispatch;
typedef struct shoal_ep_pending_combine shoal_ep_pending_combine;

/// What a group of `ranks` members takes of the heap of each. heap: SHOAL_HOST or SHOAL_CUDA.
SHOAL_API shoal_status shoal_ep_size_hint(const shoal_ep_group_options* options, int32_t ranks,
                                          int32_t heap, shoal_ep_sizes* sizes);
/// Collective over the team.
SHOAL_API shoal_status shoal_ep_group_create(const shoal_team* team,
                                             const shoal_ep_group_options* options,
                                             shoal_ep_group** group);
/// Returns the group's memory to the heap. Collective; SHOAL_INVALID_ARGUMENT on all members while
/// one holds results.
SHOAL_API shoal_status shoal_ep_group_close(shoal_ep_group* group);
/// Frees the handle. A group that is still open is closed first, which is collective, unless it or
/// its world failed.
SHOAL_API shoal_status shoal_ep_group_destroy(shoal_ep_group* group);
SHOAL_API shoal_status shoal_ep_group_local_experts(const shoal_ep_group* group,
                                                    int32_t* local_experts);
/// cudaStream_t of the group; NULL on the host.
SHOAL_API shoal_status shoal_ep_group_stream(const shoal_ep_group* group, void** stream);
SHOAL_API shoal_status shoal_ep_group_statistics(const shoal_ep_group* group,
                                                 shoal_ep_statistics* statistics);
/// Collective.
SHOAL_API shoal_status shoal_ep_group_warmup(shoal_ep_group* group);
SHOAL_API shoal_status shoal_ep_group_synchronize(shoal_ep_group* group);

// Expert parallelism: normal mode.
// All but shoal_ep_route are collective. options and launch may be NULL: the defaults.

SHOAL_API shoal_status shoal_ep_route(const shoal_ep_group* group, const shoal_tensor* topk_idx,
                                      const shoal_ep_launch* launch, shoal_ep_routing* routing);
/// *inside: 1 where `token` goes to `rank`, else 0.
SHOAL_API shoal_status shoal_ep_is_token_in_rank(const shoal_ep_routing* routing, int64_t token,
                                                 int32_t rank, int32_t* inside);
SHOAL_API shoal_status shoal_ep_dispatch(shoal_ep_group* group, const shoal_tensor* x,
                                         const shoal_ep_routing* routing,
                                         const shoal_ep_dispatch_options* options,
                                         shoal_ep_dispatched* dispatched);
/// New rows in the layout of an earlier dispatch: no counts are exchanged.
SHOAL_API shoal_status shoal_ep_dispatch_cached(shoal_ep_group* group, const shoal_tensor* x,
                                                const shoal_ep_handle* handle,
                                                const shoal_ep_dispatch_options* options,
                                                shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_combine(shoal_ep_group* group, const shoal_tensor* y,
                                        const shoal_ep_handle* handle,
                                        const shoal_ep_combine_options* options,
                                        shoal_ep_combined* combined);

/// The same on a thread of the group's own, where operations run one after another; other calls on
/// the group wait for them. What tensors point to stays valid and unchanged until the result is
/// taken. For groups on the host: on GPUs a launch does it without a thread.
typedef struct shoal_ep_future shoal_ep_future;
SHOAL_API shoal_status shoal_ep_dispatch_async(shoal_ep_group* group, const shoal_tensor* x,
                                               const shoal_ep_routing* routing,
                                               const shoal_ep_dispatch_options* options,
                                               shoal_ep_future** future);
SHOAL_API shoal_status shoal_ep_combine_async(shoal_ep_group* group, const shoal_tensor* y,
                                              const shoal_ep_handle* handle,
                                              const shoal_ep_combine_options* options,
                                              shoal_ep_future** future);
/// *ready: 1 when taking the result would not wait, else 0.
SHOAL_API shoal_status shoal_ep_future_ready(const shoal_ep_future* future, int32_t* ready);
/// Waits, and hands out the result, once, or how the operation failed. Each for the futures of its
/// own operation.
SHOAL_API shoal_status shoal_ep_future_dispatched(shoal_ep_future* future,
                                                  shoal_ep_dispatched* dispatched);
SHOAL_API shoal_status shoal_ep_future_combined(shoal_ep_future* future,
                                                shoal_ep_combined* combined);
/// Waits as well.
SHOAL_API shoal_status shoal_ep_future_destroy(shoal_ep_future* future);

/// A handle that outlives its result, to be destroyed by the caller.
SHOAL_API shoal_status shoal_ep_handle_copy(const shoal_ep_handle* handle, shoal_ep_handle** copy);
SHOAL_API shoal_status shoal_ep_handle_destroy(shoal_ep_handle* handle);

// Expert parallelism: low latency.
// The first call sends, the receive of what it made waits: once, in the order of the sends, at most
// two open. Members that are left out (mask_failed) are read as 1 from shoal_ep_masked.

SHOAL_API shoal_status shoal_ep_low_latency_size_hint(int64_t max_tokens, int64_t hidden,
                                                      int32_t ranks, int32_t experts, int32_t top_k,
                                                      int32_t heap, uint64_t* bytes);
SHOAL_API shoal_status shoal_ep_low_latency_dispatch(
    shoal_ep_group* group, const shoal_tensor* x, const shoal_tensor* topk_idx,
    const shoal_ep_low_latency_dispatch_options* options, shoal_ep_pending_dispatch** pending);
/// *ready: 1 when the receive would not wait, else 0.
SHOAL_API shoal_status shoal_ep_pending_dispatch_ready(const shoal_ep_pending_dispatch* pending,
                                                       int32_t* ready);
SHOAL_API shoal_status shoal_ep_pending_dispatch_receive(shoal_ep_pending_dispatch* pending,
                                                         shoal_ep_low_latency_received* received);
SHOAL_API shoal_status shoal_ep_pending_dispatch_destroy(shoal_ep_pending_dispatch* pending);
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
/// Where the y of the next low-latency combine may be written (zero_copy). The memory is the
/// group's.
SHOAL_API shoal_status shoal_ep_next_combine_buffer(shoal_ep_group* group, shoal_tensor* buffer);
/// masked: room for `ranks` numbers, one for each rank of the group.
SHOAL_API shoal_status shoal_ep_masked(const shoal_ep_group* group, int32_t* masked, int32_t ranks);
SHOAL_API shoal_status shoal_ep_set_mask(shoal_ep_group* group, int32_t rank, int32_t masked);
SHOAL_API shoal_status shoal_ep_clear_masks(shoal_ep_group* group);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // SHOAL_SHOAL_H
