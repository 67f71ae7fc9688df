// SPDX-License-Identifier: Apache-2.0
// dispatch.cuh: every token row goes from x to its final row at every rank that needs it.
// Expert-major (kExpertMajor) it goes to one row for each of its experts: lane k stores for top-k
// slot k, with more than 32 slots (kPerLane) also for slots k + 32, ...
//
// Moves, for each copy: the row, and a side record of scales, indices (8 B a top-k slot), weights
// (4 B a top-k slot) and the token's number. A row is loaded once, however many ranks need it. One
// warp sends a token, with several rows in flight: lane 0 loads rows by bulk copies, lane c stores
// copy c, all lanes write records, 16 B each.
//
// Waits: `entered` of all ranks (their counts and granted regions), then, in the block that ends
// last, `finished` of all ranks. Publishes: the notice and `entered`; `finished`, after all rows of
// this rank are complete at their targets. Memory order: bulk stores are complete (bulk_wait_all)
// before the release of `finished`; see notices.cuh.
//
// Measured: 4096 tokens of 7168 channels, top-8, on eight H200, 112 dispatches with 16 SMs (commit
// 38a38396): BF16 814 us, 335 GB/s on each GPU's link, where bare copies reach 340; FP8 434 us, 370
// GB/s logical (docs/decisions/combine-pulls.md).
//
// With kEncodes the warp encodes a row in shared memory, in place, before it stores it; with
// kByExpert once for each top-k slot, beside the row, with the global scale of the slot's expert.
#pragma once

#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/normal/device/dispatch_records.cuh"
#include "ep/cuda/normal/device/dispatch_targets.cuh"
#include "ep/cuda/normal/device/encode_rows.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kDispatch = static_cast<std::uint32_t>(detail::Operation::dispatch);

/// Bytes of the scales of a token if they can be copied in bulk, otherwise 0.
template <bool kEncodes>
__device__ std::uint32_t bulk_scale_bytes(const NormalDispatch& params) {
#if __CUDA_ARCH__ >= 900
  if constexpr (kEncodes) return static_cast<std::uint32_t>(align_up(params.scale_count * 4, 16));
  const bool possible = params.scale_count % 4 == 0 && params.scale_step == 1 &&
                        params.scale_stride % 4 == 0 &&
                        reinterpret_cast<std::uintptr_t>(params.scales) % 16 == 0;
  return possible ? params.scale_count * 4 : 0;
#else
  return 0;
#endif
}

#if __CUDA_ARCH__ >= 900
/// The rows of one warp that are being loaded: a ring of stages in shared memory. Token numbers are
/// taken two items ahead, so that no warp waits for them.
template <bool kExpertMajor, bool kEncodes, bool kByExpert, int kPerLane>
class RowRing {
 public:
  __device__ RowRing(const NormalDispatch& params, std::byte* shared, std::uint32_t bulk_scales)
      : params_(params), bulk_scales_(bulk_scales) {
    const std::uint32_t warp = threadIdx.x / 32;
    barriers_ = reinterpret_cast<std::uint64_t*>(shared) + warp * kMaxStages;
    stages_ = shared + kBarrierBytes +
              static_cast<std::size_t>(warp) * params.stages * params.stage_bytes;
    if (lane_id() == 0) {
      for (std::uint32_t s = 0; s < params.stages; ++s) barrier_init(&barriers_[s], 1);
      barriers_ready();
      ptx::fence_proxy_async();
    }
    __syncwarp();
    take();
  }

  /// Starts to load this warp's next row, if there is one, into the free stage.
  __device__ void load() {
    const std::uint32_t token = __shfl_sync(~0u, upcoming_, 0);
    if (token >= static_cast<std::uint32_t>(params_.tokens)) return;
    if (lane_id() == 0) {
      std::uint64_t* const barrier = &barriers_[loaded_ % params_.stages];
      std::byte* const stage = stages_ + (loaded_ % params_.stages) * params_.stage_bytes;
      barrier_expect(barrier, params_.x_row_bytes + (kEncodes ? 0 : bulk_scales_));
      bulk_load(stage, params_.x + static_cast<std::int64_t>(token) * params_.x_row_bytes,
                params_.x_row_bytes, barrier);
      if (!kEncodes && bulk_scales_ > 0)
        bulk_load(stage + params_.row_bytes, params_.scales + token * params_.scale_stride,
                  bulk_scales_, barrier);
    }
    DispatchToken<1> next;
    if constexpr (kPerLane == 1)
      next = load_token<kExpertMajor, 1>(params_, static_cast<std::int32_t>(token));
    else
      next.number = static_cast<std::int32_t>(token);
    // tokens_ is a queue in registers: constant indices keep it there.
#pragma unroll
    for (std::uint32_t s = 0; s < kMaxStages; ++s)
      if (s == loaded_ - sent_) tokens_[s] = next;
    ++loaded_;
    take();
  }

  __device__ bool empty() const { return sent_ == loaded_; }
  /// Registers do not hold several slots a lane for all tokens of the ring.
  using Front = std::conditional_t<kPerLane == 1, const DispatchToken<1>&, DispatchToken<kPerLane>>;
  __device__ Front front() const {
    if constexpr (kPerLane == 1)
      return tokens_[0];
    else
      return load_token<kExpertMajor, kPerLane>(params_, tokens_[0].number);
  }
  /// Waits for the row of front(). Its scales lie NormalDispatch::x_row_bytes after it; with
  /// kByExpert there is room for a row in the format, then for its scales.
  __device__ std::byte* await() {
    barrier_wait(&barriers_[sent_ % params_.stages], (sent_ / params_.stages) & 1);
    std::byte* const stage = stages_ + (sent_ % params_.stages) * params_.stage_bytes;
    if constexpr (kEncodes && !kByExpert) {
      encode_row(static_cast<Quantize>(params_.quantize), stage, stage, stage + params_.x_row_bytes,
                 params_.x_row_bytes / 2, params_.global_scale);
      ptx::fence_proxy_async();
      __syncwarp();
    }
    return stage;
  }
  __device__ void pop() {
#pragma unroll
    for (std::uint32_t s = 0; s + 1 < kMaxStages; ++s) tokens_[s] = tokens_[s + 1];
    ++sent_;
  }

 private:
  __device__ void take() {
    if (lane_id() == 0) upcoming_ = take_work(params_.group, KernelKind::normal);
  }

  const NormalDispatch& params_;
  const std::uint32_t bulk_scales_;
  std::uint64_t* barriers_;
  std::byte* stages_;
  std::uint32_t upcoming_ = 0, loaded_ = 0, sent_ = 0;
  DispatchToken<1> tokens_[kMaxStages];
};

/// Expert-major, with a global scale for each expert: encodes the row at `stage` for one top-k slot
/// after another, stores it and writes its record.
template <int kPerLane>
__device__ void send_row_by_expert(const NormalDispatch& params, const detail::SideRecord& record,
                                   const DispatchTargets& targets, const std::int32_t* expert_rows,
                                   const DispatchToken<kPerLane>& token, std::byte* stage,
                                   std::uint32_t bulk_scales) {
  const auto target = topk_slot_targets(params, record, targets, expert_rows, token);
  std::byte* const codes = stage + params.x_row_bytes;
  std::byte* const scales = codes + params.row_bytes;
  bool exists[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) exists[i] = target.row[i] != nullptr;
  for (auto left = NumberSet<kPerLane>::vote(exists); left.any(); left = left.without_first()) {
    const auto slot = static_cast<std::uint32_t>(left.first());
    const std::int32_t expert = value_of(token.expert, slot);
    encode_row<Quantize::nvfp4>(stage, codes, scales, params.x_row_bytes / 2,
                                __ldg(params.global_scale + expert));
    ptx::fence_proxy_async();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (number_of_lane(i) != slot) continue;
      bulk_store(target.row[i], codes, params.row_bytes);
      bulk_store(target.record[i], scales, bulk_scales);
    }
    bulk_commit();
    bulk_wait_read<0>();  // the next slot overwrites the codes
    __syncwarp();
  }
  write_topk_slot_records(params, record, target, token);
}

/// Stores a row that has been loaded, with the scales after it, at each of its targets, and writes
/// their records.
template <bool kExpertMajor, int kPerLane>
__device__ void send_row(const NormalDispatch& params, const detail::SideRecord& record,
                         const DispatchTargets& targets, const std::int32_t* expert_rows,
                         const DispatchToken<kPerLane>& token, const std::byte* row,
                         std::uint32_t bulk_scales) {
  const std::uint32_t scale_bytes = params.scale_count * 4;
  if constexpr (kExpertMajor) {
    const auto target = topk_slot_targets(params, record, targets, expert_rows, token);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (target.row[i] == nullptr) continue;
      bulk_store(target.row[i], row, params.row_bytes);
      if (bulk_scales > 0) bulk_store(target.record[i], row + params.x_row_bytes, bulk_scales);
    }
    bulk_commit();
    write_topk_slot_records(params, record, target, token);
    if (scale_bytes > bulk_scales) write_topk_slot_scales(params, target, token);
  } else {
    const std::uint32_t copies = token.copies().count();
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (number_of_lane(i) >= copies) continue;
      const std::int32_t rank = copy_rank(token.copy[i]), row_index = copy_row_index(token.copy[i]);
      bulk_store(targets.rows[rank] + static_cast<std::int64_t>(row_index) * params.row_bytes, row,
                 params.row_bytes);
      if (bulk_scales > 0)
        bulk_store(targets.records[rank] + static_cast<std::int64_t>(row_index) * record.bytes,
                   row + params.x_row_bytes, bulk_scales);
    }
    bulk_commit();
    write_records(params, record, targets, token, copies);
    if (scale_bytes > bulk_scales) write_scales(params, record, targets, token, copies);
  }
}
#else
/// Copies a row without bulk copies: 16 bytes a lane and copy, kBatch loads in flight. target_of(c)
/// is where copy c goes; nullptr where there is none.
template <class TargetOf>
__device__ void copy_row(const NormalDispatch& params, std::int32_t token, std::uint32_t copies,
                         TargetOf&& target_of) {
  constexpr std::uint32_t kBatch = 4;  // vectors of 16 bytes per lane in flight
  const auto* const from =
      reinterpret_cast<const int4*>(params.x + static_cast<std::int64_t>(token) * params.row_bytes);
  const std::uint32_t vectors = params.row_bytes / 16;
  for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kBatch) {
    int4 batch[kBatch];
#pragma unroll
    for (std::uint32_t j = 0; j < kBatch; ++j)
      if (first + 32 * j < vectors) batch[j] = from[first + 32 * j];
    for (std::uint32_t c = 0; c < copies; ++c) {
      auto* const to = reinterpret_cast<int4*>(target_of(c));
      if (to == nullptr) continue;
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j)
        if (first + 32 * j < vectors) to[first + 32 * j] = batch[j];
    }
  }
}

/// Copies the row of a token to each of its targets and writes their records.
template <bool kExpertMajor, int kPerLane>
__device__ void send_row(const NormalDispatch& params, const detail::SideRecord& record,
                         const DispatchTargets& targets, const std::int32_t* expert_rows,
                         const DispatchToken<kPerLane>& token) {
  if constexpr (kExpertMajor) {
    const auto target = topk_slot_targets(params, record, targets, expert_rows, token);
    copy_row(params, token.number, params.group.top_k,
             [&](std::uint32_t slot) { return value_of(target.row, slot); });
    write_topk_slot_records(params, record, target, token);
    if (params.scale_count > 0) write_topk_slot_scales(params, target, token);
  } else {
    const std::uint32_t copies = token.copies().count();
    copy_row(params, token.number, copies, [&](std::uint32_t c) {
      const std::int32_t copy = value_of(token.copy, c);
      return targets.rows[copy_rank(copy)] +
             static_cast<std::int64_t>(copy_row_index(copy)) * params.row_bytes;
    });
    write_records(params, record, targets, token, copies);
    if (params.scale_count > 0) write_scales(params, record, targets, token, copies);
  }
}
#endif

/// announced_scale of the scales of all experts: their hash, or one that cannot be used. The block
/// calls.
__device__ std::uint32_t announced_scales(const NormalDispatch& params) {
  __shared__ std::uint32_t sum, bad, bad_bits;
  if (threadIdx.x == 0) sum = bad = bad_bits = 0;
  __syncthreads();
  for (std::int32_t e = threadIdx.x; e < params.group.experts; e += blockDim.x) {
    const std::uint32_t bits = __float_as_uint(params.global_scale[e]);
    atomicAdd(&sum, detail::hash_of_scale(e, bits));
    if (bits != 0 && bits < numeric::kInfinityBits) continue;
    atomicAdd(&bad, 1u);
    atomicMax(&bad_bits, bits);
  }
  __syncthreads();
  return bad != 0 ? bad_bits : detail::folded_hash(sum);
}

/// The leader publishes this rank's counts and the region that it grants to the others.
template <bool kExpertMajor, bool kByExpert>
__device__ void announce(const NormalDispatch& params, std::uint64_t epoch,
                         detail::DeviceNotice& notice) {
  std::uint32_t scale = 0;
  if constexpr (kByExpert) scale = announced_scales(params);
  if (threadIdx.x == 0)
    notice = {params.region,
              detail::kNoRoom,
              params.cached ? *params.handle.epoch : 0,
              params.region_rows,
              kDispatch,
              params.dtype,
              params.row_bytes,
              params.scale_count * 4,
              params.weights != nullptr,
              0,
              gridDim.x,
              kExpertMajor ? params.expert_alignment : 0,
              params.quantize,
              kByExpert ? scale : announced_scale(params)};
  __syncthreads();
  publish_notice<kExpertMajor>(params.group, epoch, notice,
                               params.cached ? nullptr : params.routing.rank_counts,
                               params.routing.expert_counts);
}

// Profiling scripts written for DeepEP find the kernel by this name.
template <bool kExpertMajor, bool kEncodes, bool kByExpert, int kPerLane>
__global__ void __launch_bounds__(512, 1)
    dispatch_impl(const __grid_constant__ NormalDispatch params) {
  std::byte* const shared = ptx::dynamic_shared();
  __shared__ DispatchTargets targets;
  const DeviceGroup& group = params.group;
  ptx::griddepcontrol_wait();
  const std::uint64_t epoch = group.memory->epoch + 1;
  const std::uint32_t ticket = take_ticket(group, KernelKind::normal);
  const bool leader = ticket == 0;
  const detail::SideRecord record(params.scale_count * 4, kExpertMajor ? 1 : group.top_k);
  auto* const expert_rows =
      reinterpret_cast<std::int32_t*>(shared + params.table_offset);  // kExpertMajor
  const std::uint32_t bulk_scales = bulk_scale_bytes<kEncodes>(params);

  if (leader) {
    if (threadIdx.x == 0) note_start(group, KernelKind::normal, epoch, RecordedOperation::dispatch);
    announce<kExpertMajor, kByExpert>(params, epoch, targets.notice);
    if (group.record != nullptr && threadIdx.x == blockDim.x - 1)
      add_last_launch(group, KernelKind::normal, epoch);
  }

#if __CUDA_ARCH__ >= 900
  // Rows are loaded while the counts are on their way.
  RowRing<kExpertMajor, kEncodes, kByExpert, kPerLane> ring(params, shared, bulk_scales);
  for (std::uint32_t s = 0; s + 1 < params.stages; ++s) ring.load();
#endif

  const bool good = await_notices(group, epoch, Phase::dispatch_notify, kDispatch, leader) &&
                    find_targets<kExpertMajor>(params, epoch, record, leader, targets, expert_rows);
  // A host that waits for the sizes gets them before the rows are sent.
  if (good && leader && params.sizes != nullptr)
    publish_sizes<kExpertMajor>(params, epoch, targets);

#if __CUDA_ARCH__ >= 900
  for (; !ring.empty(); ring.pop()) {
    std::byte* const row = ring.await();
    if (!good) continue;  // loads must not write shared memory after the block has ended
    if constexpr (kByExpert)
      send_row_by_expert<kPerLane>(params, record, targets, expert_rows, ring.front(), row,
                                   bulk_scales);
    else
      send_row<kExpertMajor, kPerLane>(params, record, targets, expert_rows, ring.front(), row,
                                       bulk_scales);
    // Frees the stage of the previous row.
    bulk_wait_read<1>();
    __syncwarp();
    ring.load();
  }
#else
  for (;;) {
    const std::uint32_t number =
        __shfl_sync(~0u, lane_id() == 0 ? take_work(group, KernelKind::normal) : 0u, 0);
    if (!good || number >= static_cast<std::uint32_t>(params.tokens)) break;
    send_row<kExpertMajor, kPerLane>(
        params, record, targets, expert_rows,
        load_token<kExpertMajor, kPerLane>(params, static_cast<std::int32_t>(number)));
  }
#endif
  if (good && params.fill)
    fill_rest<kExpertMajor>(params, record, targets.received[group.me], ticket);
  if (good && leader && params.sizes == nullptr)
    publish_sizes<kExpertMajor>(params, epoch, targets);
  if constexpr (kExpertMajor) {
    __syncthreads();  // fill_gaps reads the counts that this block has written
    if (good && leader) fill_gaps(params, record);
  }
  if (good && leader) count_rows<kExpertMajor>(params, epoch, targets.received[group.me]);
#if __CUDA_ARCH__ >= 900
  bulk_wait_all();
#endif
  finish_operation(group, epoch, good, Phase::dispatch_receive, kDispatch);
}

template <int kPerLane>
DispatchKernel dispatch_kernel(bool expert_major, bool encodes, bool by_expert) {
  if (by_expert) return dispatch_impl<true, true, true, kPerLane>;
  if (encodes)
    return expert_major ? dispatch_impl<true, true, false, kPerLane>
                        : dispatch_impl<false, true, false, kPerLane>;
  return expert_major ? dispatch_impl<true, false, false, kPerLane>
                      : dispatch_impl<false, false, false, kPerLane>;
}

}  // namespace

}  // namespace shoal::ep::cuda
