// SPDX-License-Identifier: Apache-2.0
// dispatch: every token row goes from x to its final row at every member that needs it;
// expert-major (kExpertMajor), to one for each of its experts: lane k stores for top-k lane k.
//
// Bytes per copy: the row, and a side record: scales, indices (8 B a lane), weights (4 B a lane),
// number of the token. A row is loaded once, however many members need it. One warp a token,
// several rows in flight: lane 0 loads rows by bulk copies, lane c stores to the c-th member;
// records are written by all lanes, 16 B each.
//
// Waits: `entered` of all members (their counts and granted regions), then, in the last block,
// `finished` of all. Publishes: notice and `entered`; after all rows of this member are complete at
// their targets, `finished`.
#include "ep/cuda/normal/normal.cuh"

namespace shoal::ep::cuda {
namespace {

constexpr std::uint32_t kDispatch = static_cast<std::uint32_t>(detail::Operation::dispatch);

/// Rows of an expert-major result that no region has room for; stands for more as well.
constexpr std::int32_t kTooManyRows = 0x7fffffff;

/// Where this member's rows go, by member; in shared memory.
struct Targets {
  std::byte* rows[kMaxDeviceRanks];
  std::byte* records[kMaxDeviceRanks];
  std::int32_t received[kMaxDeviceRanks];
  detail::DeviceNotice notice;
};

/// Bytes of the scales of a token where they can be copied in bulk, else 0.
__device__ std::uint32_t bulk_scale_bytes(const DispatchParams& params) {
#if __CUDA_ARCH__ >= 900
  const bool possible = params.scale_count % 4 == 0 && params.scale_step == 1 &&
                        params.scale_stride % 4 == 0 &&
                        reinterpret_cast<std::uintptr_t>(params.scales) % 16 == 0;
  return possible ? params.scale_count * 4 : 0;
#else
  return 0;
#endif
}

/// What one warp must know of a token before it can send it; loaded one token ahead.
struct Token {
  std::int32_t number = 0;
  std::int32_t copy =
      kNoCopy;               // of this lane's member; expert-major: ordinal for this lane's expert
  std::int32_t expert = -1;  // of this lane
  float weight = 0;          // of this lane
};

template <bool kExpertMajor>
__device__ Token load_token(const DispatchParams& params, std::int32_t token) {
  Token out;
  out.number = token;
  const auto lane = static_cast<std::int32_t>(lane_id());
  if constexpr (kExpertMajor) {
    if (lane >= params.group.top_k) return out;
    const std::int64_t i = static_cast<std::int64_t>(token) * params.group.top_k + lane;
    out.copy = params.routing.ordinals[i];
    out.expert = static_cast<std::int32_t>(params.routing.topk_idx[i]);
    if (params.weights != nullptr) out.weight = params.weights[i];
    return out;
  }
  if (lane < params.copies_per_token)
    out.copy = params.copies[static_cast<std::int64_t>(token) * params.copies_per_token + lane];
  if (lane < params.group.top_k) {
    const std::int64_t i = static_cast<std::int64_t>(token) * params.group.top_k + lane;
    if (params.write_indices || params.weights != nullptr)
      out.expert = static_cast<std::int32_t>(params.routing.topk_idx[i]);
    if (params.weights != nullptr) out.weight = params.weights[i];
  }
  return out;
}

/// The side record of one token for all members but its scales: 16 bytes a lane.
__device__ void write_records(const DispatchParams& params, const detail::SideRecord& record,
                              const Targets& targets, const Token& t, std::uint32_t copies) {
  const std::uint32_t from_idx = (record.weights - record.topk_idx) / 16;
  const std::uint32_t per_record = (record.bytes - record.topk_idx) / 16;
  const std::uint32_t from_source = per_record - 1;
  for (std::uint32_t first = 0; first < copies * per_record; first += 32) {
    const std::uint32_t e = first + lane_id();
    const std::uint32_t member = min(e / per_record, 31u), vector = e % per_record;
    const std::int32_t copy = __shfl_sync(~0u, t.copy, member);
    const std::int32_t expert0 = __shfl_sync(~0u, t.expert, (2 * vector) % 32);
    const std::int32_t expert1 = __shfl_sync(~0u, t.expert, (2 * vector + 1) % 32);
    float weight[4];
    std::int32_t owner[4];
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      weight[j] = __shfl_sync(~0u, t.weight, (4 * (vector - from_idx) + j) % 32);
      owner[j] = __shfl_sync(~0u, t.expert, (4 * (vector - from_idx) + j) % 32);
    }
    if (e >= copies * per_record) continue;
    const std::int32_t rank = copy_rank(copy), base = rank * params.group.local_experts;
    const auto local = [&](std::int32_t expert) {
      return expert >= base && expert < base + params.group.local_experts ? expert - base : -1;
    };
    int4 out{};
    if (vector < from_idx) {
      if (!params.write_indices) continue;
      const auto low = static_cast<std::int64_t>(local(expert0)),
                 high = static_cast<std::int64_t>(local(expert1));
      out = {static_cast<int>(low), static_cast<int>(low >> 32), static_cast<int>(high),
             static_cast<int>(high >> 32)};
    } else if (vector < from_source) {
      if (params.weights == nullptr) continue;
      const auto mine = [&](int j) { return local(owner[j]) >= 0 ? __float_as_int(weight[j]) : 0; };
      out = {mine(0), mine(1), mine(2), mine(3)};
    } else {
      out.x = t.number;
    }
    std::byte* const to =
        targets.records[rank] + static_cast<std::int64_t>(copy_ordinal(copy)) * record.bytes;
    *reinterpret_cast<int4*>(to + record.topk_idx + vector * 16) = out;
  }
}

/// Where the row of this lane's expert goes; nullptr where there is none.
struct LaneTarget {
  std::byte *row = nullptr, *record = nullptr;
};
__device__ LaneTarget lane_target(const DispatchParams& params, const detail::SideRecord& record,
                                  const Targets& targets, const std::int32_t* expert_rows,
                                  const Token& t) {
  if (t.expert < 0) return {};
  const std::int32_t rank = t.expert / params.group.local_experts;
  const std::int64_t row = expert_rows[t.expert] + t.copy;
  return {targets.rows[rank] + row * params.row_bytes, targets.records[rank] + row * record.bytes};
}
__device__ std::byte* of_lane(std::byte* pointer, std::uint32_t lane) {
  return reinterpret_cast<std::byte*>(__shfl_sync(
      ~0u, static_cast<unsigned long long>(reinterpret_cast<std::uintptr_t>(pointer)), lane));
}

/// The side records of one token for all lanes but their scales: index, weight, token, 16 bytes
/// each.
__device__ void write_lane_records(const DispatchParams& params, const detail::SideRecord& record,
                                   const LaneTarget& target, const Token& t) {
  constexpr std::uint32_t kVectors = 3;
  if (!params.write_indices && params.weights == nullptr) return;
  const auto lanes = static_cast<std::uint32_t>(params.group.top_k);
  for (std::uint32_t first = 0; first < lanes * kVectors; first += 32) {
    const std::uint32_t e = first + lane_id();
    const std::uint32_t lane = min(e / kVectors, 31u), vector = e % kVectors;
    std::byte* const to = of_lane(target.record, lane);
    const std::int32_t expert = __shfl_sync(~0u, t.expert, lane);
    const float weight = __shfl_sync(~0u, t.weight, lane);
    if (e >= lanes * kVectors || to == nullptr) continue;
    if (vector == 1 ? params.weights == nullptr : !params.write_indices) continue;
    int4 out{expert % params.group.local_experts, 0, -1, -1};
    if (vector == 1) out = {__float_as_int(weight), 0, 0, 0};
    if (vector == 2) out = {t.number, 0, 0, 0};
    *reinterpret_cast<int4*>(to + record.topk_idx + vector * 16) = out;
  }
}

__device__ void write_lane_scales(const DispatchParams& params, const LaneTarget& target,
                                  const Token& t) {
  const std::uint32_t* const from = params.scales + t.number * params.scale_stride;
  for (std::int32_t lane = 0; lane < params.group.top_k; ++lane) {
    auto* const to = reinterpret_cast<std::uint32_t*>(of_lane(target.record, lane));
    if (to == nullptr) continue;
    for (std::uint32_t i = lane_id(); i < params.scale_count; i += 32)
      to[i] = from[i * params.scale_step];
  }
}

/// Scales that cannot be copied in bulk: any strides, four bytes at a time.
__device__ void write_scales(const DispatchParams& params, const detail::SideRecord& record,
                             const Targets& targets, const Token& t, std::uint32_t copies) {
  const std::uint32_t* const from = params.scales + t.number * params.scale_stride;
  for (std::uint32_t c = 0; c < copies; ++c) {
    const std::int32_t copy = __shfl_sync(~0u, t.copy, c);
    auto* const to = reinterpret_cast<std::uint32_t*>(
        targets.records[copy_rank(copy)] +
        static_cast<std::int64_t>(copy_ordinal(copy)) * record.bytes);
    for (std::uint32_t i = lane_id(); i < params.scale_count; i += 32)
      to[i] = from[i * params.scale_step];
  }
}

/// Reports why the operation does not take place: the first member that differs, or has no room.
/// One thread calls.
template <bool kExpertMajor>
__device__ void report_refusal(const DispatchParams& params, std::uint64_t epoch,
                               const Targets& targets) {
  const DeviceGroup& group = params.group;
  if (report_mismatch(group, epoch, Phase::notify)) return;
  for (std::int32_t member = 0; member < group.ranks; ++member) {
    const auto& notice = *reinterpret_cast<const volatile detail::DeviceNotice*>(
        notice_at(group, group.me, epoch, member));
    const bool no_room = notice.region == detail::kNoRoom;
    const std::int64_t room = notice.rows, received = targets.received[member];
    if (!no_room && received <= room) continue;
    return report_refused(group,
                          no_room        ? Fault::no_room
                          : kExpertMajor ? Fault::too_many_expert_major
                                         : Fault::too_many_rows,
                          Phase::notify, member, epoch, 0, received, room);
  }
}

/// The counts of `source`, behind its notice: int32 rows of each member, tokens of each expert.
__device__ const std::int32_t* counts_of(const DeviceGroup& group, std::uint64_t epoch,
                                         std::int32_t source) {
  return reinterpret_cast<const std::int32_t*>(notice_at(group, group.me, epoch, source) +
                                               sizeof(detail::DeviceNotice));
}

/// Expert-major: where this member's rows for each expert start, at the member of the expert, and
/// how many rows every member receives, gaps included. A warp a member. The leader keeps them in
/// the handle.
__device__ void place_experts(const DispatchParams& params, std::uint64_t epoch, bool leader,
                              Targets& targets, std::int32_t* expert_rows) {
  const DeviceGroup& group = params.group;
  const auto lane = static_cast<std::int32_t>(lane_id());
  for (auto member = static_cast<std::int32_t>(threadIdx.x / 32); member < group.ranks;
       member += static_cast<std::int32_t>(blockDim.x / 32)) {
    std::int64_t block = 0;
    for (std::int32_t first = 0; first < group.local_experts; first += 32) {
      const std::int32_t local = first + lane, expert = member * group.local_experts + local;
      const bool inside = local < group.local_experts;
      std::uint32_t before = 0, tokens = 0;
#pragma unroll 8
      for (std::int32_t source = 0; source < group.ranks; ++source) {
        if (!inside) break;
        const auto rows = static_cast<std::uint32_t>(
            load_fresh(counts_of(group, epoch, source) + group.ranks + expert));
        if (source < group.me) before += rows;
        tokens += rows;
      }
      const std::int64_t aligned = (tokens + params.expert_alignment - 1) /
                                   params.expert_alignment * params.expert_alignment;
      std::int64_t end = aligned;
      for (std::int32_t distance = 1; distance < 32; distance *= 2) {
        const std::int64_t other = __shfl_up_sync(~0u, static_cast<long long>(end), distance);
        if (lane >= distance) end += other;
      }
      const std::int64_t start = block + end - aligned;
      if (inside) {
        expert_rows[expert] = static_cast<std::int32_t>(start + before);
        if (leader) params.handle.expert_rows[expert] = static_cast<std::int32_t>(start + before);
        if (leader && member == group.me)
          params.handle.expert_first_row[local] = static_cast<std::int32_t>(start);
      }
      block += __shfl_sync(~0u, static_cast<long long>(end), 31);
    }
    if (lane != 0) continue;
    const auto received = static_cast<std::int32_t>(min(block, std::int64_t{kTooManyRows}));
    targets.received[member] = received;
    if (leader) params.handle.received[member] = received;
    if (leader && member == group.me)
      params.handle.expert_first_row[group.local_experts] = received;
  }
}
__device__ void load_places(const DispatchParams& params, Targets& targets,
                            std::int32_t* expert_rows) {
  for (std::int32_t e = threadIdx.x; e < params.group.experts; e += blockDim.x)
    expert_rows[e] = params.handle.expert_rows[e];
  for (std::int32_t member = threadIdx.x; member < params.group.ranks; member += blockDim.x)
    targets.received[member] = params.handle.received[member];
}

/// From the notices: whether members agree, and where this member's rows go. Every block finds out
/// for itself, every member comes to the same verdict; true when the operation goes on.
template <bool kExpertMajor>
__device__ bool find_targets(const DispatchParams& params, std::uint64_t epoch,
                             const detail::SideRecord& record, bool leader, Targets& targets,
                             std::int32_t* expert_rows) {
  const DeviceGroup& group = params.group;
  bool good = true;
  if constexpr (kExpertMajor) {
    // Where members do not agree, their counts may be those of another kind: nothing is done with
    // them then.
    if (params.cached)
      load_places(params, targets, expert_rows);
    else
      place_experts(params, epoch, leader, targets, expert_rows);
    __syncthreads();
  }
  for (std::int32_t member = threadIdx.x; member < group.ranks; member += blockDim.x) {
    good = good && agrees(group, epoch, member);
    std::int32_t first = 0, received = 0;
    if constexpr (kExpertMajor) {
      received = targets.received[member];
      good = good && received < kTooManyRows;
    } else if (params.cached) {
      first = params.handle.first_row[member];
      received = params.handle.received[member];
    } else {
      for (std::int32_t source = 0; source < group.ranks; ++source) {
        const auto* const counts = reinterpret_cast<const std::int32_t*>(
            notice_at(group, group.me, epoch, source) + sizeof(detail::DeviceNotice));
        const std::int32_t rows = load_fresh(counts + member);
        if (source < group.me) first += rows;
        received += rows;
      }
    }
    const auto& notice = *reinterpret_cast<const volatile detail::DeviceNotice*>(
        notice_at(group, group.me, epoch, member));
    const std::uint64_t region = notice.region;
    const std::int64_t room = notice.rows;
    good = good && region != detail::kNoRoom && received <= room;
    const detail::RegionLayout layout(static_cast<std::uint64_t>(room), params.row_bytes,
                                      record.bytes);
    targets.rows[member] =
        group.block[member] + region + static_cast<std::int64_t>(first) * params.row_bytes;
    targets.records[member] = group.block[member] + region + layout.records +
                              static_cast<std::int64_t>(first) * record.bytes;
    if constexpr (kExpertMajor) continue;
    targets.received[member] = received;
    if (leader && !params.cached) {
      params.handle.first_row[member] = first;
      params.handle.received[member] = received;
    }
  }
  if (__syncthreads_and(good)) return true;
  if (leader && threadIdx.x == 0) {
    report_refusal<kExpertMajor>(params, epoch, targets);
    if (!params.cached) *params.handle.epoch = kRefused;
  }
  return false;
}

/// What only the first block does once the counts are there: the handle's counts, and word to the
/// host.
template <bool kExpertMajor>
__device__ void publish_sizes(const DispatchParams& params, std::uint64_t epoch,
                              const Targets& targets) {
  const DeviceGroup& group = params.group;
  if (params.cached) return;
  auto* const rows = reinterpret_cast<volatile std::int32_t*>(params.sizes + 1);
  for (std::int32_t e = threadIdx.x; e < group.local_experts; e += blockDim.x) {
    std::int32_t tokens = 0;
    for (std::int32_t source = 0; source < group.ranks; ++source) {
      const auto* const counts = reinterpret_cast<const std::int32_t*>(
          notice_at(group, group.me, epoch, source) + sizeof(detail::DeviceNotice));
      tokens += load_fresh(counts + group.ranks +
                           (kExpertMajor ? group.me * group.local_experts : 0) + e);
    }
    params.handle.expert_counts[e] = tokens;
    if (params.sizes != nullptr) rows[group.ranks + e] = tokens;
  }
  if (threadIdx.x == 0) *params.handle.epoch = epoch;
  if (params.sizes == nullptr) return;
  if constexpr (kExpertMajor) {
    for (auto source = static_cast<std::int32_t>(threadIdx.x / 32); source < group.ranks;
         source += static_cast<std::int32_t>(blockDim.x / 32)) {
      const std::int32_t* const counts =
          counts_of(group, epoch, source) + group.ranks + group.me * group.local_experts;
      std::int32_t lanes = 0;
      for (auto e = static_cast<std::int32_t>(lane_id()); e < group.local_experts; e += 32)
        lanes += load_fresh(counts + e);
      lanes = __reduce_add_sync(~0u, lanes);
      if (lane_id() == 0) rows[source] = lanes;
    }
  }
  for (std::int32_t source = threadIdx.x; !kExpertMajor && source < group.ranks;
       source += blockDim.x) {
    const auto* const counts = reinterpret_cast<const std::int32_t*>(
        notice_at(group, group.me, epoch, source) + sizeof(detail::DeviceNotice));
    rows[source] = load_fresh(counts + group.me);
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    params.sizes->received = targets.received[group.me];
    __threadfence_system();
    params.sizes->sequence = params.sequence;
  }
}

/// Expert-major: what stands beside a row that no token fills, by 16 bytes from
/// SideRecord::topk_idx.
__device__ int4 gap_vector(std::uint32_t vector) {
  return vector == 1 ? int4{} : int4{-1, -1, -1, -1};
}

/// Expert-major: rows between the blocks of experts. The first block calls, once the handle has its
/// counts.
__device__ void fill_gaps(const DispatchParams& params, const detail::SideRecord& record) {
  constexpr std::int64_t kVectors = 3;
  const detail::RegionLayout layout(static_cast<std::uint64_t>(params.region_rows),
                                    params.row_bytes, record.bytes);
  std::byte* const records =
      params.group.block[params.group.me] + params.region + layout.records + record.topk_idx;
  const HandleArrays& handle = params.handle;
  for (std::uint32_t e = threadIdx.x / 32;
       e < static_cast<std::uint32_t>(params.group.local_experts); e += blockDim.x / 32) {
    const std::int64_t first = handle.expert_first_row[e] + handle.expert_counts[e];
    const std::int64_t count = (handle.expert_first_row[e + 1] - first) * kVectors;
    for (std::int64_t i = lane_id(); i < count; i += 32)
      *reinterpret_cast<int4*>(records + (first + i / kVectors) * record.bytes +
                               i % kVectors * 16) =
          gap_vector(static_cast<std::uint32_t>(i % kVectors));
  }
}

/// Rows that no token fills: indices of -1, weights of 0; expert-major: tokens of -1. Spread over
/// all blocks.
template <bool kExpertMajor>
__device__ void fill_rest(const DispatchParams& params, const detail::SideRecord& record,
                          std::int32_t received, std::uint32_t ticket) {
  const detail::RegionLayout layout(static_cast<std::uint64_t>(params.region_rows),
                                    params.row_bytes, record.bytes);
  std::byte* const records = params.group.block[params.group.me] + params.region + layout.records;
  const std::uint32_t vectors =
      ((kExpertMajor ? record.bytes : record.source_token) - record.topk_idx) / 16;
  const std::uint32_t indices = (record.weights - record.topk_idx) / 16;
  const std::int64_t count = (params.region_rows - received) * vectors;
  for (std::int64_t i = static_cast<std::int64_t>(ticket) * blockDim.x + threadIdx.x; i < count;
       i += static_cast<std::int64_t>(gridDim.x) * blockDim.x) {
    const std::int64_t row = received + i / vectors;
    const auto vector = static_cast<std::uint32_t>(i % vectors);
    int4 value = vector < indices ? int4{-1, -1, -1, -1} : int4{};
    if constexpr (kExpertMajor) value = gap_vector(vector);
    *reinterpret_cast<int4*>(records + row * record.bytes + record.topk_idx + vector * 16) = value;
  }
}

#if __CUDA_ARCH__ >= 900
/// One warp's rows on their way: a ring of stages in shared memory. The numbers of the tokens are
/// taken two items ahead, so that nobody waits for them.
template <bool kExpertMajor>
class Ring {
 public:
  __device__ Ring(const DispatchParams& params, std::byte* shared, std::uint32_t bulk_scales)
      : params_(params), bulk_scales_(bulk_scales) {
    const std::uint32_t warp = threadIdx.x / 32;
    barriers_ = reinterpret_cast<std::uint64_t*>(shared) + warp * kMaxStages;
    stages_ = shared + kBarrierBytes +
              static_cast<std::size_t>(warp) * params.stages * params.stage_bytes;
    if (lane_id() == 0) {
      for (std::uint32_t s = 0; s < params.stages; ++s) barrier_init(&barriers_[s], 1);
      barriers_ready();
      fence_proxy_async();
    }
    __syncwarp();
    take();
  }

  /// Starts to load the next row of this warp, if there is one, into the stage that is free.
  __device__ void load() {
    const std::uint32_t token = __shfl_sync(~0u, upcoming_, 0);
    if (token >= static_cast<std::uint32_t>(params_.tokens)) return;
    if (lane_id() == 0) {
      std::uint64_t* const barrier = &barriers_[loaded_ % params_.stages];
      std::byte* const stage = stages_ + (loaded_ % params_.stages) * params_.stage_bytes;
      barrier_expect(barrier, params_.row_bytes + bulk_scales_);
      bulk_load(stage, params_.x + static_cast<std::int64_t>(token) * params_.row_bytes,
                params_.row_bytes, barrier);
      if (bulk_scales_ > 0)
        bulk_load(stage + params_.row_bytes, params_.scales + token * params_.scale_stride,
                  bulk_scales_, barrier);
    }
    const Token next = load_token<kExpertMajor>(params_, static_cast<std::int32_t>(token));
    // What is known of tokens moves on by one; at most kMaxStages are on their way.
#pragma unroll
    for (std::uint32_t s = 0; s < kMaxStages; ++s)
      if (s == loaded_ - sent_) tokens_[s] = next;
    ++loaded_;
    take();
  }

  __device__ bool empty() const { return sent_ == loaded_; }
  __device__ const Token& front() const { return tokens_[0]; }
  /// The row of front(), once it is there.
  __device__ const std::byte* await() {
    barrier_wait(&barriers_[sent_ % params_.stages], (sent_ / params_.stages) & 1);
    return stages_ + (sent_ % params_.stages) * params_.stage_bytes;
  }
  __device__ void pop() {
#pragma unroll
    for (std::uint32_t s = 0; s + 1 < kMaxStages; ++s) tokens_[s] = tokens_[s + 1];
    ++sent_;
  }

 private:
  __device__ void take() {
    if (lane_id() == 0) upcoming_ = take_work(params_.group, Kernel::normal);
  }

  const DispatchParams& params_;
  const std::uint32_t bulk_scales_;
  std::uint64_t* barriers_;
  std::byte* stages_;
  std::uint32_t upcoming_ = 0, loaded_ = 0, sent_ = 0;
  Token tokens_[kMaxStages];
};
#else
/// Without bulk copies: 16 bytes a lane and member, several in flight. `target_of(c)`: where the
/// c-th copy goes, nullptr where there is none.
template <class TargetOf>
__device__ void copy_row(const DispatchParams& params, const Token& t, std::uint32_t copies,
                         TargetOf&& target_of) {
  constexpr std::uint32_t kBatch = 4;
  const auto* const from = reinterpret_cast<const int4*>(
      params.x + static_cast<std::int64_t>(t.number) * params.row_bytes);
  const std::uint32_t vectors = params.row_bytes / 16;
  for (std::uint32_t first = lane_id(); first < vectors + lane_id(); first += 32 * kBatch) {
    int4 batch[kBatch];
#pragma unroll
    for (std::uint32_t j = 0; j < kBatch; ++j)
      if (first + 32 * j < vectors) batch[j] = from[first + 32 * j];
    for (std::uint32_t c = 0; c < copies; ++c) {
      auto* const to = reinterpret_cast<int4*>(target_of(c));
      if (to == nullptr) continue;
#pragma unroll
      for (std::uint32_t j = 0; j < kBatch; ++j)
        if (first + 32 * j < vectors) to[first + 32 * j] = batch[j];
    }
  }
}
#endif

template <bool kExpertMajor>
__global__ void __launch_bounds__(512, 1)
    dispatch_impl(const __grid_constant__ DispatchParams params) {
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Targets targets;
  const DeviceGroup& group = params.group;
  await_previous_kernel();
  const std::uint64_t epoch = group.memory->epoch + 1;
  const std::uint32_t ticket = take_ticket(group, Kernel::normal);
  const bool leader = ticket == 0;
  const detail::SideRecord record(params.scale_count * 4, kExpertMajor ? 1 : group.top_k);
  auto* const expert_rows =
      reinterpret_cast<std::int32_t*>(shared + params.table_offset);  // kExpertMajor
  const std::uint32_t scale_bytes = params.scale_count * 4;
  const std::uint32_t bulk_scales = bulk_scale_bytes(params);

  if (leader) {
    if (threadIdx.x == 0)
      targets.notice = {params.region,
                        detail::kNoRoom,
                        params.cached ? *params.handle.epoch : 0,
                        params.region_rows,
                        kDispatch,
                        params.dtype,
                        params.row_bytes,
                        scale_bytes,
                        params.weights != nullptr,
                        0,
                        gridDim.x,
                        kExpertMajor ? params.expert_alignment : 0};
    __syncthreads();
    publish_notice<kExpertMajor>(group, epoch, targets.notice,
                                 params.cached ? nullptr : params.routing.rank_counts,
                                 params.routing.expert_counts);
  }

#if __CUDA_ARCH__ >= 900
  // Rows are fetched while the counts are on their way.
  Ring<kExpertMajor> ring(params, shared, bulk_scales);
  for (std::uint32_t s = 0; s + 1 < params.stages; ++s) ring.load();
#endif

  const bool good = await_notices(group, epoch, Phase::notify, kDispatch) &&
                    find_targets<kExpertMajor>(params, epoch, record, leader, targets, expert_rows);
  // Somebody may be waiting for the sizes; else they have time.
  if (good && leader && params.sizes != nullptr)
    publish_sizes<kExpertMajor>(params, epoch, targets);

#if __CUDA_ARCH__ >= 900
  for (; !ring.empty(); ring.pop()) {
    const std::byte* const row = ring.await();
    if (!good) continue;  // shared memory must not be written after the block is gone
    const Token& token = ring.front();
    if constexpr (kExpertMajor) {
      const LaneTarget target = lane_target(params, record, targets, expert_rows, token);
      if (target.row != nullptr) {
        bulk_store(target.row, row, params.row_bytes);
        if (bulk_scales > 0) bulk_store(target.record, row + params.row_bytes, bulk_scales);
      }
      bulk_commit();
      write_lane_records(params, record, target, token);
      if (scale_bytes > bulk_scales) write_lane_scales(params, target, token);
    } else {
      const std::uint32_t copies = __popc(__ballot_sync(~0u, token.copy != kNoCopy));
      if (lane_id() < copies) {
        const std::int32_t rank = copy_rank(token.copy), ordinal = copy_ordinal(token.copy);
        bulk_store(targets.rows[rank] + static_cast<std::int64_t>(ordinal) * params.row_bytes, row,
                   params.row_bytes);
        if (bulk_scales > 0)
          bulk_store(targets.records[rank] + static_cast<std::int64_t>(ordinal) * record.bytes,
                     row + params.row_bytes, bulk_scales);
      }
      bulk_commit();
      write_records(params, record, targets, token, copies);
      if (scale_bytes > bulk_scales) write_scales(params, record, targets, token, copies);
    }
    // The stage of the row before this one is free once its stores have read it.
    bulk_wait_read<1>();
    __syncwarp();
    ring.load();
  }
#else
  for (;;) {
    const std::uint32_t number =
        __shfl_sync(~0u, lane_id() == 0 ? take_work(group, Kernel::normal) : 0u, 0);
    if (!good || number >= static_cast<std::uint32_t>(params.tokens)) break;
    const Token token = load_token<kExpertMajor>(params, static_cast<std::int32_t>(number));
    if constexpr (kExpertMajor) {
      const LaneTarget target = lane_target(params, record, targets, expert_rows, token);
      copy_row(params, token, group.top_k,
               [&](std::uint32_t lane) { return of_lane(target.row, lane); });
      write_lane_records(params, record, target, token);
      if (scale_bytes > 0) write_lane_scales(params, target, token);
    } else {
      const std::uint32_t copies = __popc(__ballot_sync(~0u, token.copy != kNoCopy));
      copy_row(params, token, copies, [&](std::uint32_t c) {
        const std::int32_t copy = __shfl_sync(~0u, token.copy, c);
        return targets.rows[copy_rank(copy)] +
               static_cast<std::int64_t>(copy_ordinal(copy)) * params.row_bytes;
      });
      write_records(params, record, targets, token, copies);
      if (scale_bytes > 0) write_scales(params, record, targets, token, copies);
    }
  }
#endif
  if (good && params.fill)
    fill_rest<kExpertMajor>(params, record, targets.received[group.me], ticket);
  if (good && leader && params.sizes == nullptr)
    publish_sizes<kExpertMajor>(params, epoch, targets);
  if constexpr (kExpertMajor) {
    __syncthreads();  // the counts that this block has written
    if (good && leader) fill_gaps(params, record);
  }
#if __CUDA_ARCH__ >= 900
  bulk_wait_all();
#endif
  finish_operation(group, epoch, good, Phase::receive, kDispatch);
}

}  // namespace

void launch_dispatch(const DispatchParams& params, const Plan& plan, cudaStream_t stream) {
  launch(params.expert_alignment > 0 ? dispatch_impl<true> : dispatch_impl<false>, params, plan,
         stream);
}

void preload_dispatch(int shared_bytes) {
  for (const auto kernel : {dispatch_impl<false>, dispatch_impl<true>}) {
    cudaFuncAttributes attributes;
    (void)cudaFuncGetAttributes(&attributes, kernel);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               shared_bytes - static_cast<int>(attributes.sharedSizeBytes));
  }
}

}  // namespace shoal::ep::cuda
