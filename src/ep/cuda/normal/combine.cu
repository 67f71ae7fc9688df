// SPDX-License-Identifier: Apache-2.0
// combine: the sum of a token's rows, fetched from the members that hold them.
//
// Bytes per token: a row from each of its members, once; the result is written once. A warp takes a
// segment of a token at a time (without bulk copies a token); rows are fetched chunk by chunk by
// bulk copies, a few chunks ahead, and added in float32: biases first, then the members in the
// order of the routing, rounded once. Weights travel with the first chunk. Measured: 4096 tokens of
// 14 KiB on two H200 with 16 SMs in 185 us, 632 GB/s logical, 399 of 478 GB/s raw on the link
// (docs/performance.md).
//
// A member's rows lie in its block of the heap or in a buffer that it shares
// (SymmetricHeap::share_buffer), as its notice says; of the latter the address here is read from a
// table in host memory, once a block and such member.
//
// Expert-major (kExpertMajor): a row for each top-k lane that has an expert, in ascending lane
// order.
//
// Waits: `entered` of all members (where their answers lie), then, in the last block, `finished` of
// all: this member's answers have been fetched and may change. Publishes: notice and `entered`;
// `finished` after the last fetch.
#include <algorithm>

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/normal.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kCombine = static_cast<std::uint32_t>(detail::Operation::combine);

struct Sources {
  const std::byte* rows[kMaxDeviceRanks];     // this member's first row at each member
  const std::byte* weights[kMaxDeviceRanks];  // likewise
  std::uint32_t weight_stride[kMaxDeviceRanks];
  detail::DeviceNotice notice;
};

/// One row to be added: of a member in the flat layout (`copy`), or of a lane in the expert-major
/// one.
template <bool kExpertMajor>
struct Copy {
  std::int32_t copy = kNoCopy;
  __device__ bool exists() const { return copy != kNoCopy; }
  __device__ std::int32_t rank() const { return copy_rank(copy); }
  __device__ std::int64_t row() const { return copy_ordinal(copy); }
  __device__ Copy of_lane(std::uint32_t lane) const { return {__shfl_sync(~0u, copy, lane)}; }
};
template <>
struct Copy<true> {
  std::int32_t member = -1, at = 0;
  __device__ bool exists() const { return member >= 0; }
  __device__ std::int32_t rank() const { return member; }
  __device__ std::int64_t row() const { return at; }
  __device__ Copy of_lane(std::uint32_t lane) const {
    return {__shfl_sync(~0u, member, lane), __shfl_sync(~0u, at, lane)};
  }
};

template <bool kExpertMajor>
__device__ Copy<kExpertMajor> load_copy(const CombineParams& params, std::int64_t token) {
  if (token >= params.tokens || static_cast<std::int32_t>(lane_id()) >= params.copies_per_token)
    return {};
  const std::int64_t i = token * params.copies_per_token + lane_id();
  if constexpr (kExpertMajor) {
    const auto expert = static_cast<std::int32_t>(params.topk_idx[i]);
    if (expert < 0) return {};
    return {expert / params.group.local_experts,
            params.handle.expert_rows[expert] + params.ordinals[i]};
  } else {
    return {params.copies[i]};
  }
}

template <bool kExpertMajor>
__device__ const std::byte* row_of(const CombineParams& params, const Sources& sources,
                                   const Copy<kExpertMajor>& copy) {
  return sources.rows[copy.rank()] + copy.row() * params.row_bytes;
}
template <bool kExpertMajor>
__device__ const std::byte* weights_of(const Sources& sources, const Copy<kExpertMajor>& copy) {
  return sources.weights[copy.rank()] + copy.row() * sources.weight_stride[copy.rank()];
}

/// Where the range that `member` shares under number `id` lies for this GPU; nullptr where the host
/// knows of none.
__device__ const std::byte* shared_range(const CombineParams& params, std::int32_t member,
                                         std::uint64_t id) {
  const volatile SharedRange& range = params.shares[member * kShareSlots + id % kShareSlots];
  return range.id == id ? range.base : nullptr;
}

__device__ const volatile detail::DeviceNotice& notice_of(const DeviceGroup& group,
                                                          std::uint64_t epoch,
                                                          std::int32_t member) {
  return *reinterpret_cast<const volatile detail::DeviceNotice*>(
      notice_at(group, group.me, epoch, member));
}

/// Where members do not agree, or not all answers lie in the heap. A function of its own, with
/// registers of its own: the ordinary way is not to be slower for it. The whole block calls; true
/// when the operation goes on.
template <bool kExpertMajor>
__device__ __noinline__ bool find_shared_sources(const CombineParams& params, std::uint64_t epoch,
                                                 bool leader, Sources& sources) {
  const DeviceGroup& group = params.group;
  bool good = true, known = true;
  for (std::int32_t member = threadIdx.x; member < group.ranks; member += blockDim.x) {
    good = good && agrees(group, epoch, member);
    const auto& notice = notice_of(group, epoch, member);
    const std::uint64_t share = notice.share;
    if (share == 0) continue;
    const std::int64_t first = kExpertMajor ? 0 : params.handle.first_row[member];
    const std::byte* const base = shared_range(params, member, share);
    sources.rows[member] = base + notice.region + first * params.row_bytes;
    if (base != nullptr) continue;
    // The calls of share_buffer and combine of that member or of this one are out of order.
    known = false;
    if (leader) report_refused(group, Fault::mismatch, Phase::answers, member, epoch);
  }
  if (__syncthreads_and(good && known)) return true;
  if (leader && threadIdx.x == 0) report_mismatch(group, epoch, Phase::answers);
  return false;
}

/// From the notices: whether members agree, and where their answers lie; true when the operation
/// goes on.
template <bool kExpertMajor>
__device__ bool find_sources(const CombineParams& params, std::uint64_t epoch, bool leader,
                             Sources& sources) {
  const DeviceGroup& group = params.group;
  bool ordinary = true;
  for (std::int32_t member = threadIdx.x; member < group.ranks; member += blockDim.x) {
    const auto& notice = notice_of(group, epoch, member);
    ordinary = ordinary && agrees(group, epoch, member) & (notice.share == 0);
    const std::int64_t first = kExpertMajor ? 0 : params.handle.first_row[member];
    sources.rows[member] = group.block[member] + notice.region + first * params.row_bytes;
    sources.weight_stride[member] = notice.weight_stride;
    sources.weights[member] = group.block[member] + notice.weights + first * notice.weight_stride;
  }
  return __syncthreads_and(ordinary) ||
         find_shared_sources<kExpertMajor>(params, epoch, leader, sources);
}

/// The weights of a token, summed over its members in order; lane k has lane k's.
template <bool kExpertMajor>
__device__ void sum_weights(const CombineParams& params, const Sources& sources, std::int64_t token,
                            const Copy<kExpertMajor>& copy, std::uint32_t copies) {
  const auto lane = static_cast<std::int32_t>(lane_id());
  float sum = 0;
  if constexpr (kExpertMajor) {  // each lane its own
    if (copy.exists()) sum = load_fresh(reinterpret_cast<const float*>(weights_of(sources, copy)));
    copies = 0;
  }
  for (std::uint32_t c = 0; c < copies; ++c) {
    const auto* const from = reinterpret_cast<const float*>(weights_of(sources, copy.of_lane(c)));
    if (lane < params.group.top_k) sum = numeric::add(sum, load_fresh(from + lane));
  }
  if (lane < params.group.top_k) params.out_weights[token * params.group.top_k + lane] = sum;
}

#if __CUDA_ARCH__ >= 900
template <class Format>
__device__ void add_biases(const CombineParams& params, std::int64_t offset,
                           float (&sum)[Format::kCount]) {
#pragma unroll 1  // so that it is jumped over where there is none
  for (const std::byte* const bias : params.bias)
    if (bias != nullptr) add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
}

/// Parts of the result of sixteen bytes, kCombineStep apart, the first at `offset` from its start:
/// biases, then those of `copies` chunks, one behind another.
template <class Format, int kParts>
__device__ void sum_parts(const CombineParams& params, std::int64_t offset, SharedAddress from,
                          std::uint32_t copies) {
  float sums[kParts][Format::kCount] = {};
  if (params.bias[0] != nullptr || params.bias[1] != nullptr)
    for (int i = 0; i < kParts; ++i) add_biases<Format>(params, offset + i * kCombineStep, sums[i]);
#pragma unroll(4 / kParts)
  for (std::uint32_t c = 0; c < copies; ++c) {
    uint4 parts[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      parts[i] = load_shared(from + c * params.chunk_bytes + i * kCombineStep);
#pragma unroll
    for (int i = 0; i < kParts; ++i) add_vector<Format>(sums[i], parts[i]);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    __stcs(reinterpret_cast<uint4*>(params.out + offset + i * kCombineStep),
           Format::narrow(sums[i]));
}

/// The chunks of one warp's work, in order; each stage has a chunk of every copy. An item of work
/// is a segment of a token, a few chunks: short enough for warps to end together. What the routing
/// says of an item is asked for one item ahead, and its number two ahead.
///
/// Instructions are what limits it where SMs are few (docs/performance.md), so nothing is derived
/// anew for each chunk.
template <class Format, bool kExpertMajor>
class ChunkRing {
 public:
  __device__ ChunkRing(const CombineParams& params, std::byte* shared)
      : params_(params),
        stage_bytes_(params.chunk_bytes * params.copies_per_token),
        segment_bytes_(params.segment_chunks * params.chunk_bytes) {
    const std::uint32_t warp = threadIdx.x / 32;
    auto* const barriers = reinterpret_cast<std::uint64_t*>(shared) + warp * kMaxStages;
    const SharedAddress start = shared_address(shared);
    barriers_ = kept(start + warp * kMaxStages * sizeof(std::uint64_t));
    in_flight_ = kept(start + kBarrierBytes + warp * kMaxStages * sizeof(uint4));
    stages_ = kept(start + 3 * kBarrierBytes + warp * params.stages * stage_bytes_);
    if (lane_id() == 0) {
      for (std::uint32_t s = 0; s < params.stages; ++s) barrier_init(&barriers[s], 1);
      barriers_ready();
    }
    __syncwarp();
    take();
    next_ = ask();
  }

  __device__ void run(const Sources& sources) {
    fence_proxy_async();  // what the members wrote is read by bulk copies
    next_item();
#pragma unroll 1
    for (std::uint32_t s = 0; s + 1 < params_.stages; ++s) load(sources);
#pragma unroll 1
    while (summed_ != loaded_) {
      load(sources);
      sum(sources);
    }
  }

 private:
  struct Item {
    std::uint32_t token = 0, at = 0;
    Copy<kExpertMajor> copy;
  };

  __device__ bool exists(const Item& item) const {
    return item.token < static_cast<std::uint32_t>(params_.tokens);
  }

  __device__ void take() {
    if (lane_id() == 0) upcoming_ = take_work(params_.group, Kernel::normal);
  }
  /// The item that was taken last; takes another.
  __device__ Item ask() {
    const std::uint32_t number = __shfl_sync(~0u, upcoming_, 0);
    Item item;
    item.token = params_.by_segments.quotient(number);
    item.at = (number - item.token * params_.by_segments.divisor) * segment_bytes_;
    if (!exists(item)) return item;
    item.copy = load_copy<kExpertMajor>(params_, item.token);
    take();
    return item;
  }
  __device__ void next_item() {
    item_ = next_;
    is_new_ = true;
    end_ = min(item_.at + segment_bytes_, params_.row_bytes);
    if (exists(item_)) next_ = ask();
  }

  /// Where the copies of the item are, and where in a stage this lane's goes.
  __device__ void look_up(const Sources& sources) {
    const std::uint32_t votes = __ballot_sync(~0u, item_.copy.exists());
    copies_ = __popc(votes);
    // In the flat layout the lanes that have a row are the first ones.
    mine_ = kExpertMajor ? item_.copy.exists() : lane_id() < copies_;
    place_ =
        (kExpertMajor ? __popc(votes & ((1u << lane_id()) - 1)) : lane_id()) * params_.chunk_bytes;
    if (mine_) from_ = row_of(params_, sources, item_.copy) + item_.at;
    is_new_ = false;
  }

  __device__ void load(const Sources& sources) {
    if (!exists(item_)) return;
    if (is_new_) look_up(sources);
    const std::uint32_t bytes = min(params_.chunk_bytes, end_ - item_.at);
    const SharedAddress barrier = barriers_ + load_stage_ * sizeof(std::uint64_t);
    if (lane_id() == 0) {
      store_shared(in_flight_ + load_stage_ * sizeof(uint4),
                   {item_.token, copies_, item_.at, bytes});
      barrier_expect(barrier, bytes * copies_);
    }
    __syncwarp();
    if (mine_) bulk_load(stages_ + load_stage_ * stage_bytes_ + place_, from_, bytes, barrier);
    if (++load_stage_ == params_.stages) load_stage_ = 0;
    ++loaded_;
    item_.at += bytes;
    from_ += bytes;
    if (item_.at == end_) next_item();
  }

  __device__ void sum(const Sources& sources) {
    const auto [token, copies, at, bytes] = load_shared(in_flight_ + sum_stage_ * sizeof(uint4));
    if (at == 0 && params_.out_weights != nullptr)
      sum_weights(params_, sources, token, load_copy<kExpertMajor>(params_, token), copies);
    barrier_wait(barriers_ + sum_stage_ * sizeof(std::uint64_t), sum_parity_);
    const std::int64_t start = static_cast<std::int64_t>(token) * params_.row_bytes + at;
    const SharedAddress stage = stages_ + sum_stage_ * stage_bytes_;
    std::uint32_t v = lane_id() * 16;
#pragma unroll 1
    for (; v + kCombineStep < bytes; v += 2 * kCombineStep)
      sum_parts<Format, 2>(params_, start + v, stage + v, copies);
    if (v < bytes) sum_parts<Format, 1>(params_, start + v, stage + v, copies);
    __syncwarp();  // the stage may be written again
    if (++sum_stage_ == params_.stages) sum_stage_ = 0, sum_parity_ ^= 1;
    ++summed_;
  }

  const CombineParams& params_;
  const std::uint32_t stage_bytes_, segment_bytes_;
  SharedAddress barriers_, stages_;
  SharedAddress in_flight_;  ///< by stage: token, copies, first byte, bytes
  std::uint32_t load_stage_ = 0, loaded_ = 0, sum_stage_ = 0, sum_parity_ = 0, summed_ = 0;
  std::uint32_t upcoming_ = 0;  ///< number of the item that was taken last, in lane 0
  Item item_, next_;            ///< item_: that is being loaded, from `at` on
  bool is_new_ = true, mine_ = false;
  std::uint32_t end_ = 0, copies_ = 0, place_ = 0;
  const std::byte* from_ = nullptr;
};
#else
template <class Format, bool kExpertMajor>
class ChunkRing {
 public:
  __device__ ChunkRing(const CombineParams& params, std::byte*) : params_(params) {}

  __device__ void run(const Sources& sources) {
    for (;;) {
      const std::uint32_t token =
          __shfl_sync(~0u, lane_id() == 0 ? take_work(params_.group, Kernel::normal) : 0u, 0);
      if (token >= static_cast<std::uint32_t>(params_.tokens)) return;
      const Copy<kExpertMajor> copy = load_copy<kExpertMajor>(params_, token);
      const std::uint32_t copies =
          kExpertMajor ? params_.copies_per_token : __popc(__ballot_sync(~0u, copy.exists()));
      if (params_.out_weights != nullptr) sum_weights(params_, sources, token, copy, copies);
      for (std::uint32_t v = 0; v < params_.row_bytes; v += kCombineStep) {
        const std::uint32_t at = v + lane_id() * 16;
        const bool inside = at < params_.row_bytes;
        sum_all(sources, token, at, inside, copy, copies);
      }
    }
  }

 private:
  __device__ void sum_all(const Sources& sources, std::int64_t token, std::uint32_t at, bool inside,
                          const Copy<kExpertMajor>& copy, std::uint32_t copies) {
    float sum[Format::kCount] = {};
    const std::int64_t offset = token * params_.row_bytes + at;
    for (const std::byte* const bias : params_.bias)
      if (inside && bias != nullptr)
        add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
    for (std::uint32_t c = 0; c < copies; ++c) {
      const Copy<kExpertMajor> from = copy.of_lane(c);
      if (kExpertMajor && !from.exists()) continue;
      const std::byte* const row = row_of(params_, sources, from);
      if (inside) add_vector<Format>(sum, load_fresh(reinterpret_cast<const uint4*>(row + at)));
    }
    if (inside) *reinterpret_cast<uint4*>(params_.out + offset) = Format::narrow(sum);
  }

  const CombineParams& params_;
};
#endif

template <class Format, bool kExpertMajor>
__global__ void __launch_bounds__(512, 1)
    combine_impl(const __grid_constant__ CombineParams params) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Sources sources;
  const DeviceGroup& group = params.group;
  await_previous_kernel();
  const std::uint64_t epoch = group.memory->epoch + 1;
  const bool leader = take_ticket(group, Kernel::normal) == 0;
  if (leader) {
    if (threadIdx.x == 0)
      sources.notice = {params.y,
                        params.y_weights,
                        *params.handle.epoch,
                        params.y_rows,
                        kCombine,
                        params.dtype,
                        params.row_bytes,
                        0,
                        params.out_weights != nullptr,
                        params.weight_stride,
                        gridDim.x,
                        0,
                        params.share};
    __syncthreads();
    publish_notice(group, epoch, sources.notice, nullptr, nullptr);
  }
  ChunkRing<Format, kExpertMajor> ring(params, shared);
  const bool good = await_notices(group, epoch, Phase::answers, kCombine) &&
                    find_sources<kExpertMajor>(params, epoch, leader, sources);
  if (good) ring.run(sources);
  finish_operation(group, epoch, good, Phase::fetched, kCombine);
}

template <class Format>
void preload(int shared_bytes) {
  for (const auto kernel : {combine_impl<Format, false>, combine_impl<Format, true>}) {
    cudaFuncAttributes attributes;
    (void)cudaFuncGetAttributes(&attributes, kernel);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes - static_cast<int>(attributes.sharedSizeBytes));
  }
}

template <class Format>
void launch_as(CombineParams params, const Plan& plan, cudaStream_t stream) {
  const std::uint32_t segment = params.segment_chunks * params.chunk_bytes;
  params.by_segments = Divisor(std::max(1U, (params.row_bytes + segment - 1) / segment));
  launch(params.expert_major != 0 ? combine_impl<Format, true> : combine_impl<Format, false>,
         params, plan, stream);
}

}  // namespace

void launch_combine(const CombineParams& params, const Plan& plan, cudaStream_t stream) {
  switch (static_cast<DataType>(params.dtype)) {
    case DataType::bfloat16:
      return launch_as<Bfloat16>(params, plan, stream);
    case DataType::float16:
      return launch_as<Float16>(params, plan, stream);
    default:
      return launch_as<Float32>(params, plan, stream);
  }
}

void preload_combine(int shared_bytes) {
  preload<Bfloat16>(shared_bytes);
  preload<Float16>(shared_bytes);
  preload<Float32>(shared_bytes);
}

}  // namespace shoal::ep::cuda
