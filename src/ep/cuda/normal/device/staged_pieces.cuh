// SPDX-License-Identifier: Apache-2.0
// staged_pieces.cuh: pieces of staged expert output: who stages them, how their ends are published,
// and how a rank that fetches them waits.
//
// A piece is kStagedRows rows for one rank. A block that stages takes one piece after another, in
// the order in which they are fetched, and its warps share the rows: a piece that belongs to one
// block is counted without the order of the whole GPU's memory, which is slow on a full link
// (docs/decisions/staged-expert-output.md). Pieces are handed out to blocks that run: no rank waits
// for a block that may not be resident yet.
//
// Publishes: the epoch in the flag of a piece, at the rank that fetches it, once all its rows are
// staged. Memory order: a warp that has staged rows meets at a warp barrier, then one lane counts
// them by an atomic with acquire and release inside the block; who completes the count raises the
// flag by a release at system scope. The fetching warp acquires it and passes a proxy fence before
// its bulk copies.
#pragma once

#include "ep/cuda/device/group.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/cuda/normal/device/notices.cuh"

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

/// The piece that the warps of a block are dividing, in shared memory.
struct StagedPiece {
  static constexpr std::uint32_t kOnItsWay = ~0u, kNone = ~1u;  // beyond all numbers

  unsigned long long taken;  ///< its number << 32 | units of it that warps have asked for
  std::uint32_t next;        ///< the number of the one after it, kOnItsWay, or kNone for the last
};

/// Number of a piece, from 0 to the pieces of all ranks, which no block has taken.
__device__ std::uint32_t take_piece(const DeviceGroup& group) {
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)].staged,
                   1u);
}

/// Takes the first piece of the calling block, and, unless it stages only one, its next one after a
/// barrier, so that the first pieces of all blocks have the lowest numbers: ranks fetch in this
/// order. All its threads call.
__device__ StagedPiece& begin_pieces(const DeviceGroup& group, bool only_one) {
  __shared__ StagedPiece piece;
  if (threadIdx.x == 0) {
    piece.taken = static_cast<unsigned long long>(take_piece(group)) << 32;
    piece.next = only_one ? StagedPiece::kNone : StagedPiece::kOnItsWay;
  }
  __syncthreads();
  if (threadIdx.x == 0 && !only_one)
    *static_cast<volatile std::uint32_t*>(&piece.next) = take_piece(group);
  return piece;
}

/// Hands units of the block's pieces to the calling warp until none is left.
class StagedUnits {
 public:
  /// `rows` of a unit: a power of two, at most kStagedRows.
  __device__ StagedUnits(const NormalCombine& params, StagedPiece& piece, std::uint32_t rows)
      : params_(params), piece_(piece), rows_(rows) {
    const DeviceGroup& group = params.group;
    std::int32_t most = 0;  // rows for one rank
    for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group.ranks; rank += 32)
      if (rank != group.me) most = max(most, end_of(rank) - start_of(rank));
    most = static_cast<std::int32_t>(__reduce_max_sync(~0u, static_cast<std::uint32_t>(most)));
    pieces_ = (most + detail::kStagedRows - 1) / detail::kStagedRows;
  }

  __device__ StagedUnit next() {
    const std::uint32_t others = params_.group.ranks - 1;
    for (;;) {
      std::uint32_t number = 0, at = 0;
      if (lane_id() == 0) take(number, at);
      number = __shfl_sync(~0u, number, 0);
      at = __shfl_sync(~0u, at, 0);
      StagedUnit unit;
      unit.piece = number / others;
      if (unit.piece >= pieces_) return {};
      unit.rank = static_cast<std::int32_t>((params_.group.me + 1 + number % others) %
                                            static_cast<std::uint32_t>(params_.group.ranks));
      unit.first = start_of(unit.rank) +
                   static_cast<std::int32_t>(unit.piece * detail::kStagedRows + at * rows_);
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
      if (ptx::atom_acq_rel_cta_global_add(counted, added) + added !=
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

  /// Takes a unit: the number of its piece, and which of the piece's. One lane calls. Who asks for
  /// the first unit behind a piece opens the next one, whose number has been taken meanwhile.
  __device__ void take(std::uint32_t& number, std::uint32_t& at) const {
    const std::uint32_t units = detail::kStagedRows / rows_;
    for (;;) {
      const unsigned long long taken = atomicAdd(&piece_.taken, 1ull);
      number = static_cast<std::uint32_t>(taken >> 32);
      at = static_cast<std::uint32_t>(taken);
      if (at < units || number == StagedPiece::kNone) return;
      if (at == units) break;
      while (volatile_number() == number) {
      }
    }
    number = open_next();
    at = 0;
  }
  __device__ std::uint32_t volatile_number() const {
    return static_cast<std::uint32_t>(*static_cast<volatile unsigned long long*>(&piece_.taken) >>
                                      32);
  }
  __device__ std::uint32_t open_next() const {
    volatile std::uint32_t& next = piece_.next;
    while (next == StagedPiece::kOnItsWay) {
    }
    const std::uint32_t number = next;
    const bool none = number == StagedPiece::kNone;
    if (!none) next = StagedPiece::kOnItsWay;
    __threadfence_block();
    atomicExch(&piece_.taken, static_cast<unsigned long long>(number) << 32 | 1);
    if (!none) next = take_piece(params_.group);
    return number;
  }

  const NormalCombine& params_;
  StagedPiece& piece_;
  const std::uint32_t rows_;
  std::uint32_t pieces_ = 0;  ///< of the rank with most rows
};

/// Number of pieces in CombineSources::pieces of a rank that stages nothing.
constexpr std::uint32_t kAllPieces = ~0u;

/// Number of pieces of `rank` that are staged from `first` on without a gap, at most 32. The whole
/// warp calls.
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
