// SPDX-License-Identifier: Apache-2.0
// combine_sources.cuh: where the rows and weights that a combine adds are.
//
// A token's rows are named by its routing: a row of each of its ranks, or, after an expert-major
// dispatch, of each top-k slot. A rank's rows lie in its block of the heap or in a buffer that it
// shares (SymmetricHeap::share_buffer), as its notice says. Where a shared buffer is mapped here is
// read from a table in host memory, once a block and such rank. Rows and weights of this rank that
// others do not reach are read where they lie.
#pragma once

#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/normal/device/combine_staging.cuh"
#include "ep/cuda/normal/device/notices.cuh"

namespace shoal::ep::cuda {
namespace {

/// Addresses of this rank's rows, indexed by rank; in shared memory.
struct CombineSources {
  const std::byte* rows[kMaxDeviceRanks];     // the first row at each rank
  const std::byte* weights[kMaxDeviceRanks];  // likewise
  std::uint32_t weight_stride[kMaxDeviceRanks];
  std::uint32_t pieces[kMaxDeviceRanks];      // known to be staged, from the first one
  std::uint8_t piece_shift[kMaxDeviceRanks];  // PieceSize::shift of the rank
  std::int32_t first_local_row;               // of those that this rank received from itself
  detail::DeviceNotice notice;
};

/// A row to be added: that of a rank, or of a top-k slot.
template <AddedRows kRows>
struct TokenCopy {
  std::int32_t copy = kNoCopy;
  __device__ bool exists() const { return copy != kNoCopy; }
  __device__ std::int32_t rank() const { return copy_rank(copy); }
  __device__ std::int64_t row() const { return copy_row_index(copy); }
  __device__ TokenCopy of_lane(std::uint32_t lane) const { return {__shfl_sync(~0u, copy, lane)}; }
};
template <>
struct TokenCopy<AddedRows::of_experts> {
  std::int32_t rank_ = -1, at = 0;
  __device__ bool exists() const { return rank_ >= 0; }
  __device__ std::int32_t rank() const { return rank_; }
  __device__ std::int64_t row() const { return at; }
  __device__ TokenCopy of_lane(std::uint32_t lane) const {
    return {__shfl_sync(~0u, rank_, lane), __shfl_sync(~0u, at, lane)};
  }
};

/// Row `number` of a token.
template <AddedRows kRows>
__device__ TokenCopy<kRows> load_copy(const NormalCombine& params, std::int64_t token,
                                      std::uint32_t number) {
  if (token >= params.tokens || static_cast<std::int32_t>(number) >= params.copies_per_token)
    return {};
  const std::int64_t i = token * params.copies_per_token + number;
  if constexpr (kRows == AddedRows::of_experts) {
    const auto expert = static_cast<std::int32_t>(params.topk_idx[i]);
    if (expert < 0) return {};
    return {params.group.expert_table.rank_of(expert),
            params.handle.expert_rows[expert] + params.expert_row_indices[i]};
  } else {
    return {params.copies[i]};
  }
}

/// The rows of a token as a warp has them (slots.cuh).
template <AddedRows kRows, int kPerLane>
struct TokenCopies {
  TokenCopy<kRows> copy[kPerLane];
  NumberSet<kPerLane> exist;

  __device__ TokenCopies(const NormalCombine& params, std::int64_t token) {
    bool exists[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      copy[i] = load_copy<kRows>(params, token, number_of_lane(i));
      exists[i] = copy[i].exists();
    }
    exist = NumberSet<kPerLane>::vote(exists);
  }
  __device__ TokenCopy<kRows> of(std::uint32_t number) const {
    TokenCopy<kRows> found = copy[0].of_lane(number);
#pragma unroll
    for (std::uint32_t i = 1; i < kPerLane; ++i) {
      const TokenCopy<kRows> other = copy[i].of_lane(number);
      if (number / 32 == i) found = other;
    }
    return found;
  }
};

template <AddedRows kRows>
__device__ const std::byte* row_of(const NormalCombine& params, const CombineSources& sources,
                                   const TokenCopy<kRows>& copy) {
  return sources.rows[copy.rank()] + copy.row() * params.row_bytes;
}
template <AddedRows kRows>
__device__ const std::byte* weights_of(const CombineSources& sources,
                                       const TokenCopy<kRows>& copy) {
  return sources.weights[copy.rank()] + copy.row() * sources.weight_stride[copy.rank()];
}

/// Address at which the range that `rank` shares under number `id` is mapped for this GPU; nullptr
/// where the host has not entered it.
__device__ const std::byte* shared_range(const NormalCombine& params, std::int32_t rank,
                                         std::uint64_t id) {
  const volatile SharedRange& range = params.shares[rank * kShareSlots + id % kShareSlots];
  return range.id == id ? range.base : nullptr;
}

/// The rest of find_sources where ranks disagree or expert outputs lie in shared buffers. Out of
/// line, so that it takes no registers from the usual path. The whole block calls; true when the
/// operation takes place.
template <AddedRows kRows>
__device__ __noinline__ bool find_shared_sources(const NormalCombine& params, std::uint64_t epoch,
                                                 bool leader, CombineSources& sources) {
  const DeviceGroup& group = params.group;
  bool good = true, known = true;
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    good = good && agrees(group, epoch, rank);
    const auto& notice = notice_of(group, epoch, rank);
    const std::uint64_t share = notice.share;
    if (share == 0) continue;
    const std::int64_t first = kRows == AddedRows::of_experts ? 0 : params.handle.first_row[rank];
    const std::byte* const base = shared_range(params, rank, share);
    sources.rows[rank] = base + notice.region + first * params.row_bytes;
    if (base != nullptr) continue;
    // The other rank or this one called share_buffer and combine in another order than the others.
    known = false;
    if (leader) report_refused(group, Fault::mismatch, Phase::combine_notify, rank, epoch);
  }
  if (__syncthreads_and(good && known)) return true;
  if (leader && threadIdx.x == 0) report_mismatch(group, epoch, Phase::combine_notify);
  return false;
}

/// Reads from the notices whether ranks agree, where their expert outputs are, and whether any rank
/// but this one stages its own. True when the operation takes place.
template <AddedRows kRows>
__device__ bool find_sources(const NormalCombine& params, std::uint64_t epoch, bool leader,
                             CombineSources& sources, bool& any_staged) {
  const DeviceGroup& group = params.group;
  bool ordinary = true, staged = false;
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    const auto& notice = notice_of(group, epoch, rank);
    ordinary = ordinary && agrees(group, epoch, rank) & (notice.share == 0);
    const std::uint64_t staging = rank == group.me ? 0 : notice.staged;
    staged = staged || staging != 0;
    sources.pieces[rank] = staging != 0 ? 0 : kAllPieces;
    sources.piece_shift[rank] = static_cast<std::uint8_t>(staging != 0 ? staging - 1 : 0);
    const std::int64_t first = kRows == AddedRows::of_experts ? 0 : params.handle.first_row[rank];
    const std::byte* rows = group.block[rank] + notice.region;
    if (rank == group.me) {
      sources.first_local_row = static_cast<std::int32_t>(first);
      if (params.staging.rows != nullptr && kRows == AddedRows::of_ranks)
        rows = params.staging.rows;
    }
    sources.rows[rank] = rows + first * params.row_bytes;
    sources.weight_stride[rank] = notice.weight_stride;
    sources.weights[rank] = group.block[rank] + notice.weights + first * notice.weight_stride;
  }
  any_staged = !__syncthreads_and(!staged);
  return __syncthreads_and(ordinary) || find_shared_sources<kRows>(params, epoch, leader, sources);
}

}  // namespace
}  // namespace shoal::ep::cuda
