// SPDX-License-Identifier: Apache-2.0
// staged_pieces.cuh: pieces of staged expert output: who stages them, how their ends are published,
// and how a rank that fetches them waits.
//
// A piece is kStagedRows rows for one rank, or fewer where blocks would be left without one
// (PieceSize). A block that stages takes one piece after another, in the order in which they are
// fetched, and its warps share the rows: a piece that belongs to one block is counted without the
// order of the whole GPU's memory, which is slow on a full link
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

/// A warp stages one unit at a time: rows for one rank, or a part of a row.
struct StagedUnit {
  std::int32_t rank = -1;
  std::uint32_t piece = 0;
  std::int32_t first = 0, end = 0;         ///< rows
  std::uint32_t begin = 0, end_bytes = 0;  ///< of each row: the whole row unless it is divided
  __device__ bool exists() const { return rank >= 0; }
};

/// How this rank divides its staged rows. Where they are few, a piece has fewer rows, so that every
/// block has one, and warps share a row. Other ranks read `shift` in the notice.
struct PieceSize {
  std::uint32_t pieces = 0;      ///< of the rank with most rows
  std::uint32_t shift = 0;       ///< log2 of the rows of a piece
  std::uint32_t part_bytes = 0;  ///< of a row that a warp stages at a time
  std::uint32_t parts = 1;       ///< of a row
  bool few = false;              ///< fewer pieces of kStagedRows rows than blocks that stage

  /// The whole warp calls.
  __device__ explicit PieceSize(const NormalCombine& params) : part_bytes(params.row_bytes) {
    const DeviceGroup& group = params.group;
    const std::int32_t* const ends = params.handle.source_ends;
    std::uint32_t most = 0;
    for (auto rank = static_cast<std::int32_t>(lane_id()); rank < group.ranks; rank += 32)
      if (rank != group.me)
        most = max(most, static_cast<std::uint32_t>(ends[rank] - (rank == 0 ? 0 : ends[rank - 1])));
    most = __reduce_max_sync(~0u, most);
    const std::uint32_t others = group.ranks - 1;
    shift = kLargest;
    few = others * pieces_of(most) < static_cast<std::uint32_t>(params.staging.blocks) &&
          params.staging.rows != nullptr;
    if (few) {
      while (shift > 0 && others * pieces_of(most, shift - 1) <= gridDim.x &&
             pieces_of(most, shift - 1) <= group.layout.staged_pieces)
        --shift;
      const std::uint32_t steps = (params.row_bytes + kStep - 1) / kStep,
                          warps = max(1u, (blockDim.x / 32) >> shift);
      part_bytes = max(kLeastSteps, (steps + warps - 1) / warps) * kStep;
      parts = (params.row_bytes + part_bytes - 1) / part_bytes;
    }
    pieces = pieces_of(most);
  }
  __device__ std::uint32_t rows() const { return 1u << shift; }

 private:
  static constexpr std::uint32_t kLargest = 4;  ///< log2 of kStagedRows
  static_assert(1 << kLargest == detail::kStagedRows);
  /// Steps of kCombineStep bytes that a warp stages at least: fewer are not worth a count.
  static constexpr std::uint32_t kStep = kCombineStep, kLeastSteps = 4;

  __device__ std::uint32_t pieces_of(std::uint32_t rows, std::uint32_t by) const {
    return (rows + (1u << by) - 1) >> by;
  }
  __device__ std::uint32_t pieces_of(std::uint32_t rows) const { return pieces_of(rows, shift); }
};

/// The piece that the warps of a block are dividing, in shared memory.
struct StagedPiece {
  // Beyond all numbers.
  static constexpr std::uint32_t kOnItsWay = ~0u, kNone = ~1u, kNotTaken = ~2u;

  unsigned long long taken;  ///< its number << 32 | units of it that warps have asked for
  /// The number of the one after it, or kOnItsWay; kNone after the last one; kNotTaken where it is
  /// taken when a warp needs it.
  std::uint32_t next;
};

/// Number of a piece, from 0 to the pieces of all ranks, which no block has taken.
__device__ std::uint32_t take_piece(const DeviceGroup& group) {
  return atomicAdd(&group.memory->counters[static_cast<std::uint32_t>(KernelKind::normal)].staged,
                   1u);
}

/// Takes the first piece of the calling block, and, unless it stages only one, its next one after a
/// barrier, so that the first pieces of all blocks have the lowest numbers: ranks fetch in this
/// order. `few`: PieceSize::few, where every block may have one piece and takes a second one only
/// when it has time. All its threads call.
__device__ StagedPiece& begin_pieces(const DeviceGroup& group, bool only_one, bool few) {
  __shared__ StagedPiece piece;
  if (threadIdx.x == 0) {
    piece.taken = static_cast<unsigned long long>(take_piece(group)) << 32;
    piece.next = only_one ? StagedPiece::kNone
                 : few    ? StagedPiece::kNotTaken
                          : StagedPiece::kOnItsWay;
  }
  __syncthreads();
  if (threadIdx.x == 0 && !only_one && !few)
    *static_cast<volatile std::uint32_t*>(&piece.next) = take_piece(group);
  return piece;
}

/// True if the first piece of the block, from begin_pieces, does not exist: all have been taken.
__device__ bool is_beyond(const StagedPiece& piece, const PieceSize& size,
                          const DeviceGroup& group) {
  auto number = static_cast<std::uint32_t>(
      *static_cast<const volatile unsigned long long*>(&piece.taken) >> 32);
  number = __shfl_sync(~0u, number, 0);  // a warp leaves as a whole
  return number >= size.pieces * (group.ranks - 1);
}

/// Hands units of the block's pieces to the calling warp until none is left.
class StagedUnits {
 public:
  /// `rows` of a unit where rows are not divided: a power of two, at most kStagedRows.
  __device__ StagedUnits(const NormalCombine& params, StagedPiece& piece, const PieceSize& size,
                         std::uint32_t rows)
      : params_(params), piece_(piece), size_(size), rows_(size.few ? 1 : rows) {}

  __device__ StagedUnit next() {
    const std::uint32_t others = params_.group.ranks - 1;
    for (;;) {
      std::uint32_t number = 0, at = 0;
      if (lane_id() == 0) take(number, at);
      number = __shfl_sync(~0u, number, 0);
      at = __shfl_sync(~0u, at, 0);
      StagedUnit unit;
      unit.piece = number / others;
      if (unit.piece >= size_.pieces) return {};
      unit.rank = static_cast<std::int32_t>((params_.group.me + 1 + number % others) %
                                            static_cast<std::uint32_t>(params_.group.ranks));
      const std::uint32_t row = size_.parts == 1 ? at * rows_ : at / size_.parts;
      unit.first =
          start_of(unit.rank) + static_cast<std::int32_t>((unit.piece << size_.shift) + row);
      unit.end = min(unit.first + static_cast<std::int32_t>(rows_), end_of(unit.rank));
      unit.begin = size_.parts == 1 ? 0 : (at - row * size_.parts) * size_.part_bytes;
      unit.end_bytes = min(unit.begin + size_.part_bytes, params_.row_bytes);
      if (unit.first < unit.end) return unit;
    }
  }

  /// Counts parts of rows of a piece as staged, and raises its flag when they are its last ones.
  /// One lane calls, after a barrier of the warp.
  __device__ void count(std::uint64_t epoch, std::int32_t rank, std::uint32_t piece,
                        std::int32_t parts) const {
    const DeviceGroup& group = params_.group;
    const std::int32_t rows = min(static_cast<std::int32_t>(size_.rows()),
                                  end_of(rank) - start_of(rank) -
                                      static_cast<std::int32_t>(piece << size_.shift)),
                       all = rows * static_cast<std::int32_t>(size_.parts);
    if (parts != all) {
      auto* const counted =
          reinterpret_cast<std::uint32_t*>(group.block[group.me] + group.layout.staged_counts) +
          static_cast<std::uint64_t>(rank) * group.layout.staged_pieces + piece;
      const auto added = static_cast<std::uint32_t>(parts);
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
    const std::uint32_t units = (size_.rows() * size_.parts) / rows_;
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
    std::uint32_t number = next;
    const bool ahead = number < StagedPiece::kNotTaken;
    if (number == StagedPiece::kNotTaken) number = take_piece(params_.group);
    if (ahead) next = StagedPiece::kOnItsWay;
    __threadfence_block();
    atomicExch(&piece_.taken, static_cast<unsigned long long>(number) << 32 | 1);
    if (ahead) next = take_piece(params_.group);
    return number;
  }

  const NormalCombine& params_;
  StagedPiece& piece_;
  const PieceSize& size_;
  const std::uint32_t rows_;
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

/// Waits until the piece of each lane with `mine` is staged; lanes have pieces of different ranks.
/// The whole warp calls.
__device__ void await_staged_rows(const NormalCombine& params, std::uint64_t epoch, bool mine,
                                  std::int32_t rank, std::uint32_t piece, std::uint32_t* known) {
  std::uint32_t left = __ballot_sync(~0u, mine);
  for (; left != 0; left &= left - 1) {
    const int lane = __ffs(static_cast<int>(left)) - 1;
    const std::int32_t from = __shfl_sync(~0u, rank, lane);
    await_piece(params, epoch, from, __shfl_sync(~0u, piece, lane), known + from);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
