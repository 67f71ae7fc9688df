// SPDX-License-Identifier: Apache-2.0
// combine_staging.cuh: expert output that other ranks do not reach, copied piece by piece to the
// staging area while they fetch.
//
// Moves: reads the rows for other ranks (expert-major: all rows, of which it adds those of a
// token) and the weights, and writes them to the staging area. Rows for this rank are fetched where
// they lie. A piece is kStagedRows rows for one rank; the first CombineStaging::blocks blocks of a
// combine copy pieces in the order in which they are fetched, then fetch as well.
//
// Publishes: the epoch in the flag of a piece, at the rank that fetches it, once the piece is
// complete. Memory order: all threads of a block write, then meet at a barrier, then one thread
// raises the flag by a release at system scope; the fetching warp acquires it and passes a proxy
// fence before its bulk copies.
#pragma once

#include "ep/cuda/device/tma.cuh"
#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/notices.cuh"

namespace shoal::ep::cuda {
namespace {

/// The flag of a piece of `owner`'s rows, at rank `of`, which fetches them.
__device__ std::uint64_t* staged_flag(const DeviceGroup& group, std::int32_t of, std::int32_t owner,
                                      std::uint32_t piece) {
  return reinterpret_cast<std::uint64_t*>(group.block[of] + group.layout.staged_flags) +
         static_cast<std::uint64_t>(owner) * group.layout.staged_pieces + piece;
}

#if __CUDA_ARCH__ >= 900
/// Copies rows of one warp through its part of the block's shared memory, by bulk copies: a chunk
/// is loaded while the one before it is stored. Its memory and barriers become the ChunkRing's.
class StagedCopy {
 public:
  __device__ StagedCopy(const NormalCombine& params, std::byte* shared)
      : row_bytes_(params.row_bytes) {
    const std::uint32_t warp = threadIdx.x / 32;
    const std::uint32_t bytes = params.stages * params.chunk_bytes * params.copies_per_token;
    chunk_ = bytes / 2 / 128 * 128;
    slots_ = shared + 3 * kBarrierBytes + static_cast<std::size_t>(warp) * bytes;
    // A ChunkRing initialises its barriers from the first one on.
    barriers_ = reinterpret_cast<std::uint64_t*>(shared) + warp * kMaxStages + kMaxStages - 2;
    if (lane_id() == 0) {
      for (int slot = 0; slot < 2; ++slot) barrier_init(&barriers_[slot], 1);
      barriers_ready();
      ptx::fence_proxy_async();
    }
    __syncwarp();
  }

  /// Lane 0 copies; the row is complete after finish().
  __device__ void copy(const std::byte* from, std::byte* to) {
    if (lane_id() != 0) return;
    for (std::uint32_t at = 0; at < row_bytes_; at += chunk_) {
      const std::uint32_t bytes = min(chunk_, row_bytes_ - at);
      bulk_wait_read<0>();  // the store before the last one has left the slot
      barrier_expect(&barriers_[loaded_ % 2], bytes);
      bulk_load(slots_ + loaded_ % 2 * chunk_, from + at, bytes, &barriers_[loaded_ % 2]);
      store();
      to_ = to + at;
      bytes_ = bytes;
      ++loaded_;
    }
  }
  __device__ void finish() {
    if (lane_id() != 0) return;
    store();
    bulk_wait_all();
  }

 private:
  /// Stores the chunk that was loaded last, if it has not been.
  __device__ void store() {
    if (bytes_ == 0) return;
    const std::uint32_t last = loaded_ - 1;
    barrier_wait(&barriers_[last % 2], last / 2 & 1);
    bulk_store(to_, slots_ + last % 2 * chunk_, bytes_);
    bulk_commit();
    bytes_ = 0;
  }

  const std::uint32_t row_bytes_;
  std::uint32_t chunk_;
  std::byte* slots_;
  std::uint64_t* barriers_;
  std::uint32_t loaded_ = 0;
  std::byte* to_ = nullptr;
  std::uint32_t bytes_ = 0;  ///< of the chunk that is to be stored; 0: none
};
#else
/// Without bulk copies: 16 bytes a lane and load, with kBatch loads in flight.
class StagedCopy {
 public:
  __device__ StagedCopy(const NormalCombine& params, std::byte*) : row_bytes_(params.row_bytes) {}

  __device__ void copy(const std::byte* from, std::byte* to) const {
    constexpr std::uint32_t kBatch = 8;
    const auto* const in = reinterpret_cast<const int4*>(from);
    auto* const out = reinterpret_cast<int4*>(to);
    const std::uint32_t vectors = row_bytes_ / 16;
    for (std::uint32_t first = lane_id(); first < vectors; first += 32 * kBatch) {
      int4 batch[kBatch];
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j)
        if (first + 32 * j < vectors) batch[j] = __ldcs(in + first + 32 * j);
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j)
        if (first + 32 * j < vectors) out[first + 32 * j] = batch[j];
    }
  }
  __device__ void finish() const {}

 private:
  const std::uint32_t row_bytes_;
};
#endif

/// One warp adds the expert-major rows of a received row: float32, top-k slots ascending, rounded
/// once. Lane k has the row of top-k slot k, or -1.
template <class Format>
__device__ void stage_sum(const NormalCombine& params, std::int32_t row_of_slot, std::byte* to) {
  constexpr int kParts = 4, kSlots = 2;  // loads in flight: kParts * kSlots
  const std::uint32_t vectors = params.row_bytes / 16;
  const std::uint32_t slots = __ballot_sync(~0u, row_of_slot >= 0);
  for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kParts) {
    float sums[kParts][Format::kCount] = {};
    std::uint32_t left = slots;
    while (left != 0) {
      uint4 parts[kSlots][kParts];
      bool used[kSlots];
#pragma unroll
      for (int s = 0; s < kSlots; ++s) {
        used[s] = left != 0;
        const std::int32_t row = __shfl_sync(~0u, row_of_slot, used[s] ? __ffs(left) - 1 : 0);
        left &= left - 1;
        const auto* const from = reinterpret_cast<const uint4*>(
            params.staging.rows + static_cast<std::int64_t>(row) * params.row_bytes);
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          if (used[s] && first + 32 * i < vectors) parts[s][i] = __ldcs(from + first + 32 * i);
      }
#pragma unroll
      for (int s = 0; s < kSlots; ++s)
#pragma unroll
        for (int i = 0; i < kParts; ++i)
          if (used[s] && first + 32 * i < vectors) add_vector<Format>(sums[i], parts[s][i]);
    }
#pragma unroll
    for (int i = 0; i < kParts; ++i)
      if (first + 32 * i < vectors)
        *(reinterpret_cast<uint4*>(to) + first + 32 * i) = Format::narrow(sums[i]);
  }
}

/// One warp writes the weights of a row. A top-k slot without an expert here counts as 0.
__device__ void stage_weights(const NormalCombine& params, std::int64_t row,
                              std::int32_t row_of_slot) {
  const auto slot = static_cast<std::int32_t>(lane_id());
  const std::int32_t top_k = params.group.top_k;
  if (slot >= top_k) return;
  const CombineStaging& from = params.staging;
  float weight = 0;
  if (from.topk_rows != nullptr) {
    if (row_of_slot >= 0) weight = from.weights[row_of_slot];
  } else if (from.topk_idx == nullptr || from.topk_idx[row * top_k + slot] >= 0) {
    weight = from.weights[row * from.weight_stride + slot];
  }
  auto* const to = reinterpret_cast<float*>(params.group.block[params.group.me] +
                                            params.group.layout.staging_weights);
  to[row * top_k + slot] = weight;
}

/// The row of y that CombineOptions::topk_rows names for this lane's top-k slot of a received row;
/// -1: none. Reports a row that y does not have. One warp calls.
__device__ std::int32_t staged_row_of_slot(const NormalCombine& params, std::uint64_t epoch,
                                           std::int32_t row) {
  const CombineStaging& from = params.staging;
  const auto slot = static_cast<std::int32_t>(lane_id());
  const std::int32_t given =
      slot < params.group.top_k
          ? from.topk_rows[static_cast<std::int64_t>(row) * params.group.top_k + slot]
          : -1;
  const bool outside = given < -1 || given >= from.row_count;
  const std::uint32_t bad = __ballot_sync(~0u, outside);
  if (bad == 0) return given;
  if (slot == __ffs(bad) - 1)
    report_fault(params.group, Fault::bad_row, Phase::combine_fetch,
                 static_cast<std::uint32_t>(detail::Operation::combine), params.group.me, epoch,
                 static_cast<std::uint64_t>(slot), row, given, from.row_count - 1, false);
  __syncwarp();
  return outside ? -1 : given;
}

/// Copies pieces until none is left, and raises their flags. The whole block calls. Out of line, so
/// that it takes no registers from the usual path.
template <class Format>
__device__ __noinline__ void stage_pieces(const NormalCombine& params, std::uint64_t epoch,
                                          std::byte* shared) {
  __shared__ std::uint32_t taken;
  StagedCopy copy(params, shared);
  const DeviceGroup& group = params.group;
  const CombineStaging& from = params.staging;
  if (aborted(group) || *params.handle.epoch == kRefused) return;
  const std::int32_t* const ends = params.handle.source_ends;
  std::int32_t most = 0;  // rows for one rank
  for (std::int32_t rank = 0; rank < group.ranks; ++rank)
    most = max(most, ends[rank] - (rank == 0 ? 0 : ends[rank - 1]));
  const std::uint32_t pieces = (most + detail::kStagedRows - 1) / detail::kStagedRows;
  std::byte* const staging = group.block[group.me] + group.layout.staging;
  std::uint32_t* const work =
      &group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)].staged;
  for (;;) {
    __syncthreads();  // the last piece is complete, and `taken` has been read
    if (threadIdx.x == 0) taken = atomicAdd(work, 1u);
    __syncthreads();
    const std::uint32_t piece = taken / group.ranks;
    if (piece >= pieces) return;
    // Other ranks first: they need longer to fetch.
    const auto rank = static_cast<std::int32_t>((group.me + 1 + taken % group.ranks) % group.ranks);
    const std::int32_t first = (rank == 0 ? 0 : ends[rank - 1]) + piece * detail::kStagedRows;
    const std::int32_t end = min(first + detail::kStagedRows, ends[rank]);
    if (first >= end) continue;
    for (std::int32_t row = first + static_cast<std::int32_t>(threadIdx.x / 32); row < end;
         row += static_cast<std::int32_t>(blockDim.x / 32)) {
      std::int32_t row_of_slot = -1;
      if (from.topk_rows != nullptr) row_of_slot = staged_row_of_slot(params, epoch, row);
      std::byte* const to = staging + static_cast<std::int64_t>(row) * params.row_bytes;
      if (from.topk_rows != nullptr)
        stage_sum<Format>(params, row_of_slot, to);
      else if (from.rows != nullptr && rank != group.me)
        copy.copy(from.rows + static_cast<std::int64_t>(row) * params.row_bytes, to);
      if (from.weights != nullptr) stage_weights(params, row, row_of_slot);
    }
    copy.finish();
    __syncthreads();
    if (threadIdx.x == 0)
      ptx::st_release_sys_global(staged_flag(group, rank, group.me, piece), epoch);
  }
}

/// Number of pieces in CombineSources::pieces of a rank that stages nothing.
constexpr std::uint32_t kAllPieces = ~0u;

/// Waits until `row` of `rank` is staged. `known` counts the pieces of that rank, from the first
/// one, of which the block knows that they are. After a failure it lets all warps pass: the report
/// ends the operation.
__device__ void await_piece(const NormalCombine& params, std::uint64_t epoch, std::int32_t rank,
                            std::int64_t row, std::uint32_t* known) {
  const DeviceGroup& group = params.group;
  const auto needed = static_cast<std::uint32_t>(row / detail::kStagedRows) + 1;
  for (std::uint32_t piece = *static_cast<volatile std::uint32_t*>(known); piece < needed;
       ++piece) {
    const std::uint64_t* const flag = staged_flag(group, group.me, rank, piece);
    Fault fault;
    if (poll(group, rank, [&] { return ptx::ld_acquire_sys_global(flag) >= epoch; }, fault))
      continue;
    if (fault != Fault::none)
      report_fault(group, fault, Phase::combine_fetch,
                   static_cast<std::uint32_t>(detail::Operation::combine), rank, epoch,
                   ptx::ld_relaxed_sys_global(flag));
    atomicMax(known, kAllPieces);
    return;
  }
  __threadfence_block();
  atomicMax(known, needed);
}

}  // namespace
}  // namespace shoal::ep::cuda
