// SPDX-License-Identifier: Apache-2.0
// combine_staging.cuh: expert output that other ranks do not reach, copied or summed to the staging
// area while they fetch.
//
// Moves: reads the rows for other ranks (CombineOptions::topk_rows: the rows that it names, which
// are summed) and their weights, and writes them to the staging area. What this rank fetches itself
// stays where it is. The first CombineStaging::blocks blocks of a combine stage before they fetch,
// piece by piece (staged_pieces.cuh); some of the others stage one piece each, because nothing can
// be fetched before the first pieces are there.
#pragma once

#include "ep/cuda/device/vectors.cuh"
#include "ep/cuda/normal/device/combine_chunks.cuh"
#include "ep/cuda/normal/device/staged_pieces.cuh"

namespace shoal::ep::cuda {
namespace {

/// The weight of a top-k slot of a received row, from the caller's arrays. A slot without an expert
/// here counts as 0.
__device__ float weight_of_slot(const NormalCombine& params, std::int64_t row, std::int32_t slot) {
  const CombineStaging& from = params.staging;
  const std::int64_t i = row * params.group.top_k + slot;
  if (from.topk_rows != nullptr) {
    const std::int32_t added = from.topk_rows[i];
    return added >= 0 && added < from.row_count ? from.weights[added] : 0;
  }
  // Loaded before the look at the index, so that the two loads do not follow each other.
  const float weight = from.weights[row * from.weight_stride + slot];
  return from.topk_idx != nullptr && from.topk_idx[i] < 0 ? 0 : weight;
}

/// One warp writes the weights of rows, if there are any.
__device__ void stage_weights(const NormalCombine& params, std::int32_t first, std::int32_t end) {
  if (params.staging.weights == nullptr) return;
  const DeviceGroup& group = params.group;
  auto* const to = reinterpret_cast<float*>(group.block[group.me] + params.y_weights) +
                   static_cast<std::int64_t>(first) * group.top_k;
  const std::int32_t count = (end - first) * group.top_k;
#pragma unroll 4
  for (auto i = static_cast<std::int32_t>(lane_id()); i < count; i += 32)
    to[i] = weight_of_slot(params, first + i / group.top_k, i % group.top_k);
}

/// Weights whose rows other ranks reach.
__device__ void stage_weights_alone(const NormalCombine& params, StagedPiece& piece,
                                    const PieceSize& size, std::uint64_t epoch) {
  StagedUnits units(params, piece, size, detail::kStagedRows);
  for (StagedUnit unit = units.next(); unit.exists(); unit = units.next()) {
    stage_weights(params, unit.first, unit.end);
    __syncwarp();
    if (lane_id() == 0) units.count(epoch, unit);
  }
}

__device__ std::byte* staging_row(const NormalCombine& params, std::int64_t row) {
  const DeviceGroup& group = params.group;
  return group.block[group.me] + params.y + row * params.row_bytes;
}

/// Rows of a unit of copies: enough to hide its count.
constexpr std::uint32_t kCopiedRows = 2;

#if __CUDA_ARCH__ >= 900
/// Copies rows of one warp through its part of the block's shared memory, by bulk copies: a chunk
/// is loaded while the one before it is stored. A unit is counted while the next one is copied.
class StagedCopies {
 public:
  __device__ StagedCopies(const NormalCombine& params, StagedPiece& piece, const PieceSize& size,
                          std::byte* shared)
      : params_(params), units_(params, piece, size, kCopiedRows) {
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
      if (unit.begin == 0) stage_weights(params_, unit.first, unit.end);
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
      for (std::uint32_t at = unit.begin; at < unit.end_bytes; at += chunk_) {
        const std::uint32_t bytes = min(chunk_, unit.end_bytes - at);
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
  // Lane 0 holds these members.
  StagedUnit before_;  ///< the unit whose stores may be under way
  std::uint32_t loaded_ = 0;
  std::byte* to_ = nullptr;
  std::uint32_t bytes_ = 0;  ///< of the chunk that is to be stored; 0: none
};
#else
/// Copies without bulk copies: 16 bytes a lane and load, with kBatch loads in flight.
class StagedCopies {
 public:
  __device__ StagedCopies(const NormalCombine& params, StagedPiece& piece, const PieceSize& size,
                          std::byte*)
      : params_(params), units_(params, piece, size, kCopiedRows) {}

  __device__ void run(std::uint64_t epoch) {
    for (StagedUnit unit = units_.next(); unit.exists(); unit = units_.next()) {
      if (unit.begin == 0) stage_weights(params_, unit.first, unit.end);
      for (std::int32_t row = unit.first; row < unit.end; ++row)
        copy(params_.staging.rows + static_cast<std::int64_t>(row) * params_.row_bytes + unit.begin,
             staging_row(params_, row) + unit.begin, unit.end_bytes - unit.begin);
      __syncwarp();
      if (lane_id() == 0) units_.count(epoch, unit);
    }
  }

 private:
  __device__ static void copy(const std::byte* from, std::byte* to, std::uint32_t bytes) {
    constexpr std::uint32_t kBatch = 8;  // vectors of 16 bytes per lane in flight
    const auto* const in = reinterpret_cast<const int4*>(from);
    auto* const out = reinterpret_cast<int4*>(to);
    const std::uint32_t vectors = bytes / 16;
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
/// no registers from the usual path. `only_one`: one piece.
__device__ __noinline__ void stage_copies(const NormalCombine& params, std::uint64_t epoch,
                                          std::byte* shared, bool only_one) {
  if (params.group.ranks == 1) return;
  const PieceSize size(params);
  StagedPiece& piece = begin_pieces(params.group, only_one, size.few);
  if (is_beyond(piece, size, params.group)) return;
  if (aborted(params.group) || *params.handle.epoch == kRefused) return;
  if (params.staging.rows != nullptr)
    StagedCopies(params, piece, size, shared).run(epoch);
  else
    stage_weights_alone(params, piece, size, epoch);
}

}  // namespace
}  // namespace shoal::ep::cuda
