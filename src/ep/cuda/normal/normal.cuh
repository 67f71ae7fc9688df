// SPDX-License-Identifier: Apache-2.0
// normal.cuh: the kernels of normal mode and their parameters.
//
//   route                       top-k indices -> who gets which token (once per routing)
//   number_lanes                -> the how-manyth token of its expert each lane is (before
//   expert-major dispatches) dispatch: notify -> send -> receive     one kernel: its first block
//   publishes counts and the granted region; all
//                                           blocks send; the last block to finish waits for
//                                           everybody's rows
//   combine:  notify -> fetch and sum -> acknowledge     likewise
//
// A dispatch is a scatter to final places: once the counts of all members are known, every source
// knows the row of every token at every member (DESIGN.md, idea 1). Rows are loaded once into
// shared memory and stored from there to each member that needs them; combine fetches the rows of a
// token from the members that hold them, chunk by chunk.
//
// Expert-major dispatches (DispatchOptions.expert_major) store a row once for each lane: notices
// carry the counts of all experts, and every block derives from them where this member's tokens for
// each expert start.
#pragma once

#include <string>

#include "ep/cuda/device/device.cuh"
#include "ep/cuda/device/divisor.cuh"
#include "shoal/tensor.hpp"

namespace shoal::ep::cuda {

/// One copy of a token: member and how-manyth row that this member sends there.
SHOAL_HOST_DEVICE constexpr std::int32_t pack_copy(std::int32_t rank, std::int32_t ordinal) {
  return rank << 24 | ordinal;
}
SHOAL_HOST_DEVICE constexpr std::int32_t copy_rank(std::int32_t copy) {
  return copy >> 24;
}
SHOAL_HOST_DEVICE constexpr std::int32_t copy_ordinal(std::int32_t copy) {
  return copy & 0xffffff;
}
inline constexpr std::int32_t kNoCopy = -1;
inline constexpr std::int64_t kMaxDeviceTokens = 1 << 24;  ///< ordinals have 24 bits

/// The arrays of a routing, in device memory.
struct RoutingArrays {
  std::int64_t* topk_idx;  ///< [tokens, top_k]; indices out of range as -1
  std::int32_t* copies;  ///< [tokens, copies_per_token], ordered by the last lane that asks for the
                         ///< member; kNoCopy
  std::int32_t* rank_counts;    ///< [ranks]
  std::int32_t* expert_counts;  ///< [experts]
  std::int32_t*
      ordinals;  ///< [tokens, top_k]: the how-manyth token for the lane's expert; by number_lanes
};

/// The arrays of a handle, in device memory.
struct HandleArrays {
  std::uint64_t* epoch;     ///< of the dispatch that made the layout
  std::int32_t* first_row;  ///< [ranks]: where this member's rows start at each member
  std::int32_t* received;   ///< [ranks]: rows that each member receives in all
  std::int32_t*
      expert_counts;  ///< [local_experts]: tokens that this member received for each of its experts
  // Of an expert-major layout:
  std::int32_t*
      expert_rows;  ///< [experts]: where this member's rows start, at the member of the expert
  std::int32_t*
      expert_first_row;  ///< [local_experts + 1]: blocks of this member's experts, and the end
};

/// What a dispatch tells the host that waits for its sizes; in host memory. Followed by int32 rows
/// of each source [ranks] and tokens of each local expert [local_experts].
struct SizesMessage {
  volatile std::uint64_t sequence;  ///< the call's number once the rest is there
  volatile std::int64_t received;
};

struct RouteParams {
  DeviceGroup group;
  const void* topk_idx;
  std::int32_t is_int64;
  std::int32_t tokens, copies_per_token;
  RoutingArrays out;
  Divisor by_top_k, by_local_experts;  ///< set by the launch
};

struct NumberParams {
  const std::int64_t* topk_idx;  ///< of RoutingArrays
  std::int32_t* ordinals;
  std::int32_t tokens, top_k, experts;
};

struct DispatchParams {
  DeviceGroup group;
  const std::byte* x;
  std::uint32_t row_bytes;
  std::int32_t tokens, copies_per_token;
  const std::int32_t* copies;
  std::uint32_t write_indices;            ///< not with a cached handle
  const float* weights;                   ///< [tokens, top_k], or nullptr
  const std::uint32_t* scales;            ///< or nullptr
  std::int64_t scale_stride, scale_step;  ///< in words: between tokens, between scales of a token
  std::uint32_t scale_count;
  RoutingArrays routing;
  HandleArrays handle;
  std::uint32_t cached;            ///< the handle's arrays are read, not written
  std::uint64_t region;            ///< of the granted region, from the start of the block; kNoRoom
  std::int64_t region_rows;        ///< room of it
  std::uint32_t expert_alignment;  ///< of an expert-major layout; 0: flat
  std::uint32_t table_offset;      ///< expert-major: of HandleArrays::expert_rows in shared memory
  std::uint32_t fill;              ///< rows that no token fills get indices of -1 and weights of 0
  std::uint32_t dtype;
  SizesMessage* sizes;  ///< nullptr: nobody waits
  std::uint64_t sequence;
  std::uint32_t stage_bytes, stages, warps;
};

/// A buffer that a member shares (SymmetricHeap::share_buffer), where it lies for this GPU.
struct SharedRange {
  std::uint64_t id;  ///< the member's number for it; 0: none
  const std::byte* base;
};
/// Of each member: number n has entry n % kShareSlots.
inline constexpr std::uint32_t kShareSlots = 64;

struct CombineParams {
  DeviceGroup group;
  std::uint64_t y,
      y_weights;        ///< from the start of the block; weights: kNoRoom where there are none
  std::uint64_t share;  ///< not 0: the shared range of that number, whose start y then counts from
  const SharedRange*
      shares;  ///< [ranks][kShareSlots], in host memory: read only for members that use one
  std::uint32_t weight_stride;  ///< bytes
  std::int64_t y_rows;
  std::uint32_t row_bytes;
  std::int32_t tokens, copies_per_token;  ///< expert-major: top_k
  const std::int32_t* copies;
  std::uint32_t expert_major;    ///< expert-major: a row for each lane
  const std::int64_t* topk_idx;  ///< of RoutingArrays, as the next
  const std::int32_t* ordinals;
  HandleArrays handle;
  const std::byte* bias[2];
  std::byte* out;
  float* out_weights;  ///< [tokens, top_k], or nullptr
  std::uint32_t dtype;
  std::uint32_t chunk_bytes, stages, warps;
  std::uint32_t segment_chunks;  ///< chunks of a token that a warp sums at a time
  Divisor by_segments;           ///< of a token; set by the launch
};

inline constexpr std::uint32_t kMaxWarps = 16, kMaxStages = 8;
inline constexpr std::uint32_t kCombineStep =
    512;  ///< bytes of a row that a warp adds at a time; chunks are multiples
/// Barriers lie before the stages: one a warp and stage.
inline constexpr std::uint32_t kBarrierBytes = kMaxWarps * kMaxStages * 8;

/// How a kernel is launched.
struct Plan {
  std::int32_t blocks = 0, warps = 0, stages = 0;
  std::uint32_t table_offset = 0;  ///< in shared memory, behind the stages
  std::uint32_t stage_bytes = 0, shared_bytes = 0, segment_chunks = 0;
  bool overlap_launches = false;  ///< the kernel may be set up while the one before it ends
};

/// What a plan has to keep to.
struct Limits {
  std::uint32_t shared_bytes = 224 << 10;  ///< dynamic, of a block
  std::int32_t multiprocessors =
      132;                  ///< for one member: blocks wait for each other and must all have room
  bool bulk_copies = true;  ///< sm_90 and later
  bool overlap_launches =
      true;  ///< not where members share a GPU: set-up kernels would take their room
};
inline constexpr std::uint32_t kStaticSharedBytes = 3 << 10;
/// What a measurement sets by hand (SHOAL_EP_TUNING); 0: the plan chooses.
struct Tuning {
  std::int32_t warps = 0, stages = 0, chunk_bytes = 0, segment_chunks = 0;
};
/// From "dispatch=7x2,combine=16x3x512x8": warps x rows in flight; warps x stages x bytes of a
/// chunk x chunks of a segment.
Tuning tuning_of(const std::string& setting, const char* operation);
/// Pure; `blocks` of 0: what measured best (docs/performance.md). `table_bytes` of shared memory
/// are kept for the caller, see fits_with_table.
Plan plan_dispatch(std::int32_t blocks, std::uint32_t row_bytes, std::uint32_t scale_bytes,
                   const Limits& limits, const Tuning& tuning, std::uint32_t table_bytes = 0);
/// Whether a table leaves room for the two rows that a dispatch needs.
bool fits_with_table(std::uint32_t row_bytes, std::uint32_t scale_bytes, const Limits& limits,
                     std::uint64_t table_bytes);
/// A combine of so many tokens, the sums of at most `copies_per_token` rows each.
Plan plan_combine(std::int32_t blocks, std::uint32_t row_bytes, std::int32_t tokens,
                  std::int32_t copies_per_token, const Limits& limits, const Tuning& tuning);
/// The longest row, scales included, of which two fit into shared memory.
inline constexpr std::uint32_t kMaxRowBytes = 96 << 10;

/// Launches a kernel that begins with await_previous_kernel: it may be set up before the one in
/// front of it has ended.
template <typename Params>
void launch(void (*kernel)(Params), const Params& params, const Plan& plan, cudaStream_t stream) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  config.blockDim = dim3(static_cast<unsigned>(plan.warps) * 32);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = plan.overlap_launches ? 1 : 0;
  config.attrs = &attribute;
  config.numAttrs = 1;
  (void)cudaLaunchKernelEx(&config, kernel, params);
}

void launch_route(RouteParams params, cudaStream_t stream);
void launch_number_lanes(const NumberParams& params, cudaStream_t stream);
void launch_dispatch(const DispatchParams& params, const Plan& plan, cudaStream_t stream);
void launch_combine(const CombineParams& params, const Plan& plan, cudaStream_t stream);
/// Load the kernels' code and set their attributes; `shared_bytes` is what a block may have on this
/// GPU (B2).
void preload_route();
void preload_dispatch(int shared_bytes);
void preload_combine(int shared_bytes);

/// Epoch of a handle whose dispatch did not take place.
inline constexpr std::uint64_t kRefused = ~std::uint64_t{0};

#ifdef __CUDACC__

/// The notices of all members for one epoch, in this member's block.
__device__ inline std::byte* notice_at(const DeviceGroup& group, std::int32_t of,
                                       std::uint64_t epoch, std::int32_t member) {
  return group.block[of] + group.layout.notices +
         ((epoch & 1) * static_cast<std::uint64_t>(group.ranks) + member) *
             group.layout.notice_bytes;
}

/// Puts the notice, and the counts where given, on every member's board, then raises `entered`.
/// Members are told the counts of their own experts, or of all. The whole block calls.
template <bool kAllExperts = false>
__device__ void publish_notice(const DeviceGroup& group, std::uint64_t epoch,
                               const detail::DeviceNotice& notice, const std::int32_t* rank_counts,
                               const std::int32_t* expert_counts) {
  constexpr std::int32_t kWords = sizeof(detail::DeviceNotice) / 4;
  const auto* const words = reinterpret_cast<const std::int32_t*>(&notice);
  const std::int32_t told = kAllExperts ? group.experts : group.local_experts;
  const std::int32_t length = kWords + (rank_counts != nullptr ? group.ranks + told : 0);
  for (std::int32_t i = threadIdx.x; i < length * group.ranks; i += blockDim.x) {
    const std::int32_t to = i / length, w = i % length;
    std::int32_t value = 0;
    if (w < kWords)
      value = words[w];
    else if (w < kWords + group.ranks)
      value = rank_counts[w - kWords];
    else
      value = expert_counts[(kAllExperts ? 0 : to * told) + w - kWords - group.ranks];
    reinterpret_cast<std::int32_t*>(notice_at(group, to, epoch, group.me))[w] = value;
  }
  __syncthreads();
  for (std::int32_t to = threadIdx.x; to < group.ranks; to += blockDim.x)
    raise_signal(group, group.layout.entered, to, epoch);
}

/// Waits for the notices of all members. The whole block calls; true in all threads when they are
/// there.
__device__ inline bool await_notices(const DeviceGroup& group, std::uint64_t epoch, Phase phase,
                                     std::uint32_t operation) {
  bool good = !aborted(group);
  for (std::int32_t member = threadIdx.x; good && member < group.ranks; member += blockDim.x)
    good = wait_signal(group, group.layout.entered, member, epoch, phase, operation);
  return __syncthreads_and(good);
}

/// Whether the notice of `member` is about the same operation as that of member 0: every member
/// comes to the same verdict.
__device__ inline bool agrees(const DeviceGroup& group, std::uint64_t epoch, std::int32_t member) {
  const auto& first =
      *reinterpret_cast<const volatile detail::DeviceNotice*>(notice_at(group, group.me, epoch, 0));
  const auto& other = *reinterpret_cast<const volatile detail::DeviceNotice*>(
      notice_at(group, group.me, epoch, member));
  // All loads at once: they come from the second-level cache.
  return (first.operation == other.operation) & (first.dtype == other.dtype) &
         (first.row_bytes == other.row_bytes) & (first.scale_bytes == other.scale_bytes) &
         (first.has_weights == other.has_weights) & (first.handle_epoch == other.handle_epoch) &
         (first.expert_alignment == other.expert_alignment) & (first.handle_epoch != kRefused);
}
/// Reports the first member that does not agree; false when all do. One thread calls.
__device__ inline bool report_mismatch(const DeviceGroup& group, std::uint64_t epoch, Phase phase) {
  const auto& first =
      *reinterpret_cast<const volatile detail::DeviceNotice*>(notice_at(group, group.me, epoch, 0));
  if (first.handle_epoch == kRefused) {
    report_refused(group, Fault::no_dispatch, phase, 0, epoch);
    return true;
  }
  for (std::int32_t member = 1; member < group.ranks; ++member) {
    if (agrees(group, epoch, member)) continue;
    report_refused(group, Fault::mismatch, phase, member, epoch);
    return true;
  }
  return false;
}

/// Ends this block's part of an operation: tells all members, or, where the operation does not take
/// place (`good` is false, on all members alike), only this one. The last block to get here waits
/// for all blocks of all members and advances the epoch. The whole block calls, once its writes are
/// complete.
__device__ inline void finish_operation(const DeviceGroup& group, std::uint64_t epoch, bool good,
                                        Phase phase, std::uint32_t operation) {
  __shared__ bool last;
  Counters& counters = group.memory->counters[static_cast<std::uint32_t>(Kernel::normal)];
  __syncthreads();
  release_next_kernel();
  // Only says who is the last; what the blocks wrote is ordered by `finished`, which counts this
  // member's own as well.
  if (threadIdx.x == 0) last = atomicAdd(&counters.done, 1u) == gridDim.x - 1;
  for (std::int32_t i = threadIdx.x; i < group.ranks; i += blockDim.x) {
    const std::int32_t to = (group.me + 1 + i) % group.ranks;  // not all at the same member at once
    if (good || to == group.me)
      add_release(signal_at(group, to, group.layout.finished, group.me), 1);
  }
  __syncthreads();
  if (!last) return;
  for (std::int32_t member = threadIdx.x; member < group.ranks; member += blockDim.x) {
    if (!good && member != group.me) continue;
    const auto& notice = *reinterpret_cast<const volatile detail::DeviceNotice*>(
        notice_at(group, group.me, epoch, member));
    const std::uint64_t wanted =
        group.memory->finished[member] + (member == group.me ? gridDim.x : notice.blocks);
    if (!aborted(group))
      wait_signal(group, group.layout.finished, member, wanted, phase, operation);
    group.memory->finished[member] = wanted;
  }
  __syncthreads();
  // A failed group tells the others, whose waits for this member end.
  if (aborted(group)) {
    for (std::int32_t member = threadIdx.x; member < group.ranks; member += blockDim.x)
      raise_signal(group, group.layout.failed, member, 1);
    return;  // no later launch may take itself for a new operation
  }
  if (threadIdx.x != 0) return;
  group.memory->epoch = epoch;
  counters = {};
}

#endif  // __CUDACC__

}  // namespace shoal::ep::cuda
