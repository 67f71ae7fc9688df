// SPDX-License-Identifier: Apache-2.0 dispatch_records.cuh: the side records of a dispatch
// (detail::SideRecord): the fields that travel with a row, and their values for rows that no token
// fills.
#pragma once

#include "ep/cuda/device/slots.cuh"
#include "ep/cuda/normal/device/dispatch_targets.cuh"

namespace shoal::ep::cuda {
namespace {

/// State of a warp that sends a token: copies and top-k slots, as slots.cuh numbers them. Loaded
/// ahead of the row.
template <int kPerLane = 1>
struct DispatchToken {
  std::int32_t number = 0;
  /// Expert-major: row index among those of the slot's expert.
  std::int32_t copy[kPerLane];
  std::int32_t expert[kPerLane];
  float weight[kPerLane];

  __device__ DispatchToken() {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) copy[i] = kNoCopy, expert[i] = -1, weight[i] = 0;
  }
  /// The copies that exist.
  __device__ NumberSet<kPerLane> copies() const {
    bool exists[kPerLane];
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) exists[i] = copy[i] != kNoCopy;
    return NumberSet<kPerLane>::vote(exists);
  }
};

template <bool kExpertMajor, int kPerLane>
__device__ DispatchToken<kPerLane> load_token(const NormalDispatch& params, std::int32_t token) {
  DispatchToken<kPerLane> out;
  out.number = token;
#pragma unroll
  for (int turn = 0; turn < kPerLane; ++turn) {
    const auto slot = static_cast<std::int32_t>(number_of_lane(turn));
    if (!kExpertMajor && slot < params.copies_per_token)
      out.copy[turn] =
          params.copies[static_cast<std::int64_t>(token) * params.copies_per_token + slot];
    if (slot >= params.group.top_k) continue;
    const std::int64_t i = static_cast<std::int64_t>(token) * params.group.top_k + slot;
    if constexpr (kExpertMajor) out.copy[turn] = params.routing.expert_row_indices[i];
    if (kExpertMajor || params.write_indices || params.weights != nullptr)
      out.expert[turn] = static_cast<std::int32_t>(params.routing.topk_idx[i]);
    if (params.weights != nullptr) out.weight[turn] = params.weights[i];
  }
  return out;
}

/// Writes the side records of a token at all its ranks, without scales: 16 bytes a lane.
template <int kPerLane>
__device__ void write_records(const NormalDispatch& params, const detail::SideRecord& record,
                              const DispatchTargets& targets, const DispatchToken<kPerLane>& t,
                              std::uint32_t copies) {
  constexpr std::uint32_t kSlots = 32 * kPerLane;
  const std::uint32_t from_idx = (record.weights - record.topk_idx) / 16;
  const std::uint32_t per_record = (record.bytes - record.topk_idx) / 16;
  const std::uint32_t from_source = per_record - 1;
  for (std::uint32_t first = 0; first < copies * per_record; first += 32) {
    const std::uint32_t e = first + lane_id();
    const std::uint32_t copy_index = min(e / per_record, kSlots - 1), vector = e % per_record;
    const std::int32_t copy = value_of(t.copy, copy_index);
    const std::int32_t expert0 = value_of(t.expert, (2 * vector) % kSlots);
    const std::int32_t expert1 = value_of(t.expert, (2 * vector + 1) % kSlots);
    float weight[4];
    std::int32_t owner[4];
#pragma unroll
    for (std::uint32_t j = 0; j < 4; ++j) {
      weight[j] = value_of(t.weight, (4 * (vector - from_idx) + j) % kSlots);
      owner[j] = value_of(t.expert, (4 * (vector - from_idx) + j) % kSlots);
    }
    if (e >= copies * per_record) continue;
    const ExpertTable& table = params.group.expert_table;
    const std::int32_t rank = copy_rank(copy), base = table.first_of(rank),
                       end = table.first_of(rank + 1);
    const auto local = [&](std::int32_t expert) {
      return expert >= base && expert < end ? expert - base : -1;
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
      const auto mine = [&](int j) {
        return params.all_weights != 0 || local(owner[j]) >= 0 ? __float_as_int(weight[j]) : 0;
      };
      out = {mine(0), mine(1), mine(2), mine(3)};
    } else {
      out.x = t.number;
    }
    std::byte* const to =
        targets.records[rank] + static_cast<std::int64_t>(copy_row_index(copy)) * record.bytes;
    *reinterpret_cast<int4*>(to + record.topk_idx + vector * 16) = out;
  }
}

/// Expert-major: where the rows for this lane's top-k slots go; nullptr where one has no expert.
template <int kPerLane>
struct TopkSlotTargets {
  std::byte *row[kPerLane], *record[kPerLane];
};
template <int kPerLane>
__device__ TopkSlotTargets<kPerLane> topk_slot_targets(const NormalDispatch& params,
                                                       const detail::SideRecord& record,
                                                       const DispatchTargets& targets,
                                                       const std::int32_t* expert_rows,
                                                       const DispatchToken<kPerLane>& t) {
  TopkSlotTargets<kPerLane> out{};
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (t.expert[i] < 0) continue;
    const std::int32_t rank = params.group.expert_table.rank_of(t.expert[i]);
    const std::int64_t row = expert_rows[t.expert[i]] + t.copy[i];
    out.row[i] = targets.rows[rank] + row * params.row_bytes;
    out.record[i] = targets.records[rank] + row * record.bytes;
  }
  return out;
}

/// Expert-major: writes the side records of a token for all top-k slots, without scales: index,
/// weight, token, 16 bytes each.
template <int kPerLane>
__device__ void write_topk_slot_records(const NormalDispatch& params,
                                        const detail::SideRecord& record,
                                        const TopkSlotTargets<kPerLane>& target,
                                        const DispatchToken<kPerLane>& t) {
  constexpr std::uint32_t kVectors = 3;
  if (!params.write_indices && params.weights == nullptr) return;
  const auto slots = static_cast<std::uint32_t>(params.group.top_k);
  for (std::uint32_t first = 0; first < slots * kVectors; first += 32) {
    const std::uint32_t e = first + lane_id();
    const std::uint32_t slot = min(e / kVectors, 32u * kPerLane - 1), vector = e % kVectors;
    std::byte* const to = value_of(target.record, slot);
    const std::int32_t expert = value_of(t.expert, slot);
    const float weight = value_of(t.weight, slot);
    if (e >= slots * kVectors || to == nullptr) continue;
    if (vector == 1 ? params.weights == nullptr : !params.write_indices) continue;
    int4 out{params.group.expert_table.place(expert).local(), 0, -1, -1};
    if (vector == 1) out = {__float_as_int(weight), 0, 0, 0};
    if (vector == 2) out = {t.number, 0, 0, 0};
    *reinterpret_cast<int4*>(to + record.topk_idx + vector * 16) = out;
  }
}

/// Expert-major: writes the scales of a token for all top-k slots, four bytes at a time.
template <int kPerLane>
__device__ void write_topk_slot_scales(const NormalDispatch& params,
                                       const TopkSlotTargets<kPerLane>& target,
                                       const DispatchToken<kPerLane>& t) {
  const std::uint32_t* const from = params.scales + t.number * params.scale_stride;
  for (std::int32_t slot = 0; slot < params.group.top_k; ++slot) {
    auto* const to =
        reinterpret_cast<std::uint32_t*>(value_of(target.record, static_cast<std::uint32_t>(slot)));
    if (to == nullptr) continue;
    for (std::uint32_t i = lane_id(); i < params.scale_count; i += 32)
      to[i] = from[i * params.scale_step];
  }
}

/// Writes scales that cannot be copied in bulk: any strides, four bytes at a time.
template <int kPerLane>
__device__ void write_scales(const NormalDispatch& params, const detail::SideRecord& record,
                             const DispatchTargets& targets, const DispatchToken<kPerLane>& t,
                             std::uint32_t copies) {
  const std::uint32_t* const from = params.scales + t.number * params.scale_stride;
  for (std::uint32_t c = 0; c < copies; ++c) {
    const std::int32_t copy = value_of(t.copy, c);
    auto* const to = reinterpret_cast<std::uint32_t*>(
        targets.records[copy_rank(copy)] +
        static_cast<std::int64_t>(copy_row_index(copy)) * record.bytes);
    for (std::uint32_t i = lane_id(); i < params.scale_count; i += 32)
      to[i] = from[i * params.scale_step];
  }
}

/// Expert-major: the side record of a row that no token fills, by units of 16 bytes from
/// SideRecord::topk_idx.
__device__ int4 gap_vector(std::uint32_t vector) {
  return vector == 1 ? int4{} : int4{-1, -1, -1, -1};
}

/// Expert-major: fills the side records of rows between the blocks of experts. The first block
/// calls, when the handle has its counts.
__device__ void fill_gaps(const NormalDispatch& params, const detail::SideRecord& record) {
  constexpr std::int64_t kVectors = 3;
  const detail::RegionLayout layout(static_cast<std::uint64_t>(params.region_rows),
                                    params.row_bytes, record.bytes);
  std::byte* const records =
      params.group.block[params.group.me] + params.region + layout.records + record.topk_idx;
  const HandleArrays& handle = params.handle;
  for (std::uint32_t e = threadIdx.x / 32; e < static_cast<std::uint32_t>(params.group.own_experts);
       e += blockDim.x / 32) {
    const std::int64_t first = handle.expert_first_row[e] + handle.expert_counts[e];
    const std::int64_t count = (handle.expert_first_row[e + 1] - first) * kVectors;
    for (std::int64_t i = lane_id(); i < count; i += 32)
      *reinterpret_cast<int4*>(records + (first + i / kVectors) * record.bytes +
                               i % kVectors * 16) =
          gap_vector(static_cast<std::uint32_t>(i % kVectors));
  }
}

/// Fills the side records of rows that no token fills: indices of -1, weights of 0; expert-major:
/// tokens of -1. The work is spread over all blocks.
template <bool kExpertMajor>
__device__ void fill_rest(const NormalDispatch& params, const detail::SideRecord& record,
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

}  // namespace
}  // namespace shoal::ep::cuda
