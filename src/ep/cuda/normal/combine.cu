// SPDX-License-Identifier: Apache-2.0
// combine.cu: the sum of a token's rows, fetched from the ranks that hold them.
//
// Moves, for each token: a row from each of its ranks, once (expert-major: from each of its
// experts), to shared memory; the sum is written to `out` once. A warp takes a segment of a token
// at a time (without bulk copies a whole token). Rows are fetched chunk by chunk with bulk copies,
// a few chunks ahead, and added in float32: biases first, then the ranks in the order of the
// routing (expert-major: top-k slots ascending), rounded once. Weights travel with the first chunk.
//
// A rank's rows lie in its block of the heap or in a buffer that it shares
// (SymmetricHeap::share_buffer), as its notice says. Where a shared buffer is mapped here is read
// from a table in host memory, once a block and such rank.
//
// Rows or weights that other ranks do not reach are copied to the staging area meanwhile
// (combine_staging.cuh).
//
// Waits: `entered` of all ranks (where their expert outputs are), then, in the block that ends
// last, `finished` of all ranks: they have fetched this rank's expert outputs, which may change
// now. Publishes: the notice and `entered`; `finished` after the last fetch. Memory order: bulk
// loads read behind the acquire of `entered` and a proxy fence; see notices.cuh.
//
// Measured: 4096 tokens of 14 KiB on two H200 with 16 SMs take 185 us: 632 GB/s logical, 399 of 478
// GB/s raw on the link (docs/notebook/2026-11-22-gpu-normal-mode.md).
#include <algorithm>

#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/combine_staging.cuh"
#include "ep/cuda/normal/notices.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kCombine = static_cast<std::uint32_t>(detail::Operation::combine);

/// Where this rank's rows are, by rank; in shared memory.
struct CombineSources {
  const std::byte* rows[kMaxDeviceRanks];     // the first row at each rank
  const std::byte* weights[kMaxDeviceRanks];  // likewise
  std::uint32_t weight_stride[kMaxDeviceRanks];
  std::uint32_t pieces[kMaxDeviceRanks];  // known to be staged, from the first one
  bool any_staged;
  detail::DeviceNotice notice;
};

/// A row to be added: that of a rank (rank-major), or of a top-k slot (expert-major).
template <bool kExpertMajor>
struct TokenCopy {
  std::int32_t copy = kNoCopy;
  __device__ bool exists() const { return copy != kNoCopy; }
  __device__ std::int32_t rank() const { return copy_rank(copy); }
  __device__ std::int64_t row() const { return copy_row_index(copy); }
  __device__ TokenCopy of_lane(std::uint32_t lane) const { return {__shfl_sync(~0u, copy, lane)}; }
};
template <>
struct TokenCopy<true> {
  std::int32_t rank_ = -1, at = 0;
  __device__ bool exists() const { return rank_ >= 0; }
  __device__ std::int32_t rank() const { return rank_; }
  __device__ std::int64_t row() const { return at; }
  __device__ TokenCopy of_lane(std::uint32_t lane) const {
    return {__shfl_sync(~0u, rank_, lane), __shfl_sync(~0u, at, lane)};
  }
};

template <bool kExpertMajor>
__device__ TokenCopy<kExpertMajor> load_copy(const NormalCombine& params, std::int64_t token) {
  if (token >= params.tokens || static_cast<std::int32_t>(lane_id()) >= params.copies_per_token)
    return {};
  const std::int64_t i = token * params.copies_per_token + lane_id();
  if constexpr (kExpertMajor) {
    const auto expert = static_cast<std::int32_t>(params.topk_idx[i]);
    if (expert < 0) return {};
    return {expert / params.group.local_experts,
            params.handle.expert_rows[expert] + params.expert_row_indices[i]};
  } else {
    return {params.copies[i]};
  }
}

template <bool kExpertMajor>
__device__ const std::byte* row_of(const NormalCombine& params, const CombineSources& sources,
                                   const TokenCopy<kExpertMajor>& copy) {
  return sources.rows[copy.rank()] + copy.row() * params.row_bytes;
}
template <bool kExpertMajor>
__device__ const std::byte* weights_of(const CombineSources& sources,
                                       const TokenCopy<kExpertMajor>& copy) {
  return sources.weights[copy.rank()] + copy.row() * sources.weight_stride[copy.rank()];
}

/// Where the range that `rank` shares under number `id` is mapped for this GPU; nullptr where the
/// host has not entered it.
__device__ const std::byte* shared_range(const NormalCombine& params, std::int32_t rank,
                                         std::uint64_t id) {
  const volatile SharedRange& range = params.shares[rank * kShareSlots + id % kShareSlots];
  return range.id == id ? range.base : nullptr;
}

__device__ const volatile detail::DeviceNotice& notice_of(const DeviceGroup& group,
                                                          std::uint64_t epoch, std::int32_t rank) {
  return *reinterpret_cast<const volatile detail::DeviceNotice*>(
      notice_at(group, group.me, epoch, rank));
}

/// The rest of find_sources where ranks disagree or expert outputs lie outside the heap. Out of
/// line, so that it takes no registers from the usual path. The whole block calls; true when the
/// operation takes place.
template <bool kExpertMajor>
__device__ __noinline__ bool find_shared_sources(const NormalCombine& params, std::uint64_t epoch,
                                                 bool leader, CombineSources& sources) {
  const DeviceGroup& group = params.group;
  bool good = true, known = true, staged = false;
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    good = good && agrees(group, epoch, rank);
    const auto& notice = notice_of(group, epoch, rank);
    const std::uint64_t share = notice.share;
    const std::int64_t first = kExpertMajor ? 0 : params.handle.first_row[rank];
    if (notice.staged != 0) {
      staged = true;
      sources.pieces[rank] = 0;
    }
    if (rank == group.me && params.staging.rows != nullptr && params.staging.topk_rows == nullptr)
      sources.rows[rank] = params.staging.rows + first * params.row_bytes;
    if (share == 0) continue;
    const std::byte* const base = shared_range(params, rank, share);
    sources.rows[rank] = base + notice.region + first * params.row_bytes;
    if (base != nullptr) continue;
    // That rank or this one called share_buffer and combine in another order than the others.
    known = false;
    if (leader) report_refused(group, Fault::mismatch, Phase::combine_notify, rank, epoch);
  }
  if (staged) sources.any_staged = true;
  if (__syncthreads_and(good && known)) return true;
  if (leader && threadIdx.x == 0) report_mismatch(group, epoch, Phase::combine_notify);
  return false;
}

/// Reads from the notices whether ranks agree and where their expert outputs are. True when the
/// operation takes place.
template <bool kExpertMajor>
__device__ bool find_sources(const NormalCombine& params, std::uint64_t epoch, bool leader,
                             CombineSources& sources) {
  const DeviceGroup& group = params.group;
  bool ordinary = true;
  if (threadIdx.x == 0) sources.any_staged = false;
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    const auto& notice = notice_of(group, epoch, rank);
    ordinary = ordinary && agrees(group, epoch, rank) & (notice.share == 0) & (notice.staged == 0);
    sources.pieces[rank] = kAllPieces;
    const std::int64_t first = kExpertMajor ? 0 : params.handle.first_row[rank];
    sources.rows[rank] = group.block[rank] + notice.region + first * params.row_bytes;
    sources.weight_stride[rank] = notice.weight_stride;
    sources.weights[rank] = group.block[rank] + notice.weights + first * notice.weight_stride;
  }
  return __syncthreads_and(ordinary) ||
         find_shared_sources<kExpertMajor>(params, epoch, leader, sources);
}

/// Sums the weights of a token over its ranks in order; lane k has those of top-k slot k.
template <bool kExpertMajor>
__device__ void sum_weights(const NormalCombine& params, const CombineSources& sources,
                            std::int64_t token, const TokenCopy<kExpertMajor>& copy,
                            std::uint32_t copies) {
  const auto lane = static_cast<std::int32_t>(lane_id());
  float sum = 0;
  if constexpr (kExpertMajor) {  // each top-k slot has one
    if (copy.exists())
      sum = ptx::ld_relaxed_sys_global(reinterpret_cast<const float*>(weights_of(sources, copy)));
    copies = 0;
  }
  for (std::uint32_t c = 0; c < copies; ++c) {
    const auto* const from = reinterpret_cast<const float*>(weights_of(sources, copy.of_lane(c)));
    if (lane < params.group.top_k) sum = numeric::add(sum, ptx::ld_relaxed_sys_global(from + lane));
  }
  if (lane < params.group.top_k) params.out_weights[token * params.group.top_k + lane] = sum;
}

/// Waits until the rows of a token are staged; lanes with `mine` have one. The whole warp calls.
template <bool kExpertMajor>
__device__ void await_rows(const NormalCombine& params, CombineSources& sources,
                           std::uint64_t epoch, const TokenCopy<kExpertMajor>& copy, bool mine) {
  if constexpr (kExpertMajor) return;  // staged before the launch
  if (mine) {
    std::uint32_t* const known = &sources.pieces[copy.rank()];
    if (*static_cast<volatile std::uint32_t*>(known) <= copy.row() / detail::kStagedRows)
      await_piece(params, epoch, copy.rank(), copy.row(), known);
  }
  __threadfence_block();  // another warp may have acquired the flag
  __syncwarp();
  ptx::fence_proxy_async();
}

#if __CUDA_ARCH__ >= 900
template <class Format>
__device__ void add_biases(const NormalCombine& params, std::int64_t offset,
                           float (&sum)[Format::kCount]) {
#pragma unroll 1  // a jump over the loop where there is no bias
  for (const std::byte* const bias : params.bias)
    if (bias != nullptr) add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
}

/// Sums kParts parts of the result, of sixteen bytes each and kCombineStep apart; the first is at
/// `offset` from the start of `out`. Biases first, then `copies` chunks in shared memory, one
/// behind another.
template <class Format, int kParts>
__device__ void sum_parts(const NormalCombine& params, std::int64_t offset, SharedAddress from,
                          std::uint32_t copies) {
  float sums[kParts][Format::kCount] = {};
  if (params.bias[0] != nullptr || params.bias[1] != nullptr)
    for (int i = 0; i < kParts; ++i) add_biases<Format>(params, offset + i * kCombineStep, sums[i]);
#pragma unroll(4 / kParts)
  for (std::uint32_t c = 0; c < copies; ++c) {
    uint4 parts[kParts];
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      parts[i] = ptx::ld_shared_v4(from + c * params.chunk_bytes + i * kCombineStep);
#pragma unroll
    for (int i = 0; i < kParts; ++i) add_vector<Format>(sums[i], parts[i]);
  }
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    __stcs(reinterpret_cast<uint4*>(params.out + offset + i * kCombineStep),
           Format::narrow(sums[i]));
}

/// The chunks of one warp's work, in order; each stage has a chunk of every copy. A work item is a
/// segment of a token, a few chunks: short enough for warps to end together. The copies of an item
/// are loaded one item ahead, and its number is taken two items ahead.
///
/// With few SMs the number of instructions is the limit
/// (docs/notebook/2026-11-22-gpu-normal-mode.md), so nothing is computed again for each chunk.
template <class Format, bool kExpertMajor>
class ChunkRing {
 public:
  __device__ ChunkRing(const NormalCombine& params, std::byte* shared)
      : params_(params),
        stage_bytes_(params.chunk_bytes * params.copies_per_token),
        segment_bytes_(params.segment_chunks * params.chunk_bytes) {
    const std::uint32_t warp = threadIdx.x / 32;
    auto* const barriers = reinterpret_cast<std::uint64_t*>(shared) + warp * kMaxStages;
    const SharedAddress start = shared_address(shared);
    barriers_ = ptx::keep_in_register(start + warp * kMaxStages * sizeof(std::uint64_t));
    in_flight_ = ptx::keep_in_register(start + kBarrierBytes + warp * kMaxStages * sizeof(uint4));
    stages_ =
        ptx::keep_in_register(start + 3 * kBarrierBytes + warp * params.stages * stage_bytes_);
    if (lane_id() == 0) {
      for (std::uint32_t s = 0; s < params.stages; ++s) barrier_init(&barriers[s], 1);
      barriers_ready();
    }
    __syncwarp();
    take();
    next_ = load_item();
  }

  template <bool kStaged>
  __device__ void run(CombineSources& sources, std::uint64_t epoch) {
    ptx::fence_proxy_async();  // bulk copies read what the ranks wrote
    next_item();
#pragma unroll 1
    for (std::uint32_t s = 0; s + 1 < params_.stages; ++s) load<kStaged>(sources, epoch);
#pragma unroll 1
    while (summed_ != loaded_) {
      load<kStaged>(sources, epoch);
      sum(sources);
    }
  }

 private:
  struct Item {
    std::uint32_t token = 0, at = 0;
    TokenCopy<kExpertMajor> copy;
  };

  __device__ bool exists(const Item& item) const {
    return item.token < static_cast<std::uint32_t>(params_.tokens);
  }

  __device__ void take() {
    if (lane_id() == 0) upcoming_ = take_work(params_.group, KernelKind::normal);
  }
  /// Loads the item that was taken last, and takes another.
  __device__ Item load_item() {
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
    if (exists(item_)) next_ = load_item();
  }

  /// Computes where the copies of the item are, and where in a stage this lane's copy goes.
  __device__ void look_up(const CombineSources& sources) {
    const std::uint32_t votes = __ballot_sync(~0u, item_.copy.exists());
    copies_ = __popc(votes);
    // Rank-major, the lanes that have a row are the first ones.
    mine_ = kExpertMajor ? item_.copy.exists() : lane_id() < copies_;
    place_ =
        (kExpertMajor ? __popc(votes & ((1u << lane_id()) - 1)) : lane_id()) * params_.chunk_bytes;
    if (mine_) from_ = row_of(params_, sources, item_.copy) + item_.at;
    is_new_ = false;
  }

  template <bool kStaged>
  __device__ void load(CombineSources& sources, std::uint64_t epoch) {
    if (!exists(item_)) return;
    if (is_new_) {
      look_up(sources);
      if constexpr (kStaged) await_rows(params_, sources, epoch, item_.copy, mine_);
    }
    const std::uint32_t bytes = min(params_.chunk_bytes, end_ - item_.at);
    const SharedAddress barrier = barriers_ + load_stage_ * sizeof(std::uint64_t);
    if (lane_id() == 0) {
      ptx::st_shared_v4(in_flight_ + load_stage_ * sizeof(uint4),
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

  __device__ void sum(const CombineSources& sources) {
    const auto [token, copies, at, bytes] =
        ptx::ld_shared_v4(in_flight_ + sum_stage_ * sizeof(uint4));
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
    if (++sum_stage_ == params_.stages) {
      sum_stage_ = 0;
      sum_parity_ ^= 1;
    }
    ++summed_;
  }

  const NormalCombine& params_;
  const std::uint32_t stage_bytes_, segment_bytes_;
  SharedAddress barriers_, stages_;
  SharedAddress in_flight_;  ///< by stage: token, copies, first byte, bytes
  std::uint32_t load_stage_ = 0, loaded_ = 0, sum_stage_ = 0, sum_parity_ = 0, summed_ = 0;
  std::uint32_t upcoming_ = 0;  ///< number of the item that was taken last, in lane 0
  Item item_, next_;            ///< item_ is being loaded, from `at` on
  bool is_new_ = true, mine_ = false;
  std::uint32_t end_ = 0, copies_ = 0, place_ = 0;
  const std::byte* from_ = nullptr;
};
#else
/// Without bulk copies: a warp loads and adds a token's rows, 16 bytes a lane.
template <class Format, bool kExpertMajor>
class ChunkRing {
 public:
  __device__ ChunkRing(const NormalCombine& params, std::byte*) : params_(params) {}

  template <bool kStaged>
  __device__ void run(CombineSources& sources, std::uint64_t epoch) {
    for (;;) {
      const std::uint32_t token =
          __shfl_sync(~0u, lane_id() == 0 ? take_work(params_.group, KernelKind::normal) : 0u, 0);
      if (token >= static_cast<std::uint32_t>(params_.tokens)) return;
      const TokenCopy<kExpertMajor> copy = load_copy<kExpertMajor>(params_, token);
      const std::uint32_t copies =
          kExpertMajor ? params_.copies_per_token : __popc(__ballot_sync(~0u, copy.exists()));
      if constexpr (kStaged) await_rows(params_, sources, epoch, copy, copy.exists());
      if (params_.out_weights != nullptr) sum_weights(params_, sources, token, copy, copies);
      for (std::uint32_t v = 0; v < params_.row_bytes; v += kCombineStep) {
        const std::uint32_t at = v + lane_id() * 16;
        const bool inside = at < params_.row_bytes;
        sum_all(sources, token, at, inside, copy, copies);
      }
    }
  }

 private:
  __device__ void sum_all(const CombineSources& sources, std::int64_t token, std::uint32_t at,
                          bool inside, const TokenCopy<kExpertMajor>& copy, std::uint32_t copies) {
    float sum[Format::kCount] = {};
    const std::int64_t offset = token * params_.row_bytes + at;
    for (const std::byte* const bias : params_.bias)
      if (inside && bias != nullptr)
        add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
    for (std::uint32_t c = 0; c < copies; ++c) {
      const TokenCopy<kExpertMajor> from = copy.of_lane(c);
      if (kExpertMajor && !from.exists()) continue;
      const std::byte* const row = row_of(params_, sources, from);
      if (inside)
        add_vector<Format>(sum,
                           ptx::ld_relaxed_sys_global(reinterpret_cast<const uint4*>(row + at)));
    }
    if (inside) *reinterpret_cast<uint4*>(params_.out + offset) = Format::narrow(sum);
  }

  const NormalCombine& params_;
};
#endif

// Profiling scripts written for DeepEP find the kernel by this name.
template <class Format, bool kExpertMajor>
__global__ void __launch_bounds__(512, 1)
    combine_impl(const __grid_constant__ NormalCombine params) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ CombineSources sources;
  const DeviceGroup& group = params.group;
  ptx::griddepcontrol_wait();
  const std::uint64_t epoch = group.memory->epoch + 1;
  const std::uint32_t ticket = take_ticket(group, KernelKind::normal);
  const bool leader = ticket == 0;
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
                        params.share,
                        params.staging.blocks > 0};
    __syncthreads();
    publish_notice(group, epoch, sources.notice, nullptr, nullptr);
  }
  if constexpr (!kExpertMajor)
    if (static_cast<std::int32_t>(ticket) < params.staging.blocks)
      stage_pieces<Format>(params, epoch, shared);
  ChunkRing<Format, kExpertMajor> ring(params, shared);
  const bool good = await_notices(group, epoch, Phase::combine_notify, kCombine) &&
                    find_sources<kExpertMajor>(params, epoch, leader, sources);
  if (good && sources.any_staged)
    ring.template run<true>(sources, epoch);
  else if (good)
    ring.template run<false>(sources, epoch);
  finish_operation(group, epoch, good, Phase::combine_finish, kCombine);
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
void launch_as(NormalCombine params, const NormalPlan& plan, cudaStream_t stream) {
  const std::uint32_t segment = params.segment_chunks * params.chunk_bytes;
  params.by_segments = Divisor(std::max(1U, (params.row_bytes + segment - 1) / segment));
  launch(params.expert_major != 0 ? combine_impl<Format, true> : combine_impl<Format, false>,
         params, plan, stream);
}

}  // namespace

void launch_normal_combine(const NormalCombine& params, const NormalPlan& plan,
                           cudaStream_t stream) {
  switch (static_cast<DataType>(params.dtype)) {
    case DataType::bfloat16:
      return launch_as<Bfloat16Vector>(params, plan, stream);
    case DataType::float16:
      return launch_as<Float16Vector>(params, plan, stream);
    default:
      return launch_as<Float32Vector>(params, plan, stream);
  }
}

void preload_normal_combine(int shared_bytes) {
  preload<Bfloat16Vector>(shared_bytes);
  preload<Float16Vector>(shared_bytes);
  preload<Float32Vector>(shared_bytes);
}

}  // namespace shoal::ep::cuda
