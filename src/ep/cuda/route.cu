// route: from top-k indices to the copies of each token (requirement E1).
//
// A block per member numbers the tokens that go there, in order; further blocks count the tokens of 64 experts each.
// Reads the indices once a block, from the second-level cache: tokens * top_k * 8 B. No waiting.
#include "ep/cuda/normal.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr std::int32_t kExpertsPerBlock = 64;

__device__ std::int64_t given_expert(const RouteParams& params, std::int64_t i) {
  return params.is_int64 ? static_cast<const std::int64_t*>(params.topk_idx)[i]
                         : static_cast<const std::int32_t*>(params.topk_idx)[i];
}

__device__ std::int64_t lane_expert(const RouteParams& params, std::int64_t i) {
  const std::int64_t expert = given_expert(params, i);
  return expert >= 0 && expert < params.group.experts ? expert : -1;
}

/// The first fault of a token: an index out of range, or an expert that stands twice.
struct BadLane {
  Fault fault = Fault::none;
  std::int32_t lane = 0;
  std::int64_t value = 0;
};
__device__ BadLane find_fault(const RouteParams& params, std::int32_t token) {
  const std::int64_t first = static_cast<std::int64_t>(token) * params.group.top_k;
  for (std::int32_t k = 0; k < params.group.top_k; ++k) {
    const std::int64_t given = given_expert(params, first + k);
    if (given < -1 || given >= params.group.experts) return {Fault::bad_index, k, given};
    for (std::int32_t other = 0; given >= 0 && other < k; ++other)
      if (given_expert(params, first + other) == given) return {Fault::two_experts, k, given};
  }
  return {};
}

/// A copy of the indices of a token, those out of range as -1; `first_bad` becomes the first token with a fault.
__device__ void copy_indices(const RouteParams& params, std::int32_t token, std::int32_t* first_bad) {
  for (std::int32_t k = 0; k < params.group.top_k; ++k) {
    const std::int64_t i = static_cast<std::int64_t>(token) * params.group.top_k + k;
    params.out.topk_idx[i] = lane_expert(params, i);
  }
  if (find_fault(params, token).fault != Fault::none) atomicMin(first_bad, token);
}

/// Where member `rank` stands among the members of a token, ordered by their last lanes; -1: not among them.
struct Place {
  std::int32_t position = -1, members = 0;
};
__device__ Place place_of(const RouteParams& params, std::int32_t token, std::int32_t rank) {
  Place place;
  const std::int32_t top_k = params.group.top_k;
  const std::int64_t first = static_cast<std::int64_t>(token) * top_k;
  std::int32_t after = 0;  // members whose last lane is behind that of `rank`
  std::uint64_t seen[kMaxDeviceRanks / 64] = {};
  for (std::int32_t k = top_k; k-- > 0;) {
    const std::int64_t expert = lane_expert(params, first + k);
    if (expert < 0) continue;
    const auto member = static_cast<std::int32_t>(expert / params.group.local_experts);
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

__device__ void number_copies(const RouteParams& params, std::int32_t rank) {
  __shared__ std::int32_t first_bad;
  if (threadIdx.x == 0) first_bad = params.tokens;
  __syncthreads();
  std::int32_t sent = 0;
  for (std::int32_t first = 0; first < params.tokens; first += kThreads) {
    const auto token = static_cast<std::int32_t>(first + threadIdx.x);
    Place place;
    if (token < params.tokens) {
      place = place_of(params, token, rank);
      if (rank == 0) copy_indices(params, token, &first_bad);
    }
    std::int32_t total = 0;
    const std::int32_t ordinal = sent + prefix(place.position >= 0, total);
    sent += total;
    if (token >= params.tokens) continue;
    std::int32_t* const copies = params.out.copies + static_cast<std::int64_t>(token) * params.copies_per_token;
    if (place.position >= 0) copies[place.position] = pack_copy(rank, ordinal);
    const bool fills_rest = place.members == 0 ? rank == 0 : place.position == place.members - 1;
    if (fills_rest)
      for (std::int32_t c = place.members; c < params.copies_per_token; ++c) copies[c] = kNoCopy;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  params.out.rank_counts[rank] = sent;
  if (first_bad == params.tokens) return;
  const BadLane bad = find_fault(params, first_bad);
  report_refused(params.group, bad.fault, Phase::none, 0, 0, first_bad, bad.value, bad.lane);
}

__device__ void count_experts(const RouteParams& params, std::int32_t first_expert) {
  __shared__ std::int32_t counts[kExpertsPerBlock];
  for (std::int32_t e = threadIdx.x; e < kExpertsPerBlock; e += kThreads) counts[e] = 0;
  __syncthreads();
  const std::int64_t lanes = static_cast<std::int64_t>(params.tokens) * params.group.top_k;
  for (std::int64_t i = threadIdx.x; i < lanes; i += kThreads) {
    const std::int64_t expert = lane_expert(params, i) - first_expert;
    if (expert >= 0 && expert < kExpertsPerBlock) atomicAdd(&counts[expert], 1);
  }
  __syncthreads();
  for (std::int32_t e = threadIdx.x; e < kExpertsPerBlock && first_expert + e < params.group.experts; e += kThreads)
    params.out.expert_counts[first_expert + e] = counts[e];
}

__global__ void __launch_bounds__(kThreads, 1) route_kernel(const __grid_constant__ RouteParams params) {
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  if (block < params.group.ranks)
    number_copies(params, block);
  else
    count_experts(params, (block - params.group.ranks) * kExpertsPerBlock);
}

}  // namespace

void launch_route(const RouteParams& params, cudaStream_t stream) {
  const std::int32_t counting = (params.group.experts + kExpertsPerBlock - 1) / kExpertsPerBlock;
  route_kernel<<<params.group.ranks + counting, kThreads, 0, stream>>>(params);
}

void preload_route() {
  cudaFuncAttributes attributes;
  (void)cudaFuncGetAttributes(&attributes, route_kernel);
}

}  // namespace shoal::ep::cuda
