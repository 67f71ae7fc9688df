// SPDX-License-Identifier: Apache-2.0
// combine.cuh: the sum of a token's rows, fetched from the ranks that hold them.
//
// Moves, for each token: a row from each of its ranks, once (expert-major: from each of its
// experts), to shared memory; the sum is written to `out` once. A warp takes a segment of a token
// at a time (without bulk copies a whole token). Rows are fetched chunk by chunk with bulk copies,
// a few chunks ahead, and added in float32: biases first, then the ranks in the order of the
// routing (expert-major: top-k slots ascending), rounded once. Weights: combine_weights.cuh. With
// CombineOptions::unsummed an item is a top-k slot, whose row is copied in the same way.
//
// Encoded rows are summed by combine_encoded.cuh.
//
// combine_sources.cuh finds the rows. Rows or weights that other ranks do not reach are copied
// to the staging area meanwhile (combine_staging.cuh), or summed to it (combine_sums.cuh). With
// CombineOptions::topk_rows, the row of a token at this rank itself is a sum as well, which never
// leaves the registers: the rows that it consists of are fetched with those of the other ranks.
//
// Waits: `entered` of all ranks (where their expert outputs are), then, in the block that ends
// last, `finished` of all ranks: they have fetched this rank's expert outputs, which may change
// now. Publishes: the notice and `entered`; `finished` after the last fetch. Memory order: bulk
// loads read after the acquire of `entered` and a proxy fence; see notices.cuh.
//
// Measured: docs/decisions/combine-pulls.md.
#pragma once

#include "ep/cuda/normal/device/combine_counts.cuh"
#include "ep/cuda/normal/device/combine_encoded.cuh"
#include "ep/cuda/normal/device/combine_sources.cuh"
#include "ep/cuda/normal/device/combine_sums.cuh"
#include "ep/cuda/normal/device/combine_weights.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kCombine = static_cast<std::uint32_t>(detail::Operation::combine);

#if __CUDA_ARCH__ >= 900
/// Rows of this rank itself for an item, where they are summed by the combine. Lane k has the row
/// of y for top-k slot k.
struct LocalRows {
  std::uint32_t position = 0;     ///< among the copies of the token
  bool exist = false;             ///< whether the token has a copy here
  std::int32_t row = 0;           ///< as received
  std::int32_t row_of_slot = -1;  ///< as topk_rows names it, unchecked
};

/// The local rows of a token whose copies the lanes have. The whole warp calls.
__device__ LocalRows load_local_rows(const NormalCombine& params, const CombineSources& sources,
                                     const TokenCopy<AddedRows::of_ranks_summed>& copy) {
  LocalRows rows;
  const std::uint32_t here = __ballot_sync(~0u, copy.exists() && copy.rank() == params.group.me);
  if (here == 0) return rows;
  rows.position = __ffs(static_cast<int>(here)) - 1;
  rows.exist = true;
  rows.row = sources.first_local_row + static_cast<std::int32_t>(copy.of_lane(rows.position).row());
  rows.row_of_slot = load_row_of_slot(params, rows.row);
  return rows;
}

template <class Format>
__device__ void add_biases(const NormalCombine& params, std::int64_t offset,
                           float (&sum)[Format::kCount]) {
#pragma unroll 1  // a jump over the loop where there is no bias
  for (const std::byte* const bias : params.bias)
    if (bias != nullptr) add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
}

/// Sums kParts parts of the result; the first is at `offset` from the start of `out`. Biases first,
/// then the chunks. Chunks `local` to `local + local_count` are first summed and rounded.
template <class Format, int kParts, bool kLocalSums>
__device__ void sum_parts(const NormalCombine& params, std::int64_t offset, SharedAddress from,
                          std::uint32_t stride, std::uint32_t copies, std::uint32_t local = 0,
                          std::uint32_t local_count = 0) {
  float sums[kParts][Format::kCount] = {};
  if (params.bias[0] != nullptr || params.bias[1] != nullptr)
    for (int i = 0; i < kParts; ++i) add_biases<Format>(params, offset + i * kCombineStep, sums[i]);
  if constexpr (kLocalSums) {
    add_chunks<Format, kParts>(sums, from, stride, 0, local);
    if (local_count > 0) {
      float level[kParts][Format::kCount] = {};
      add_chunks<Format, kParts>(level, from, stride, local, local + local_count);
#pragma unroll
      for (int i = 0; i < kParts; ++i) add_vector<Format>(sums[i], Format::narrow(level[i]));
    }
    local += local_count;
  }
  add_chunks<Format, kParts>(sums, from, stride, local, copies);
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    __stcs(reinterpret_cast<uint4*>(params.out + offset + i * kCombineStep),
           Format::narrow(sums[i]));
}

/// Bit offsets in the second word of a stage's note: first local copy, local copy count. The copy
/// count starts at bit 0.
[[maybe_unused]] constexpr std::uint32_t kLocal = 8, kLocalCount = 16;

/// The chunks of one warp's work, in order. A work item is a segment of a token, a few chunks:
/// short enough for warps to end together. The copies of an item are loaded one item ahead, and its
/// number is taken two items ahead; where local rows are summed, one item more.
template <class Format, AddedRows kRows>
class ChunkRing {
 public:
  static constexpr bool kLocalSums = kRows == AddedRows::of_ranks_summed;

  __device__ ChunkRing(const NormalCombine& params, std::byte* shared)
      : params_(params),
        segment_bytes_(params.segment_chunks * params.chunk_bytes),
        stages_(params, shared) {
    take();
    next_ = load_item();
  }

  template <bool kStaged>
  __device__ void run(CombineSources& sources, std::uint64_t epoch) {
    ptx::fence_proxy_async();  // bulk copies read what the ranks wrote
    if constexpr (kLocalSums) {
      after_ = next_;
      shift(sources);
    }
    next_item(sources);
#pragma unroll 1
    for (std::uint32_t s = 0; s < stages_.ahead(); ++s) load<kStaged>(sources, epoch);
#pragma unroll 1
    while (!stages_.all_added()) {
      load<kStaged>(sources, epoch);
      sum();
    }
    weights_.finish(params_);
  }

 private:
  struct Item {
    std::uint32_t token = 0, at = 0;
    TokenCopy<kRows> copy;
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
    item.copy = load_copy<kRows>(params_, item.token, lane_id());
    take();
    return item;
  }
  /// Advances where local rows are summed: next_ becomes the following item, whose copies have
  /// arrived.
  __device__ void shift(const CombineSources& sources) {
    next_ = after_;
    if (!exists(next_)) return;
    next_local_ = load_local_rows(params_, sources, {next_.copy.copy});
    after_ = load_item();
  }
  __device__ void next_item(const CombineSources& sources) {
    item_ = next_;
    is_new_ = true;
    end_ = min(item_.at + segment_bytes_, params_.row_bytes);
    if (!exists(item_)) return;
    if constexpr (kLocalSums) {
      local_ = next_local_;
      shift(sources);
    } else {
      next_ = load_item();
    }
  }

  /// Computes where the copies of the item are, and where in a stage this lane's copy goes.
  __device__ void look_up(const CombineSources& sources, std::uint64_t epoch) {
    const std::uint32_t votes = __ballot_sync(~0u, item_.copy.exists()),
                        before = (1u << lane_id()) - 1;
    copies_ = __popc(votes);
    // The copies that ranks have are those of the first lanes.
    mine_ = kRows == AddedRows::of_experts ? item_.copy.exists() : lane_id() < copies_;
    place_ = kRows == AddedRows::of_experts ? __popc(votes & before) : lane_id();
    if constexpr (kLocalSums) look_up_local(epoch, before);
    if (mine_) from_ = row_of(params_, sources, item_.copy) + item_.at;
    is_new_ = false;
  }
  /// Replaces the copy at this rank by the rows that it is the sum of.
  __device__ void look_up_local(std::uint64_t epoch, std::uint32_t before) {
    local_count_ = 0;
    summed_here_ = false;
    if (local_.exist) {
      const std::int32_t row =
          checked_row_of_slot(params_, epoch, local_.row, local_.row_of_slot, item_.at == 0);
      const std::uint32_t slots = __ballot_sync(~0u, row >= 0);
      summed_here_ = row >= 0;
      local_count_ = __popc(slots);
      local_place_ = local_.position + __popc(slots & before);
      local_from_ =
          params_.staging.rows + static_cast<std::int64_t>(row) * params_.row_bytes + item_.at;
      mine_ = mine_ && lane_id() != local_.position;
      if (lane_id() > local_.position) place_ += local_count_ - 1;
      copies_ += local_count_ - 1;
    }
    chunk_ = chunk_of_stage(stages_.stage_bytes(), copies_);
  }

  /// Waits until the rows of the item are staged, if other ranks stage them.
  __device__ void await_rows(CombineSources& sources, std::uint64_t epoch) {
    if constexpr (kRows == AddedRows::of_experts) return;  // staged before the launch
    const std::int32_t rank = mine_ ? item_.copy.rank() : 0;
    const auto piece =
        static_cast<std::uint32_t>(mine_ ? item_.copy.row() >> sources.piece_shift[rank] : 0);
    const std::uint32_t staged = __shfl_sync(~0u, staged_, rank % 32);
    const bool unknown = mine_ && (rank >= 32 || staged <= piece);
    if (__ballot_sync(~0u, unknown) == 0) return;
    await_staged_rows(params_, epoch, unknown, rank, piece, sources.pieces);
    // Other warps may have acquired these flags.
    if (static_cast<std::int32_t>(lane_id()) < params_.group.ranks)
      staged_ = static_cast<volatile std::uint32_t*>(sources.pieces)[lane_id()];
    __threadfence_block();
    __syncwarp();
    ptx::fence_proxy_async();
  }

  template <bool kStaged>
  __device__ void load(CombineSources& sources, std::uint64_t epoch) {
    if (!exists(item_)) return;
    if (is_new_) {
      look_up(sources, epoch);
      if constexpr (kStaged) await_rows(sources, epoch);
      weights_.finish(params_);
      if (item_.at == 0 && params_.out_weights != nullptr) load_weights(sources);
    }
    const std::uint32_t bytes = min(kLocalSums ? chunk_ : params_.chunk_bytes, end_ - item_.at);
    std::uint32_t copies = copies_;
    if constexpr (kLocalSums) copies |= local_.position << kLocal | local_count_ << kLocalCount;
    stages_.begin_load({item_.token, copies, item_.at, bytes}, bytes * copies_);
    const std::uint32_t stride = kLocalSums ? bytes : params_.chunk_bytes;
    if (mine_) stages_.load(place_ * stride, from_, bytes);
    if constexpr (kLocalSums) {
      if (summed_here_) stages_.load(local_place_ * stride, local_from_, bytes);
      local_from_ += bytes;
    }
    stages_.end_load();
    item_.at += bytes;
    from_ += bytes;
    if (item_.at == end_) next_item(sources);
  }

  __device__ void load_weights(const CombineSources& sources) {
    const std::uint32_t ranks = __popc(__ballot_sync(~0u, item_.copy.exists()));
    weights_.load(params_, sources, item_.token, item_.copy, ranks, local_.row_of_slot);
  }

  __device__ void sum() {
    const auto [token, copies, at, bytes] = stages_.note();
    const std::int64_t start = static_cast<std::int64_t>(token) * params_.row_bytes + at;
    const SharedAddress stage = stages_.await();
    for_parts(bytes, [&, copies = copies, bytes = bytes](auto parts, std::uint32_t v) {
      constexpr int kParts = decltype(parts)::value;
      if constexpr (kLocalSums)
        sum_parts<Format, kParts, true>(params_, start + v, stage + v, bytes, copies & 0xffu,
                                        copies >> kLocal & 0xffu, copies >> kLocalCount);
      else
        sum_parts<Format, kParts, false>(params_, start + v, stage + v, params_.chunk_bytes,
                                         copies);
    });
    stages_.end_add();
  }

  const NormalCombine& params_;
  const std::uint32_t segment_bytes_;
  ChunkStages stages_;
  TokenWeights<kRows> weights_;
  std::uint32_t upcoming_ = 0;  ///< number of the item that was taken last, in lane 0
  Item item_, next_;            ///< item_ is being loaded, from `at` on
  bool is_new_ = true, mine_ = false;
  std::uint32_t end_ = 0, copies_ = 0, place_ = 0;
  const std::byte* from_ = nullptr;
  std::uint32_t staged_ = 0;  ///< pieces of rank `lane` that this warp may fetch
  // State of the items ahead, where local rows are summed.
  Item after_;  ///< next_ has its local rows, this one only its copies
  LocalRows local_, next_local_;
  std::uint32_t chunk_ = 0, local_count_ = 0, local_place_ = 0;
  bool summed_here_ = false;
  const std::byte* local_from_ = nullptr;
};
#endif

/// Sums without bulk copies: a warp loads and adds a token's rows, 16 bytes a lane. They serve GPUs
/// before sm_90, and tokens with more rows than a warp has lanes.
template <class Format, AddedRows kRows, int kPerLane>
class DirectSum {
 public:
  __device__ DirectSum(const NormalCombine& params, std::byte*) : params_(params) {}

  template <bool kStaged>
  __device__ void run(CombineSources& sources, std::uint64_t epoch) {
    for (;;) {
      const std::uint32_t token =
          __shfl_sync(~0u, lane_id() == 0 ? take_work(params_.group, KernelKind::normal) : 0u, 0);
      if (token >= static_cast<std::uint32_t>(params_.tokens)) return;
      const Copies copies(params_, token);
      const LocalRows rows = local_rows(sources, epoch, copies);
      if constexpr (kStaged) await_rows(sources, epoch, copies);
      TokenWeights<kRows> weights;
      if (params_.out_weights != nullptr) {
        if constexpr (kPerLane == 1)
          weights.load(params_, sources, token, copies.copy[0], copies.exist.count(),
                       rows.value[0]);
        else
          write_weights(params_, sources, token, copies);
      }
      for (std::uint32_t v = 0; v < params_.row_bytes; v += kCombineStep) {
        const std::uint32_t at = v + lane_id() * 16;
        sum_all(sources, token, at, at < params_.row_bytes, copies, rows);
      }
      weights.finish(params_);
    }
  }

 private:
  static constexpr bool kLocalSums = kRows == AddedRows::of_ranks_summed;
  using Copies = TokenCopies<kRows, kPerLane>;
  using LocalRows = NumberedValues<kPerLane>;

  /// The rows of which the token's copy at this rank is the sum.
  __device__ LocalRows local_rows(const CombineSources& sources, std::uint64_t epoch,
                                  const Copies& copies) const {
    std::int64_t row = -1;
    if constexpr (kLocalSums)
      for (NumberSet<kPerLane> left = copies.exist; left.any(); left = left.without_first()) {
        const TokenCopy<kRows> copy = copies.of(static_cast<std::uint32_t>(left.first()));
        if (copy.rank() == params_.group.me) row = sources.first_local_row + copy.row();
      }
    return LocalRows([&](std::uint32_t slot) {
      if (row < 0) return -1;
      return checked_row_of_slot(params_, epoch, row, load_row_of_slot(params_, row, slot), true,
                                 slot);
    });
  }

  /// Rows of experts are staged before the launch.
  __device__ void await_rows(CombineSources& sources, std::uint64_t epoch,
                             const Copies& copies) const {
    if constexpr (kRows != AddedRows::of_experts) {
#pragma unroll
      for (const TokenCopy<kRows>& copy : copies.copy) {
        const bool mine = copy.exists();
        const std::int32_t rank = mine ? copy.rank() : 0;
        const auto piece =
            static_cast<std::uint32_t>(mine ? copy.row() >> sources.piece_shift[rank] : 0);
        await_staged_rows(params_, epoch, mine, rank, piece, sources.pieces);
      }
      __threadfence_block();  // another warp may have acquired the flag
      __syncwarp();
    }
  }

  /// The sum of this rank's rows, rounded.
  __device__ uint4 sum_local(const LocalRows& rows, std::uint32_t at, bool inside) const {
    float sum[Format::kCount] = {};
    rows.each([&](std::int64_t row) {
      const std::byte* const from = params_.staging.rows + row * params_.row_bytes + at;
      if (inside) add_vector<Format>(sum, __ldcs(reinterpret_cast<const uint4*>(from)));
    });
    return Format::narrow(sum);
  }

  __device__ void sum_all(const CombineSources& sources, std::int64_t token, std::uint32_t at,
                          bool inside, const Copies& copies, const LocalRows& rows) const {
    float sum[Format::kCount] = {};
    const std::int64_t offset = token * params_.row_bytes + at;
    for (const std::byte* const bias : params_.bias)
      if (inside && bias != nullptr)
        add_vector<Format>(sum, *reinterpret_cast<const uint4*>(bias + offset));
    for (NumberSet<kPerLane> left = copies.exist; left.any(); left = left.without_first()) {
      const TokenCopy<kRows> from = copies.of(static_cast<std::uint32_t>(left.first()));
      if constexpr (kLocalSums) {
        if (from.rank() == params_.group.me) {
          const uint4 local = sum_local(rows, at, inside);
          if (inside) add_vector<Format>(sum, local);
          continue;
        }
      }
      const std::byte* const row = row_of(params_, sources, from);
      if (inside)
        add_vector<Format>(sum,
                           ptx::ld_relaxed_sys_global(reinterpret_cast<const uint4*>(row + at)));
    }
    if (inside) *reinterpret_cast<uint4*>(params_.out + offset) = Format::narrow(sum);
  }

  const NormalCombine& params_;
};

template <class Format, AddedRows kRows, int kPerLane>
struct RowsOf {
  using Sum = DirectSum<Format, kRows, kPerLane>;
};
#if __CUDA_ARCH__ >= 900
template <class Format, AddedRows kRows>
struct RowsOf<Format, kRows, 1> {
  using Sum = ChunkRing<Format, kRows>;
};
template <Quantize kQuantize, AddedRows kRows>
struct RowsOf<EncodedRows<kQuantize>, kRows, 1> {
  using Sum = EncodedSum<kQuantize, kRows, 1>;
};
#endif
template <Quantize kQuantize, AddedRows kRows, int kPerLane>
struct RowsOf<EncodedRows<kQuantize>, kRows, kPerLane> {
  using Sum = EncodedSum<kQuantize, kRows, kPerLane>;
};

/// True if the blocks behind CombineStaging::blocks stage one piece each before they fetch: nothing
/// can be fetched before the first pieces are there. Many blocks lose by it, except for weights and
/// for few rows, which are few bytes (docs/decisions/staged-expert-output.md).
__device__ bool stage_before_fetching(const NormalCombine& params) {
  constexpr std::uint32_t kMany = 48;  // blocks
  return params.staging.blocks != 0 &&
         (gridDim.x < kMany || params.staging.rows == nullptr || PieceSize(params).few);
}

// Profiling scripts written for DeepEP find the kernel by this name.
template <class Format, AddedRows kRows, int kPerLane>
__global__ void __launch_bounds__(512, 1)
    combine_impl(const __grid_constant__ NormalCombine params) {
  std::byte* const shared = ptx::dynamic_shared();
  __shared__ CombineSources sources;
  const DeviceGroup& group = params.group;
  ptx::griddepcontrol_wait();
  const std::uint64_t epoch = group.memory->epoch + 1;
  const std::uint32_t ticket = take_ticket(group, KernelKind::normal);
  const bool leader = ticket == 0;
  if (leader) {
    const std::uint64_t handle_epoch = *params.handle.epoch;
    const bool staged = params.staging.rows != nullptr || params.staging.weights != nullptr;
    const std::uint32_t shift = staged ? PieceSize(params).shift : 0;
    if (threadIdx.x == 0) {
      note_start(group, KernelKind::normal, epoch, RecordedOperation::combine);
      sources.notice = {params.y,
                        params.y_weights,
                        handle_epoch,
                        params.y_rows,
                        kCombine,
                        params.dtype,
                        params.row_bytes,
                        0,
                        params.out_weights != nullptr,
                        params.weight_stride,
                        gridDim.x,
                        0,
                        params.quantize,
                        0,
                        params.share,
                        staged ? 1 + shift : 0};
    }
    __syncthreads();
    publish_notice(group, epoch, sources.notice, nullptr, nullptr);
    if (group.record != nullptr && threadIdx.x == blockDim.x - 1)
      add_last_launch(group, KernelKind::normal, epoch);
  }
  const bool only_one = static_cast<std::int32_t>(ticket) >= params.staging.blocks;
  if (!kIsEncoded<Format> && (!only_one || stage_before_fetching(params))) {
    if constexpr (kRows == AddedRows::of_ranks) stage_copies(params, epoch, shared, only_one);
    if constexpr (kRows == AddedRows::of_ranks_summed)
      stage_sums<Format, kPerLane>(params, epoch, shared, only_one);
  }
  typename RowsOf<Format, kRows, kPerLane>::Sum sum(params, shared);
  bool any_staged = false;
  const bool good = await_notices(group, epoch, Phase::combine_notify, kCombine, leader) &&
                    find_sources<kRows>(params, epoch, leader, sources, any_staged);
  if (good && (kRows == AddedRows::of_ranks_summed || any_staged))
    sum.template run<true>(sources, epoch);
  else if (good)
    sum.template run<false>(sources, epoch);
  if (good && leader) count_rows(params, epoch, travelling_bytes(params));
  finish_operation(group, epoch, good, Phase::combine_finish, kCombine);
}

/// The kernel of rows that are not copied (NormalCombine::unsummed).
template <class Format, int kPerLane>
CombineKernel combine_kernel_of(AddedRows rows) {
  if constexpr (!kIsEncoded<Format>)
    if (rows == AddedRows::of_ranks_summed)
      return combine_impl<Format, AddedRows::of_ranks_summed, kPerLane>;
  return rows == AddedRows::of_experts ? combine_impl<Format, AddedRows::of_experts, kPerLane>
                                       : combine_impl<Format, AddedRows::of_ranks, kPerLane>;
}
template <int kPerLane>
CombineKernel combine_kernel(AddedRows rows, Quantize quantize, DataType dtype) {
  if (quantize == Quantize::fp8)
    return combine_kernel_of<EncodedRows<Quantize::fp8>, kPerLane>(rows);
  if (quantize == Quantize::mxfp8)
    return combine_kernel_of<EncodedRows<Quantize::mxfp8>, kPerLane>(rows);
  switch (dtype) {
    case DataType::bfloat16:
      return combine_kernel_of<Bfloat16Vector, kPerLane>(rows);
    case DataType::float16:
      return combine_kernel_of<Float16Vector, kPerLane>(rows);
    default:
      return combine_kernel_of<Float32Vector, kPerLane>(rows);
  }
}
}  // namespace
}  // namespace shoal::ep::cuda
