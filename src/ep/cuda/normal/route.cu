// SPDX-License-Identifier: Apache-2.0
// route: from top-k indices to the copies of each token (requirement E1).
//
// A few blocks per member number the tokens that go there, in order, each a part of them, behind
// those of earlier parts, which it counts for itself: that is a fraction of the work. Further
// blocks count the tokens of a few experts each, and others check and copy the indices of a
// thousand tokens each. All indices are read by each member's last block and by the experts'
// blocks, from the second-level cache: tokens * top_k * 8 B. No waiting.
//
// number_lanes: a block for 8 experts; each warp counts, then numbers the lanes of its share of the
// tokens. Reads the indices twice a block. Only for expert-major dispatches, once a routing.
#include "ep/cuda/normal/normal.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr std::int32_t kExpertsPerBlock = 16;
constexpr std::int32_t kMostParts = 8;  // of the tokens, for each member

constexpr std::int32_t blocks_of(std::int32_t items, std::int32_t a_block) {
  return (items + a_block - 1) / a_block;
}
/// Tiles of a part, but of the last.
constexpr std::int32_t tiles_of_part(std::int32_t tokens) {
  return blocks_of(blocks_of(tokens, kThreads), kMostParts);
}
/// One at least, which says that there are no tokens.
constexpr std::int32_t parts_of(std::int32_t tokens) {
  return tokens == 0 ? 1 : blocks_of(blocks_of(tokens, kThreads), tiles_of_part(tokens));
}

__device__ std::int64_t given_expert(const RouteParams& params, std::int64_t i) {
  return params.is_int64 ? static_cast<const std::int64_t*>(params.topk_idx)[i]
                         : static_cast<const std::int32_t*>(params.topk_idx)[i];
}

/// -1 where it is out of range.
__device__ std::int64_t known_expert(const RouteParams& params, std::int64_t given) {
  return given >= 0 && given < params.group.experts ? given : -1;
}

/// Calls visit(i, given) for the first `count` indices of the tokens from `first` on, i counting
/// from there; the block shares them, with a few loads of each thread in flight.
template <class Visit>
__device__ void for_given(const RouteParams& params, std::int32_t first, std::int32_t count,
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

/// The experts of a thousand tokens, in shared memory: read in one sweep, a token's lanes one after
/// another, with a gap so that threads with neighbouring tokens do not meet in a bank.
class Tile {
 public:
  __device__ explicit Tile(const RouteParams& params) : params_(params) {}

  /// The tokens from `first` on; visit(i, given) as for_given. All threads of the block call, and
  /// have read what they need of the tile before.
  template <class Visit>
  __device__ void load(std::int32_t first, Visit&& visit) {
    __syncthreads();
    for_given(params_, first, min(kThreads, params_.tokens - first) * params_.group.top_k,
              [&](std::int32_t i, std::int64_t given) {
                words()[i + token_of(i)] = static_cast<std::int32_t>(known_expert(params_, given));
                visit(i, given);
              });
    __syncthreads();
  }
  __device__ void load(std::int32_t first) {
    load(first, [](std::int32_t, std::int64_t) {});
  }
  /// Of index i of the tile, counted from its first.
  __device__ std::int32_t token_of(std::int32_t i) const {
    return static_cast<std::int32_t>(params_.by_top_k.quotient(static_cast<std::uint32_t>(i)));
  }
  /// Of this thread's token; -1: none.
  __device__ std::int32_t expert(std::int32_t lane) const {
    return words()[static_cast<std::int32_t>(threadIdx.x) * (params_.group.top_k + 1) + lane];
  }

 private:
  __device__ static std::int32_t* words() {
    extern __shared__ std::int32_t shared[];
    return shared;
  }
  const RouteParams& params_;
};

/// Checks and copies the indices of the tokens from `first` on; reports the first token with an
/// index out of range, or with an expert that stands twice.
__device__ void copy_indices(const RouteParams& params, std::int32_t first) {
  __shared__ std::int32_t first_bad;
  if (threadIdx.x == 0) first_bad = params.tokens;
  const std::int32_t top_k = params.group.top_k;
  const std::int64_t start = static_cast<std::int64_t>(first) * top_k;
  Tile tile(params);
  tile.load(first, [&](std::int32_t i, std::int64_t given) {
    params.out.topk_idx[start + i] = known_expert(params, given);
    if (given < -1 || given >= params.group.experts)
      atomicMin(&first_bad, first + tile.token_of(i));
  });
  if (static_cast<std::int32_t>(first + threadIdx.x) < params.tokens)
    for (std::int32_t k = 1; k < top_k; ++k)
      for (std::int32_t other = 0; other < k; ++other)
        if (tile.expert(k) >= 0 && tile.expert(other) == tile.expert(k))
          atomicMin(&first_bad, first + static_cast<std::int32_t>(threadIdx.x));
  __syncthreads();
  if (threadIdx.x != 0 || first_bad == params.tokens) return;
  const std::int64_t at = static_cast<std::int64_t>(first_bad) * top_k;
  for (std::int32_t k = 0; k < top_k; ++k) {
    const std::int64_t given = given_expert(params, at + k);
    if (given < -1 || given >= params.group.experts)
      return report_refused(params.group, Fault::bad_index, Phase::none, 0, 0, first_bad, given, k);
    for (std::int32_t other = 0; given >= 0 && other < k; ++other)
      if (given_expert(params, at + other) == given)
        return report_refused(params.group, Fault::two_experts, Phase::none, 0, 0, first_bad, given,
                              k);
  }
}

/// Where member `rank` stands among the members of this thread's token, ordered by their last
/// lanes; -1: not among them.
struct Place {
  std::int32_t position = -1, members = 0;
};
__device__ Place place_of(const RouteParams& params, const Tile& tile, std::int32_t rank) {
  Place place;
  std::int32_t after = 0;  // members whose last lane is behind that of `rank`
  std::uint64_t seen[kMaxDeviceRanks / 64] = {};
  for (std::int32_t k = params.group.top_k; k-- > 0;) {
    const std::int32_t expert = tile.expert(k);
    if (expert < 0) continue;
    const auto member = static_cast<std::int32_t>(
        params.by_local_experts.quotient(static_cast<std::uint32_t>(expert)));
    const std::uint64_t bit = 1ull << (member % 64);
    bool known = false;
#pragma unroll
    for (int word = 0; word < kMaxDeviceRanks / 64; ++word)
      if (word == member / 64) {
        known = (seen[word] & bit) != 0;
        seen[word] |= bit;
      }
    if (known) continue;
    if (member == rank) after = place.members, place.position = 0;
    ++place.members;
  }
  if (place.position == 0) place.position = place.members - 1 - after;
  return place;
}

/// Exclusive prefix sum of `flag` over the block; `total` is the sum.
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

/// Whether the token of this thread goes to member `rank`.
__device__ bool goes_to(const RouteParams& params, const Tile& tile, std::int32_t rank) {
  const std::int32_t first_expert = rank * params.group.local_experts;
  bool goes = false;
  for (std::int32_t k = 0; k < params.group.top_k; ++k)
    goes |= static_cast<std::uint32_t>(tile.expert(k) - first_expert) <
            static_cast<std::uint32_t>(params.group.local_experts);
  return goes;
}

__device__ void number_copies(const RouteParams& params, std::int32_t rank, std::int32_t part) {
  Tile tile(params);
  const std::int32_t of_part = tiles_of_part(params.tokens) * kThreads;
  const std::int32_t begin = part * of_part, end = min(begin + of_part, params.tokens);
  std::int32_t sent = 0;
  for (std::int32_t first = 0; first < end; first += kThreads) {
    const auto token = static_cast<std::int32_t>(first + threadIdx.x);
    tile.load(first);
    if (first < begin) {  // an earlier part's
      sent += __syncthreads_count(goes_to(params, tile, rank));
      continue;
    }
    Place place;
    if (token < params.tokens) place = place_of(params, tile, rank);
    std::int32_t total = 0;
    const std::int32_t ordinal = sent + prefix(place.position >= 0, total);
    sent += total;
    if (token >= params.tokens) continue;
    std::int32_t* const copies =
        params.out.copies + static_cast<std::int64_t>(token) * params.copies_per_token;
    if (place.position >= 0) copies[place.position] = pack_copy(rank, ordinal);
    const bool fills_rest = place.members == 0 ? rank == 0 : place.position == place.members - 1;
    if (fills_rest)
      for (std::int32_t c = place.members; c < params.copies_per_token; ++c) copies[c] = kNoCopy;
  }
  if (threadIdx.x == 0 && end == params.tokens) params.out.rank_counts[rank] = sent;
}

__device__ void count_experts(const RouteParams& params, std::int32_t first_expert) {
  constexpr int kBatch = 8;  // loads in flight
  __shared__ std::int32_t counts[kExpertsPerBlock];
  for (std::int32_t e = threadIdx.x; e < kExpertsPerBlock; e += kThreads) counts[e] = 0;
  __syncthreads();
  const std::int64_t lanes = static_cast<std::int64_t>(params.tokens) * params.group.top_k;
  for (std::int64_t first = threadIdx.x; first < lanes; first += kThreads * kBatch) {
    std::int64_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t i = first + b * kThreads;
      experts[b] = i < lanes ? given_expert(params, i) - first_expert : -1;
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (experts[b] >= 0 && experts[b] < kExpertsPerBlock) atomicAdd(&counts[experts[b]], 1);
  }
  __syncthreads();
  for (std::int32_t e = threadIdx.x;
       e < kExpertsPerBlock && first_expert + e < params.group.experts; e += kThreads)
    params.out.expert_counts[first_expert + e] = counts[e];
}

__global__ void __launch_bounds__(kThreads, 1)
    route_kernel(const __grid_constant__ RouteParams params) {
  auto block = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t parts = parts_of(params.tokens);
  if (block < params.group.ranks * parts)
    return number_copies(params, block / parts, block % parts);
  block -= params.group.ranks * parts;
  const std::int32_t counting = blocks_of(params.group.experts, kExpertsPerBlock);
  if (block < counting) return count_experts(params, block * kExpertsPerBlock);
  copy_indices(params, (block - counting) * kThreads);
}

constexpr std::int32_t kExpertsNumbered = 8;  // by a block
constexpr std::int32_t kWarps = kThreads / 32;

/// Calls visit(i, expert) for the lanes of tokens from `first` to `end`, 32 at a time, in order;
/// the expert counts from the block's first, -1: not the block's. All threads of the warp call.
template <class Visit>
__device__ void for_lanes(const NumberParams& params, std::int64_t first, std::int64_t end,
                          Visit&& visit) {
  constexpr int kBatch = 8;  // loads in flight
  const std::int64_t base = static_cast<std::int64_t>(blockIdx.x) * kExpertsNumbered;
  for (std::int64_t i = first + lane_id(); i < end + lane_id(); i += 32 * kBatch) {
    std::int64_t experts[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      experts[b] = i + 32 * b < end ? params.topk_idx[i + 32 * b] - base : -1;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const bool mine = experts[b] >= 0 && experts[b] < kExpertsNumbered;
      visit(i + 32 * b, mine ? static_cast<std::int32_t>(experts[b]) : -1);
    }
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    number_lanes_kernel(const __grid_constant__ NumberParams params) {
  __shared__ std::int32_t seen[kWarps][kExpertsNumbered];  // tokens before the warp's next one
  const std::int32_t warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int64_t lanes = static_cast<std::int64_t>(params.tokens) * params.top_k;
  const std::int64_t share = (lanes + kThreads - 1) / kThreads * 32;
  const std::int64_t first = min(warp * share, lanes), end = min(first + share, lanes);
  for (std::int32_t i = threadIdx.x; i < kWarps * kExpertsNumbered; i += kThreads)
    (&seen[0][0])[i] = 0;
  __syncthreads();
  for_lanes(params, first, end, [&](std::int64_t, std::int32_t expert) {
    if (expert >= 0) atomicAdd(&seen[warp][expert], 1);
  });
  __syncthreads();
  if (threadIdx.x < kExpertsNumbered) {
    std::int32_t before = 0;
    for (std::int32_t w = 0; w < kWarps; ++w) {
      const std::int32_t count = seen[w][threadIdx.x];
      seen[w][threadIdx.x] = before;
      before += count;
    }
  }
  __syncthreads();
  for_lanes(params, first, end, [&](std::int64_t i, std::int32_t expert) {
    if (__ballot_sync(~0u, expert >= 0) == 0) return;
    const std::uint32_t peers = __match_any_sync(~0u, expert);
    const std::int32_t rank = __popc(peers & ((1u << lane_id()) - 1)), count = __popc(peers);
    if (expert >= 0) params.ordinals[i] = seen[warp][expert] + rank;
    __syncwarp();
    if (expert >= 0 && rank == count - 1) seen[warp][expert] += count;
    __syncwarp();
  });
}

}  // namespace

void launch_number_lanes(const NumberParams& params, cudaStream_t stream) {
  const std::int32_t blocks = (params.experts + kExpertsNumbered - 1) / kExpertsNumbered;
  number_lanes_kernel<<<blocks, kThreads, 0, stream>>>(params);
}

void launch_route(RouteParams params, cudaStream_t stream) {
  params.by_top_k = Divisor(static_cast<std::uint32_t>(params.group.top_k));
  params.by_local_experts = Divisor(static_cast<std::uint32_t>(params.group.local_experts));
  const std::int32_t blocks = params.group.ranks * parts_of(params.tokens) +
                              blocks_of(params.group.experts, kExpertsPerBlock) +
                              blocks_of(params.tokens, kThreads);
  const std::size_t shared_bytes =
      kThreads * static_cast<std::size_t>(params.group.top_k + 1) * sizeof(std::int32_t);
  route_kernel<<<blocks, kThreads, shared_bytes, stream>>>(params);
}

void preload_route() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, route_kernel);
  (void)cudaFuncSetAttribute(route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             kThreads * (kMaxTopK + 1) * static_cast<int>(sizeof(std::int32_t)));
  (void)cudaFuncGetAttributes(&attributes, number_lanes_kernel);
}

}  // namespace shoal::ep::cuda
