// SPDX-License-Identifier: Apache-2.0
// combine_staging.cuh: expert output that other ranks do not reach, copied or summed to the staging
// area while they fetch.
//
// Moves: reads the rows for other ranks (CombineOptions::topk_rows: the rows that it names, which
// are summed) and their weights, and writes them to the staging area. What this rank fetches itself
// stays where it is. The first CombineStaging::blocks blocks of a combine stage before they fetch;
// each of their warps takes a few rows at a time, in the order in which they are fetched. A piece
// is kStagedRows rows for one rank.
//
// Publishes: the epoch in the flag of a piece, at the rank that fetches it, once all its rows are
// staged. Memory order: a warp that has staged rows meets at a warp barrier, then one lane counts
// them by an atomic with acquire and release; who completes the count raises the flag by a release
// at system scope. The fetching warp acquires it and passes a proxy fence before its bulk copies.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/combine_chunks.cuh"
#include "ep/cuda/normal/notices.cuh"

namespace shoal::ep::cuda {
namespace {

/// The flag of a piece of `owner`'s rows, at rank `of`, which fetches them.
__device__ std::uint64_t* staged_flag(const DeviceGroup& group, std::int32_t of, std::int32_t owner,
                                      std::uint32_t piece) {
  return reinterpret_cast<std::uint64_t*>(group.block[of] + group.layout.staged_flags) +
         static_cast<std::uint64_t>(owner) * group.layout.staged_pieces + piece;
}

/// Rows for one rank that a warp stages at a time.
struct StagedUnit {
  std::int32_t rank = -1;
  std::uint32_t piece = 0;
  std::int32_t first = 0, end = 0;  ///< rows
  __device__ bool exists() const { return rank >= 0; }
};

/// Hands units to the calling warp until none is left. A unit's number is taken one unit ahead.
class StagedUnits {
 public:
  /// `rows` of a unit: a power of two, at most kStagedRows.
  __device__ StagedUnits(const NormalCombine& params, std::uint32_t rows)
      : params_(params), rows_(rows) {
    const DeviceGroup& group = params.group;
    std::int32_t most = 0;  // rows for one rank
    for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group.ranks; rank += 32)
      if (rank != group.me) most = max(most, end_of(rank) - start_of(rank));
    most = static_cast<std::int32_t>(__reduce_max_sync(~0u, static_cast<std::uint32_t>(most)));
    pieces_ = (most + detail::kStagedRows - 1) / detail::kStagedRows;
    take();
  }

  __device__ StagedUnit next() {
    const std::uint32_t per_piece = detail::kStagedRows / rows_, others = params_.group.ranks - 1;
    for (;;) {
      const std::uint32_t number = __shfl_sync(~0u, upcoming_, 0);
      const std::uint32_t at = number / per_piece;
      StagedUnit unit;
      unit.piece = at / others;
      if (unit.piece >= pieces_) return {};
      take();
      unit.rank = static_cast<std::int32_t>((params_.group.me + 1 + at % others) %
                                            static_cast<std::uint32_t>(params_.group.ranks));
      unit.first =
          start_of(unit.rank) + static_cast<std::int32_t>(unit.piece * detail::kStagedRows +
                                                          (number - at * per_piece) * rows_);
      unit.end = min(unit.first + static_cast<std::int32_t>(rows_), end_of(unit.rank));
      if (unit.first < unit.end) return unit;
    }
  }

  /// Counts rows of a piece as staged, and raises its flag when they are its last ones. One lane
  /// calls, after a barrier of the warp.
  __device__ void count(std::uint64_t epoch, std::int32_t rank, std::uint32_t piece,
                        std::int32_t rows) const {
    const DeviceGroup& group = params_.group;
    const std::int32_t all =
        min(detail::kStagedRows,
            end_of(rank) - start_of(rank) - static_cast<std::int32_t>(piece) * detail::kStagedRows);
    if (rows != all) {
      auto* const counted =
          reinterpret_cast<std::uint32_t*>(group.block[group.me] + group.layout.staged_counts) +
          static_cast<std::uint64_t>(rank) * group.layout.staged_pieces + piece;
      const auto added = static_cast<std::uint32_t>(rows);
      if (ptx::atom_acq_rel_gpu_global_add(counted, added) + added !=
          static_cast<std::uint32_t>(all))
        return;
      *counted = 0;
    }
    ptx::st_release_sys_global(staged_flag(group, rank, group.me, piece), epoch);
  }
  __device__ void count(std::uint64_t epoch, const StagedUnit& unit) const {
    count(epoch, unit.rank, unit.piece, unit.end - unit.first);
  }

 private:
  __device__ std::int32_t end_of(std::int32_t rank) const {
    return params_.handle.source_ends[rank];
  }
  __device__ std::int32_t start_of(std::int32_t rank) const {
    return rank == 0 ? 0 : end_of(rank - 1);
  }
  __device__ void take() {
    if (lane_id() == 0)
      upcoming_ = atomicAdd(
          &params_.group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)].staged,
          1u);
  }

  const NormalCombine& params_;
  const std::uint32_t rows_;
  std::uint32_t pieces_ = 0;
  std::uint32_t upcoming_ = 0;  ///< number of the unit that was taken last, in lane 0
};

/// The weight of a top-k slot of a received row, from the caller's arrays. A slot without an expert
/// here counts as 0.
__device__ float weight_of_slot(const NormalCombine& params, std::int64_t row, std::int32_t slot) {
  const CombineStaging& from = params.staging;
  const std::int64_t i = row * params.group.top_k + slot;
  if (from.topk_rows != nullptr) {
    const std::int32_t added = from.topk_rows[i];
    return added >= 0 && added < from.row_count ? from.weights[added] : 0;
  }
  if (from.topk_idx != nullptr && from.topk_idx[i] < 0) return 0;
  return from.weights[row * from.weight_stride + slot];
}

/// One warp writes the weights of rows, if there are any.
__device__ void stage_weights(const NormalCombine& params, std::int32_t first, std::int32_t end) {
  if (params.staging.weights == nullptr) return;
  const DeviceGroup& group = params.group;
  auto* const to = reinterpret_cast<float*>(group.block[group.me] + group.layout.staging_weights) +
                   static_cast<std::int64_t>(first) * group.top_k;
  const std::int32_t count = (end - first) * group.top_k;
#pragma unroll 4
  for (auto i = static_cast<std::int32_t>(lane_id()); i < count; i += 32)
    to[i] = weight_of_slot(params, first + i / group.top_k, i % group.top_k);
}

/// Weights whose rows other ranks reach.
__device__ void stage_weights_alone(const NormalCombine& params, std::uint64_t epoch) {
  StagedUnits units(params, detail::kStagedRows);
  for (StagedUnit unit = units.next(); unit.exists(); unit = units.next()) {
    stage_weights(params, unit.first, unit.end);
    __syncwarp();
    if (lane_id() == 0) units.count(epoch, unit);
  }
}

__device__ std::byte* staging_row(const NormalCombine& params, std::int64_t row) {
  const DeviceGroup& group = params.group;
  return group.block[group.me] + group.layout.staging + row * params.row_bytes;
}

/// Rows of a unit of copies: enough to hide its count.
constexpr std::uint32_t kCopiedRows = 2;

#if __CUDA_ARCH__ >= 900
/// Copies rows of one warp through its part of the block's shared memory, by bulk copies: a chunk
/// is loaded while the one before it is stored. A unit is counted while the next one is copied.
class StagedCopies {
 public:
  __device__ StagedCopies(const NormalCombine& params, std::byte* shared)
      : params_(params), units_(params, kCopiedRows) {
    const std::uint32_t warp = threadIdx.x / 32;
    const std::uint32_t bytes = params.staging.copy_bytes;
    chunk_ = bytes / 2 / 128 * 128;
    slots_ = shared_address(shared) + 3 * kBarrierBytes + warp * bytes;
    barriers_ = shared_address(shared) + warp * kMaxStages * sizeof(std::uint64_t);
    if (lane_id() == 0) {
      for (std::uint32_t slot = 0; slot < 2; ++slot) ptx::mbarrier_init(barrier(slot), 1);
      barriers_ready();
    }
    __syncwarp();
  }

  __device__ void run(std::uint64_t epoch) {
    for (StagedUnit unit = units_.next(); unit.exists(); unit = units_.next()) {
      stage_weights(params_, unit.first, unit.end);
      __syncwarp();
      if (lane_id() == 0) copy(epoch, unit);
      __syncwarp();
    }
    if (lane_id() == 0) {
      store();
      bulk_wait_all();
      if (before_.exists()) units_.count(epoch, before_);
      for (std::uint32_t slot = 0; slot < 2; ++slot) ptx::mbarrier_inval(barrier(slot));
    }
    __syncwarp();
  }

 private:
  __device__ SharedAddress barrier(std::uint32_t slot) const {
    return barriers_ + slot * sizeof(std::uint64_t);
  }

  __device__ void copy(std::uint64_t epoch, const StagedUnit& unit) {
    std::uint32_t chunks = 0;
    for (std::int32_t row = unit.first; row < unit.end; ++row) {
      const std::int64_t offset = static_cast<std::int64_t>(row) * params_.row_bytes;
      std::byte* const to = staging_row(params_, row);
      for (std::uint32_t at = 0; at < params_.row_bytes; at += chunk_) {
        const std::uint32_t bytes = min(chunk_, params_.row_bytes - at);
        copy_chunk(params_.staging.rows + offset + at, to + at, bytes);
        // All stores but that of this unit's first chunk belong to the unit before.
        if (++chunks != 2 || !before_.exists()) continue;
        bulk_wait<1>();
        units_.count(epoch, before_);
      }
    }
    if (chunks == 1 && before_.exists()) {
      bulk_wait_all();
      units_.count(epoch, before_);
    }
    before_ = unit;
  }

  __device__ void copy_chunk(const std::byte* from, std::byte* to, std::uint32_t bytes) {
    const std::uint32_t slot = loaded_ % 2;
    bulk_wait_read<0>();  // the store before the last one has left the slot
    barrier_expect(barrier(slot), bytes);
    bulk_load(slots_ + slot * chunk_, from, bytes, barrier(slot));
    store();
    to_ = to;
    bytes_ = bytes;
    ++loaded_;
  }
  /// Stores the chunk that was loaded last, if it has not been.
  __device__ void store() {
    if (bytes_ == 0) return;
    const std::uint32_t last = loaded_ - 1, slot = last % 2;
    barrier_wait(barrier(slot), last / 2 & 1);
    ptx::cp_async_bulk_global_shared(to_, slots_ + slot * chunk_, bytes_);
    bulk_commit();
    bytes_ = 0;
  }

  const NormalCombine& params_;
  StagedUnits units_;
  std::uint32_t chunk_;
  SharedAddress slots_, barriers_;
  // In lane 0:
  StagedUnit before_;  ///< the unit whose stores may be under way
  std::uint32_t loaded_ = 0;
  std::byte* to_ = nullptr;
  std::uint32_t bytes_ = 0;  ///< of the chunk that is to be stored; 0: none
};
#else
/// Without bulk copies: 16 bytes a lane and load, with kBatch loads in flight.
class StagedCopies {
 public:
  __device__ StagedCopies(const NormalCombine& params, std::byte*)
      : params_(params), units_(params, kCopiedRows) {}

  __device__ void run(std::uint64_t epoch) {
    for (StagedUnit unit = units_.next(); unit.exists(); unit = units_.next()) {
      stage_weights(params_, unit.first, unit.end);
      for (std::int32_t row = unit.first; row < unit.end; ++row)
        copy(params_.staging.rows + static_cast<std::int64_t>(row) * params_.row_bytes,
             staging_row(params_, row));
      __syncwarp();
      if (lane_id() == 0) units_.count(epoch, unit);
    }
  }

 private:
  __device__ void copy(const std::byte* from, std::byte* to) const {
    constexpr std::uint32_t kBatch = 8;
    const auto* const in = reinterpret_cast<const int4*>(from);
    auto* const out = reinterpret_cast<int4*>(to);
    const std::uint32_t vectors = params_.row_bytes / 16;
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

  const NormalCombine& params_;
  StagedUnits units_;
};
#endif

/// Copies rows and weights until none is left. The whole block calls. Out of line, so that it takes
/// no registers from the usual path.
__device__ __noinline__ void stage_copies(const NormalCombine& params, std::uint64_t epoch,
                                          std::byte* shared) {
  if (params.group.ranks == 1 || aborted(params.group) || *params.handle.epoch == kRefused) return;
  if (params.staging.rows != nullptr)
    StagedCopies(params, shared).run(epoch);
  else
    stage_weights_alone(params, epoch);
}

/// Number of pieces in CombineSources::pieces of a rank that stages nothing.
constexpr std::uint32_t kAllPieces = ~0u;

/// How many pieces of `rank` are staged from `first` on without a gap, at most 32. The whole warp
/// calls.
__device__ std::uint32_t staged_from(const NormalCombine& params, std::uint64_t epoch,
                                     std::int32_t rank, std::uint32_t first) {
  const DeviceGroup& group = params.group;
  const std::uint32_t piece = first + lane_id();
  const bool staged =
      piece < group.layout.staged_pieces &&
      ptx::ld_acquire_sys_global(staged_flag(group, group.me, rank, piece)) >= epoch;
  const std::uint32_t missing = ~__ballot_sync(~0u, staged);
  return missing == 0 ? 32 : static_cast<std::uint32_t>(__ffs(static_cast<int>(missing)) - 1);
}

/// One thread waits until `piece` of `rank` is staged. After a failure, which it reports, false.
__device__ bool poll_piece(const NormalCombine& params, std::uint64_t epoch, std::int32_t rank,
                           std::uint32_t piece) {
  const DeviceGroup& group = params.group;
  const std::uint64_t* const flag = staged_flag(group, group.me, rank, piece);
  Fault fault;
  const WaitPlace place{Phase::combine_fetch,
                        static_cast<std::uint32_t>(detail::Operation::combine), epoch};
  if (poll(group, rank, [&] { return ptx::ld_acquire_sys_global(flag) >= epoch; }, fault, place))
    return true;
  if (fault != Fault::none)
    report_fault(group, fault, place.phase, place.operation, rank, epoch,
                 ptx::ld_relaxed_sys_global(flag));
  return false;
}

/// Waits until `piece` of `rank` is staged. The whole warp calls, with the same arguments. `known`
/// counts the pieces of that rank, from the first one, of which the block knows that they are. A
/// look takes in 32 flags: one flag at a time, a microsecond each, made blocks that join late wait
/// longer than the copies take. After a failure all warps pass: its report ends the operation.
__device__ __noinline__ void await_piece(const NormalCombine& params, std::uint64_t epoch,
                                         std::int32_t rank, std::uint32_t piece,
                                         std::uint32_t* known) {
  for (;;) {
    const std::uint32_t first = __shfl_sync(~0u, *static_cast<volatile std::uint32_t*>(known), 0);
    if (first > piece) return;
    const std::uint32_t staged = staged_from(params, epoch, rank, first);
    __syncwarp();
    if (lane_id() == 0) {
      __threadfence_block();
      if (staged != 0)
        atomicMax(known, first + staged);
      else if (!poll_piece(params, epoch, rank, first))
        atomicMax(known, kAllPieces);
    }
    __syncwarp();
  }
}

/// Waits until the row of each lane with `mine` is staged; lanes have rows of different ranks. The
/// whole warp calls.
__device__ void await_staged_rows(const NormalCombine& params, std::uint64_t epoch, bool mine,
                                  std::int32_t rank, std::int64_t row, std::uint32_t* known) {
  const auto piece = static_cast<std::uint32_t>(row / detail::kStagedRows);
  std::uint32_t left = __ballot_sync(~0u, mine);
  for (; left != 0; left &= left - 1) {
    const int lane = __ffs(static_cast<int>(left)) - 1;
    const std::int32_t from = __shfl_sync(~0u, rank, lane);
    await_piece(params, epoch, from, __shfl_sync(~0u, piece, lane), known + from);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
