// SPDX-License-Identifier: Apache-2.0
// dispatch_targets.cuh: from the counts of all ranks to the places of this rank's rows, and the
// sizes of the result for handle and host.
#pragma once

#include "ep/cuda/normal/device/notices.cuh"

namespace shoal::ep::cuda {
namespace {

/// Rows of an expert-major result when no region has room for them; also stands for larger numbers.
constexpr std::int32_t kTooManyRows = 0x7fffffff;

/// Addresses to which this rank's rows go, indexed by destination rank; in shared memory.
struct DispatchTargets {
  std::byte* rows[kMaxDeviceRanks];
  std::byte* records[kMaxDeviceRanks];
  std::int32_t received[kMaxDeviceRanks];
  detail::DeviceNotice notice;
};

/// Reports why the operation does not take place: the first rank that disagrees or has no room. One
/// thread calls.
template <bool kExpertMajor>
__device__ void report_refusal(const NormalDispatch& params, std::uint64_t epoch,
                               const DispatchTargets& targets) {
  const DeviceGroup& group = params.group;
  if (report_mismatch(group, epoch, Phase::dispatch_notify)) return;
  for (std::int32_t rank = 0; rank < group.ranks; ++rank) {
    const volatile detail::DeviceNotice& notice = notice_of(group, epoch, rank);
    const bool no_room = notice.region == detail::kNoRoom;
    const std::int64_t room = notice.rows, received = targets.received[rank];
    if (!no_room && received <= room) continue;
    return report_refused(group,
                          no_room        ? Fault::no_room
                          : kExpertMajor ? Fault::too_many_expert_major
                                         : Fault::too_many_rows,
                          Phase::dispatch_notify, rank, epoch, 0, received, room);
  }
}

/// The counts of `source`, after its notice: int32 rows for each rank, tokens for each expert.
__device__ const std::int32_t* counts_of(const DeviceGroup& group, std::uint64_t epoch,
                                         std::int32_t source) {
  return reinterpret_cast<const std::int32_t*>(notice_at(group, group.me, epoch, source) +
                                               sizeof(detail::DeviceNotice));
}

/// Expert-major: computes where this rank's rows for each expert start, at the rank of the expert,
/// and how many rows every rank receives, gaps included. A warp takes a rank. The leader writes the
/// results to the handle.
__device__ void place_experts(const NormalDispatch& params, std::uint64_t epoch, bool leader,
                              DispatchTargets& targets, std::int32_t* expert_rows) {
  const DeviceGroup& group = params.group;
  const auto lane = static_cast<std::int32_t>(lane_id());
  for (auto rank = static_cast<std::int32_t>(threadIdx.x / 32); rank < group.ranks;
       rank += static_cast<std::int32_t>(blockDim.x / 32)) {
    const std::int32_t first_expert = group.expert_table.first_of(rank),
                       experts = group.expert_table.count_of(rank);
    std::int64_t block = 0;
    for (std::int32_t first = 0; first < experts; first += 32) {
      const std::int32_t local = first + lane, expert = first_expert + local;
      const bool inside = local < experts;
      std::uint32_t before = 0, tokens = 0;
#pragma unroll 8
      for (std::int32_t source = 0; source < group.ranks; ++source) {
        if (!inside) break;
        const auto rows = static_cast<std::uint32_t>(
            ptx::ld_relaxed_sys_global(counts_of(group, epoch, source) + group.ranks + expert));
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
        if (leader && rank == group.me)
          params.handle.expert_first_row[local] = static_cast<std::int32_t>(start);
      }
      block += __shfl_sync(~0u, static_cast<long long>(end), 31);
    }
    if (lane != 0) continue;
    const auto received = static_cast<std::int32_t>(min(block, std::int64_t{kTooManyRows}));
    targets.received[rank] = received;
    if (leader) params.handle.received[rank] = received;
    if (leader && rank == group.me) params.handle.expert_first_row[group.own_experts] = received;
  }
}
/// The same from a cached handle.
__device__ void load_places(const NormalDispatch& params, DispatchTargets& targets,
                            std::int32_t* expert_rows) {
  for (std::int32_t e = threadIdx.x; e < params.group.experts; e += blockDim.x)
    expert_rows[e] = params.handle.expert_rows[e];
  for (std::int32_t rank = threadIdx.x; rank < params.group.ranks; rank += blockDim.x)
    targets.received[rank] = params.handle.received[rank];
}

/// Computes from the notices whether the operation takes place and where this rank's rows go. Every
/// block computes it for itself, and all ranks come to the same result. True when the operation
/// takes place.
template <bool kExpertMajor>
__device__ bool find_targets(const NormalDispatch& params, std::uint64_t epoch,
                             const detail::SideRecord& record, bool leader,
                             DispatchTargets& targets, std::int32_t* expert_rows) {
  const DeviceGroup& group = params.group;
  bool good = true;
  if constexpr (kExpertMajor) {
    // The counts can be of another kind if ranks disagree; the results are not used then.
    if (params.cached)
      load_places(params, targets, expert_rows);
    else
      place_experts(params, epoch, leader, targets, expert_rows);
    __syncthreads();
  }
  for (std::int32_t rank = threadIdx.x; rank < group.ranks; rank += blockDim.x) {
    good = good && agrees(group, epoch, rank);
    std::int32_t first = 0, received = 0;
    if constexpr (kExpertMajor) {
      received = targets.received[rank];
      good = good && received < kTooManyRows;
    } else if (params.cached) {
      first = params.handle.first_row[rank];
      received = params.handle.received[rank];
    } else {
      for (std::int32_t source = 0; source < group.ranks; ++source) {
        const std::int32_t rows =
            ptx::ld_relaxed_sys_global(counts_of(group, epoch, source) + rank);
        if (source < group.me) first += rows;
        received += rows;
      }
    }
    const volatile detail::DeviceNotice& notice = notice_of(group, epoch, rank);
    const std::uint64_t region = notice.region;
    const std::int64_t room = notice.rows;
    good = good && region != detail::kNoRoom && received <= room;
    const detail::RegionLayout layout(static_cast<std::uint64_t>(room), params.row_bytes,
                                      record.bytes);
    targets.rows[rank] =
        group.block[rank] + region + static_cast<std::int64_t>(first) * params.row_bytes;
    targets.records[rank] = group.block[rank] + region + layout.records +
                            static_cast<std::int64_t>(first) * record.bytes;
    if constexpr (kExpertMajor) continue;
    targets.received[rank] = received;
    if (leader && !params.cached) {
      params.handle.first_row[rank] = first;
      params.handle.received[rank] = received;
    }
  }
  if (__syncthreads_and(good)) return true;
  if (leader && threadIdx.x == 0) {
    report_refusal<kExpertMajor>(params, epoch, targets);
    if (!params.cached) *params.handle.epoch = kRefused;
  }
  return false;
}

/// Writes source_ends and expert_ends of the handle, a warp each, from the notices alone.
template <bool kExpertMajor>
__device__ void publish_ends(const NormalDispatch& params, std::uint64_t epoch) {
  const DeviceGroup& group = params.group;
  const std::uint32_t warp = threadIdx.x / 32;
  const bool of_sources = warp == 0;
  if (warp > 1 || (of_sources && kExpertMajor)) return;
  const std::int32_t count = of_sources ? group.ranks : group.own_experts;
  const std::int32_t first_expert = group.ranks + (kExpertMajor ? group.own_first_expert : 0);
  std::int32_t sum = 0;
  for (std::int32_t first = 0; first < count; first += 32) {
    const std::int32_t i = first + static_cast<std::int32_t>(lane_id());
    std::int32_t end = 0;
    if (i < count && of_sources)
      end = ptx::ld_relaxed_sys_global(counts_of(group, epoch, i) + group.me);
    if (i < count && !of_sources) {
      for (std::int32_t source = 0; source < group.ranks; ++source)
        end += ptx::ld_relaxed_sys_global(counts_of(group, epoch, source) + first_expert + i);
      const auto alignment = static_cast<std::int32_t>(params.count_alignment);
      end = (end + alignment - 1) / alignment * alignment;
    }
    for (std::int32_t distance = 1; distance < 32; distance *= 2) {
      const std::int32_t other = __shfl_up_sync(~0u, end, distance);
      if (static_cast<std::int32_t>(lane_id()) >= distance) end += other;
    }
    if (i < count)
      (of_sources ? params.handle.source_ends : params.handle.expert_ends)[i] = sum + end;
    sum += __shfl_sync(~0u, end, 31);
  }
}

/// Writes the handle's counts and the message to the host. The first block calls, when it has the
/// counts.
template <bool kExpertMajor>
__device__ void publish_sizes(const NormalDispatch& params, std::uint64_t epoch,
                              const DispatchTargets& targets) {
  const DeviceGroup& group = params.group;
  if (params.cached) return;
  auto* const rows = reinterpret_cast<volatile std::int32_t*>(params.sizes + 1);
  for (std::int32_t e = threadIdx.x; e < group.own_experts; e += blockDim.x) {
    std::int32_t tokens = 0;
    for (std::int32_t source = 0; source < group.ranks; ++source) {
      const std::int32_t* const counts = counts_of(group, epoch, source);
      tokens += ptx::ld_relaxed_sys_global(counts + group.ranks +
                                           (kExpertMajor ? group.own_first_expert : 0) + e);
    }
    params.handle.expert_counts[e] = tokens;
    if (params.sizes != nullptr) rows[group.ranks + e] = tokens;
  }
  if (threadIdx.x == 0) *params.handle.epoch = epoch;
  publish_ends<kExpertMajor>(params, epoch);
  if (params.sizes == nullptr) return;
  if constexpr (kExpertMajor) {
    for (auto source = static_cast<std::int32_t>(threadIdx.x / 32); source < group.ranks;
         source += static_cast<std::int32_t>(blockDim.x / 32)) {
      const std::int32_t* const counts =
          counts_of(group, epoch, source) + group.ranks + group.own_first_expert;
      std::int32_t rows_of_source = 0;
      for (auto e = static_cast<std::int32_t>(lane_id()); e < group.own_experts; e += 32)
        rows_of_source += ptx::ld_relaxed_sys_global(counts + e);
      rows_of_source = __reduce_add_sync(~0u, rows_of_source);
      if (lane_id() == 0) rows[source] = rows_of_source;
    }
  }
  for (std::int32_t source = threadIdx.x; !kExpertMajor && source < group.ranks;
       source += blockDim.x) {
    const std::int32_t* const counts = counts_of(group, epoch, source);
    rows[source] = ptx::ld_relaxed_sys_global(counts + group.me);
  }
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) {
    params.sizes->received = targets.received[group.me];
    __threadfence_system();
    params.sizes->sequence = params.sequence;
  }
}

/// Counts the rows that this rank sends and receives. The block that has called publish_sizes
/// calls, after it: a thread reads the expert_counts that it has written.
template <bool kExpertMajor>
__device__ void count_rows(const NormalDispatch& params, std::uint64_t epoch,
                           std::int32_t received) {
  const DeviceGroup& group = params.group;
  if (group.record == nullptr) return;
  OperationCounts& totals = totals_of(group, RecordedOperation::dispatch);
  for (std::int32_t e = threadIdx.x; e < group.own_experts; e += blockDim.x) {
    const auto tokens = static_cast<std::uint64_t>(params.handle.expert_counts[e]);
    count_up(&group.record->expert_rows[e], tokens);
    if constexpr (kExpertMajor) count_up(&totals.received, tokens);
  }
  if (!kExpertMajor && threadIdx.x == 0)
    count_up(&totals.received, static_cast<std::uint64_t>(received));
  const std::int32_t parts = kExpertMajor ? group.experts : group.ranks;
  for (std::int32_t part = threadIdx.x; part < parts; part += blockDim.x) {
    const std::int32_t rank = kExpertMajor ? group.expert_table.rank_of(part) : part;
    const auto rows = static_cast<std::uint64_t>(kExpertMajor ? params.routing.expert_counts[part]
                                                              : params.routing.rank_counts[part]);
    count_rows_moved(group, epoch, RecordedOperation::dispatch, rows, rows * params.row_bytes);
    count_up(&group.record->ranks[rank].rows, rows);
    count_up(&group.record->ranks[rank].bytes, rows * params.row_bytes);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
