// SPDX-License-Identifier: Apache-2.0
// route.cu: from top-k indices to the copies of each token.
//
// Moves: reads all indices (tokens * top_k * 8 B), once for each rank and once for every 16
// experts, from the second-level cache; writes the checked indices, the copies and the counts.
// Four kinds of blocks, which do not wait for each other:
//   - a few for each rank: each numbers the tokens of its part that go to the rank, after counting
//     those of earlier parts, which is a fraction of the work
//   - one for every 16 experts counts their tokens
//   - one for every tile of tokens checks and copies their indices
//   - on one node, one counts the tokens that have an expert
// Waits for nothing and publishes nothing: a dispatch follows on the stream.
//
// Measured: 4096 tokens of top-8 take 18 us on an H200 for two ranks (112 routes, commit f0f72a68).
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {
namespace {

// A block has a tile of tokens in shared memory, one a thread: fewer where a token has many slots.
constexpr int kManyThreads = 1024, kFewThreads = 256;
static_assert(kFewThreads * (kMaxTopK + 1) <= kManyThreads * (kOnePerLane + 1));
constexpr std::int32_t kExpertsPerBlock = 16;
/// Parts of the tokens for each rank: more parts count more tokens of earlier ones again.
constexpr std::int32_t kMostParts = 8;

constexpr std::int32_t blocks_of(std::int32_t items, std::int32_t a_block) {
  return (items + a_block - 1) / a_block;
}
/// Tiles of a part; the last part can have fewer.
constexpr std::int32_t tiles_of_part(std::int32_t tokens, std::int32_t tile) {
  return blocks_of(blocks_of(tokens, tile), kMostParts);
}
/// At least one, which writes counts of 0 where there are no tokens.
constexpr std::int32_t parts_of(std::int32_t tokens, std::int32_t tile) {
  return tokens == 0 ? 1 : blocks_of(blocks_of(tokens, tile), tiles_of_part(tokens, tile));
}

__device__ std::int64_t given_expert(const NormalRoute& params, std::int64_t i) {
  return params.is_int64 ? static_cast<const std::int64_t*>(params.topk_idx)[i]
                         : static_cast<const std::int32_t*>(params.topk_idx)[i];
}

/// The expert; -1 where it is out of range.
__device__ std::int64_t known_expert(const NormalRoute& params, std::int64_t given) {
  return given >= 0 && given < params.group.experts ? given : -1;
}

/// True where known_expert is -1 although the caller named an expert.
__device__ bool is_bad(const NormalRoute& params, std::int64_t given) {
  return given < -1 || (given >= params.group.experts && given != params.group.none_expert);
}

/// Calls visit(i, given) for the first `count` indices of the tokens from `first` on; i counts from
/// there. The threads of the block share them, with kBatch loads of each thread in flight.
template <int kThreads, class Visit>
__device__ void for_given(const NormalRoute& params, std::int32_t first, std::int32_t count,
                          Visit&& visit) {
  constexpr int kBatch = 8;
  const std::int64_t start = static_cast<std::int64_t>(first) * params.group.top_k;
  for (auto base = static_cast<std::int32_t>(threadIdx.x); base < count;
       base += kThreads * kBatch) {
    std::int64_t given[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      given[b] =
          base + b * kThreads < count ? given_expert(params, start + base + b * kThreads) : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (base + b * kThreads < count) visit(base + b * kThreads, given[b]);
  }
}

/// The places of the experts of a tile of tokens, in shared memory: the top-k slots of a token one
/// after another, with a gap between tokens so that threads with neighbouring tokens use different
/// banks.
template <int kThreads>
class IndexTile {
 public:
  __device__ explicit IndexTile(const NormalRoute& params) : params_(params) {}

  /// Loads the tokens from `first` on; visit(i, given) as for for_given. All threads of the block
  /// call when they no longer need the previous tokens.
  template <class Visit>
  __device__ void load(std::int32_t first, Visit&& visit) {
    __syncthreads();
    for_given<kThreads>(params_, first, min(kThreads, params_.tokens - first) * params_.group.top_k,
                        [&](std::int32_t i, std::int64_t given) {
                          const auto expert =
                              static_cast<std::int32_t>(known_expert(params_, given));
                          words()[i + token_of(i)] =
                              expert < 0 ? -1 : params_.group.expert_table.place(expert).word;
                          visit(i, given);
                        });
    __syncthreads();
  }
  __device__ void load(std::int32_t first) {
    load(first, [](std::int32_t, std::int64_t) {});
  }
  /// The token of index i, both counted from the tile's first.
  __device__ std::int32_t token_of(std::int32_t i) const {
    return static_cast<std::int32_t>(params_.by_top_k.quotient(static_cast<std::uint32_t>(i)));
  }
  /// ExpertPlace::word of a top-k slot of this thread's token; experts differ where it does.
  __device__ std::int32_t word(std::int32_t topk_slot) const {
    return words()[static_cast<std::int32_t>(threadIdx.x) * (params_.group.top_k + 1) + topk_slot];
  }
  /// The rank of the expert in a top-k slot of this thread's token; negative: none.
  __device__ std::int32_t rank(std::int32_t topk_slot) const {
    return ExpertPlace{word(topk_slot)}.rank();
  }

 private:
  __device__ static std::int32_t* words() {
    return reinterpret_cast<std::int32_t*>(ptx::dynamic_shared());
  }
  const NormalRoute& params_;
};

/// Checks and copies the indices of the tokens from `first` on. Reports the first token that has an
/// index out of range or names an expert twice.
template <int kThreads>
__device__ void copy_indices(const NormalRoute& params, std::int32_t first) {
  __shared__ std::int32_t first_bad;
  if (threadIdx.x == 0) first_bad = params.tokens;
  const std::int32_t top_k = params.group.top_k;
  const std::int64_t start = static_cast<std::int64_t>(first) * top_k;
  IndexTile<kThreads> tile(params);
  tile.load(first, [&](std::int32_t i, std::int64_t given) {
    params.out.topk_idx[start + i] = known_expert(params, given);
    if (is_bad(params, given)) atomicMin(&first_bad, first + tile.token_of(i));
  });
  if (static_cast<std::int32_t>(first + threadIdx.x) < params.tokens)
    for (std::int32_t k = 1; k < top_k; ++k)
      for (std::int32_t other = 0; other < k; ++other)
        if (tile.word(k) >= 0 && tile.word(other) == tile.word(k))
          atomicMin(&first_bad, first + static_cast<std::int32_t>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x != 0 || first_bad == params.tokens) return;
  const std::int64_t at = static_cast<std::int64_t>(first_bad) * top_k;
  for (std::int32_t k = 0; k < top_k; ++k) {
    const std::int64_t given = given_expert(params, at + k);
    if (is_bad(params, given))
      return report_refused(params.group, Fault::bad_index, Phase::none, 0, 0, first_bad, given, k);
    for (std::int32_t other = 0; known_expert(params, given) >= 0 && other < k; ++other)
      if (given_expert(params, at + other) == given)
        return report_refused(params.group, Fault::two_experts, Phase::none, 0, 0, first_bad, given,
                              k);
  }
}

/// Position of a rank among the ranks of this thread's token, which are ordered by their last top-k
/// slots; -1: the token does not go there.
struct RankPlace {
  std::int32_t position = -1, ranks = 0;
};
template <int kThreads>
__device__ RankPlace place_of(const NormalRoute& params, const IndexTile<kThreads>& tile,
                              std::int32_t rank) {
  RankPlace place;
  std::int32_t after = 0;  // ranks whose last top-k slot is after that of `rank`
  std::uint64_t seen[kMaxDeviceRanks / 64] = {};
  for (std::int32_t k = params.group.top_k; k-- > 0;) {
    const std::int32_t owner = tile.rank(k);
    if (owner < 0) continue;
    const std::uint64_t bit = 1ull << (owner % 64);
    bool known = false;
#pragma unroll
    for (int word = 0; word < kMaxDeviceRanks / 64; ++word)
      if (word == owner / 64) {
        known = (seen[word] & bit) != 0;
        seen[word] |= bit;
      }
    if (known) continue;
    if (owner == rank) {
      after = place.ranks;
      place.position = 0;
    }
    ++place.ranks;
  }
  if (place.position == 0) place.position = place.ranks - 1 - after;
  return place;
}

/// Exclusive prefix sum of `flag` over the block; `total` becomes the sum.
template <int kThreads>
__device__ std::int32_t prefix(bool flag, std::int32_t& total) {
  __shared__ std::int32_t of_warp[kThreads / 32];
  const std::uint32_t votes = __ballot_sync(~0u, flag);
  const std::uint32_t warp = threadIdx.x / 32;
  if (lane_id() == 0) of_warp[warp] = __popc(votes);
  __syncthreads();
  std::int32_t before = 0;
  total = 0;
  for (std::uint32_t w = 0; w < kThreads / 32; ++w) {
    before += w < warp ? of_warp[w] : 0;
    total += of_warp[w];
  }
  __syncthreads();
  return before + __popc(votes & ((1u << lane_id()) - 1));
}

/// True if the token of this thread goes to `rank`.
template <int kThreads>
__device__ bool goes_to(const NormalRoute& params, const IndexTile<kThreads>& tile,
                        std::int32_t rank) {
  bool goes = false;
  for (std::int32_t k = 0; k < params.group.top_k; ++k) goes |= tile.rank(k) == rank;
  return goes;
}

/// Writes the copies of a part of the tokens for `rank`: row indices among the rows sent there.
template <int kThreads>
__device__ void number_copies(const NormalRoute& params, std::int32_t rank, std::int32_t part) {
  IndexTile<kThreads> tile(params);
  const std::int32_t of_part = tiles_of_part(params.tokens, kThreads) * kThreads;
  const std::int32_t begin = part * of_part, end = min(begin + of_part, params.tokens);
  std::int32_t sent = 0;
  for (std::int32_t first = 0; first < end; first += kThreads) {
    const auto token = static_cast<std::int32_t>(first + threadIdx.x);
    tile.load(first);
    if (first < begin) {  // a tile of an earlier part is only counted
      sent += __syncthreads_count(goes_to(params, tile, rank));
      continue;
    }
    RankPlace place;
    if (token < params.tokens) place = place_of(params, tile, rank);
    std::int32_t total = 0;
    const std::int32_t row_index = sent + prefix<kThreads>(place.position >= 0, total);
    sent += total;
    if (token >= params.tokens) continue;
    if (params.is_token_in_rank != nullptr)
      params.is_token_in_rank[static_cast<std::int64_t>(token) * params.group.ranks + rank] =
          place.position >= 0 ? 1 : 0;
    std::int32_t* const copies =
        params.out.copies + static_cast<std::int64_t>(token) * params.copies_per_token;
    if (place.position >= 0) copies[place.position] = pack_copy(rank, row_index);
    const bool fills_rest = place.ranks == 0 ? rank == 0 : place.position == place.ranks - 1;
    if (fills_rest)
      for (std::int32_t c = place.ranks; c < params.copies_per_token; ++c) copies[c] = kNoCopy;
  }
  if (threadIdx.x != 0 || end != params.tokens) return;
  params.out.rank_counts[rank] = sent;
  if (params.rank_counts != nullptr) params.rank_counts[rank] = sent;
}

/// Counts the tokens of kExpertsPerBlock experts.
template <int kThreads>
__device__ void count_experts(const NormalRoute& params, std::int32_t first_expert) {
  constexpr int kBatch = 8;  // loads in flight
  __shared__ std::int32_t counts[kExpertsPerBlock];
  for (std::int32_t e = threadIdx.x; e < kExpertsPerBlock; e += kThreads) counts[e] = 0;
  __syncthreads();
  const std::int64_t indices = static_cast<std::int64_t>(params.tokens) * params.group.top_k;
  for (std::int64_t first = threadIdx.x; first < indices; first += kThreads * kBatch) {
    std::int64_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t i = first + b * kThreads;
      experts[b] = i < indices ? given_expert(params, i) - first_expert : -1;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (experts[b] >= 0 && experts[b] < kExpertsPerBlock) atomicAdd(&counts[experts[b]], 1);
  }
  __syncthreads();
  for (std::int32_t e = threadIdx.x;
       e < kExpertsPerBlock && first_expert + e < params.group.experts; e += kThreads) {
    params.out.expert_counts[first_expert + e] = counts[e];
    if (params.expert_counts != nullptr) params.expert_counts[first_expert + e] = counts[e];
  }
}

/// Counts the tokens that have an expert.
template <int kThreads>
__device__ void count_tokens(const NormalRoute& params) {
  IndexTile<kThreads> tile(params);
  std::int32_t tokens = 0;
  for (std::int32_t first = 0; first < params.tokens; first += kThreads) {
    tile.load(first);
    bool any = false;
    if (static_cast<std::int32_t>(first + threadIdx.x) < params.tokens)
      for (std::int32_t k = 0; k < params.group.top_k; ++k) any |= tile.word(k) >= 0;
    tokens += __syncthreads_count(any ? 1 : 0);
  }
  if (threadIdx.x != 0) return;
  *params.out.node_counts = tokens;
  if (params.node_counts != nullptr) *params.node_counts = tokens;
}

template <int kThreads>
__global__ void __launch_bounds__(kThreads, 1)
    route_kernel(const __grid_constant__ NormalRoute params) {
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  auto block = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t parts = parts_of(params.tokens, kThreads);
  if (block < params.group.ranks * parts)
    return number_copies<kThreads>(params, block / parts, block % parts);
  block -= params.group.ranks * parts;
  const std::int32_t counting = blocks_of(params.group.experts, kExpertsPerBlock);
  if (block < counting) return count_experts<kThreads>(params, block * kExpertsPerBlock);
  block -= counting;
  if (block < blocks_of(params.tokens, kThreads))
    return copy_indices<kThreads>(params, block * kThreads);
  count_tokens<kThreads>(params);
}

}  // namespace

void launch_normal_route(NormalRoute params, bool overlap_launches, cudaStream_t stream) {
  const bool many = params.group.top_k <= kOnePerLane;
  const std::int32_t threads = many ? kManyThreads : kFewThreads;
  params.by_top_k = Divisor(static_cast<std::uint32_t>(params.group.top_k));
  NormalPlan plan;
  plan.overlap_launches = overlap_launches;
  plan.blocks = params.group.ranks * parts_of(params.tokens, threads) +
                blocks_of(params.group.experts, kExpertsPerBlock) +
                blocks_of(params.tokens, threads) + (params.out.node_counts != nullptr ? 1 : 0);
  plan.warps = threads / 32;
  plan.shared_bytes = static_cast<std::uint32_t>(
      threads * static_cast<std::size_t>(params.group.top_k + 1) * sizeof(std::int32_t));
  launch(many ? route_kernel<kManyThreads> : route_kernel<kFewThreads>, params, plan, stream);
}

void preload_normal_route(bool many_slots) {
  const auto kernel = many_slots ? route_kernel<kFewThreads> : route_kernel<kManyThreads>;
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, kernel);
  (void)cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
      kManyThreads * (kOnePerLane + 1) * static_cast<int>(sizeof(std::int32_t)));
}

}  // namespace shoal::ep::cuda
