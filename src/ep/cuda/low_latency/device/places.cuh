// SPDX-License-Identifier: Apache-2.0
// places.cuh: addresses of low-latency data in a rank's block of the heap.
//
// Everything exists twice; the low bit of the epoch chooses the half.
#pragma once

#include "ep/cuda/low_latency/device/kernels.cuh"
#include "shoal/device/ptx.cuh"

namespace shoal::ep::cuda {

inline constexpr std::uint32_t kDispatchOperation =
    static_cast<std::uint32_t>(detail::Operation::dispatch);
inline constexpr std::uint32_t kCombineOperation =
    static_cast<std::uint32_t>(detail::Operation::combine);
inline constexpr unsigned kWarp = 0xffff'ffffu;  ///< mask of all lanes of a warp

// Slots: rows of a dispatch by (source, token).

/// Index of a slot among those of a rank.
__device__ inline std::size_t slot_index(const DeviceGroup& group, const LowLatencySizes& sizes,
                                         std::uint64_t epoch, std::int32_t source,
                                         std::int32_t token) {
  return ((epoch & 1) * group.ranks + source) * static_cast<std::size_t>(sizes.max_tokens) + token;
}
__device__ inline std::byte* slot_header(const DeviceGroup& group, std::int32_t rank,
                                         std::size_t slot) {
  return group.block[rank] + group.layout.slot_headers +
         slot * group.layout.packets * detail::kPacketBytes;
}
__device__ inline std::uint64_t* slot_counts(const DeviceGroup& group, std::int32_t rank,
                                             std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[rank] + group.layout.slot_counts) +
         ((epoch & 1) * group.ranks + source) * static_cast<std::size_t>(group.local_experts);
}
__device__ inline std::uint64_t* slot_ready(const DeviceGroup& group, std::int32_t rank,
                                            std::size_t slot) {
  return reinterpret_cast<std::uint64_t*>(group.block[rank] + group.layout.slot_ready) + slot;
}
__device__ inline float* slot_weights(const DeviceGroup& group, std::int32_t rank,
                                      std::size_t slot) {
  return reinterpret_cast<float*>(group.block[rank] + group.layout.slot_weights) +
         slot * group.top_k;
}
__device__ inline std::byte* slot_row(const DeviceGroup& group, std::int32_t rank,
                                      std::size_t slot) {
  return group.block[rank] + group.layout.slots + slot * group.layout.slot_bytes;
}
/// The row of the slot of `token` as `row` says.
__device__ inline std::byte* slot_row(const DeviceGroup& group, std::int32_t rank, std::size_t slot,
                                      std::int32_t token, const WireRow& row) {
  return slot_row(group, rank, slot) - static_cast<std::size_t>(token) * row.saving;
}

// Notices: two words on the line of a source.

__device__ inline std::uint64_t* dispatch_notice(const DeviceGroup& group, std::int32_t rank,
                                                 std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[rank] + group.layout.low_latency_notices +
                                          ((epoch & 1) * group.ranks + source) * detail::kLine);
}
__device__ inline std::uint64_t* combine_notice(const DeviceGroup& group, std::int32_t rank,
                                                std::uint64_t epoch, std::int32_t source) {
  return dispatch_notice(group, rank, epoch, source) + 1;
}

// Weights of a combine: [tokens][top_k] of a source, each in one word with its epoch, so that they
// need no signal.

__device__ inline std::uint64_t* combine_weights(const DeviceGroup& group,
                                                 const LowLatencySizes& sizes, std::int32_t rank,
                                                 std::uint64_t epoch, std::int32_t source) {
  return reinterpret_cast<std::uint64_t*>(group.block[rank] + group.layout.combine_weights) +
         slot_index(group, sizes, epoch, source, 0) * group.top_k;
}
__device__ inline std::uint64_t stamped_weight(float weight, std::uint64_t epoch) {
  return (epoch & 0xffff'ffffu) | std::uint64_t{__float_as_uint(weight)} << 32;
}
__device__ inline float weight_of(std::uint64_t stamped) {
  return __uint_as_float(static_cast<std::uint32_t>(stamped >> 32));
}

// Combine rows (DeviceLayout::token_combine_rows).

/// Place of the row that `rank` sends for a token as its `local`th, 0 for a sum. `packed` is the
/// row's top-k slot, for a sum the last one of the rank.
__device__ inline std::size_t combine_row_index(const DeviceGroup& group,
                                                const LowLatencySizes& sizes, std::uint64_t epoch,
                                                std::int32_t token, std::int32_t rank,
                                                std::int32_t packed, std::int32_t local) {
  const auto& layout = group.layout;
  if (static_cast<std::size_t>(local) < layout.rank_combine_rows)
    return layout.own_combine_rows +
           (((epoch & 1) * group.ranks + rank) * layout.rank_combine_rows + local) *
               sizes.max_tokens +
           token;
  return ((epoch & 1) * sizes.max_tokens + token) * layout.token_combine_rows + packed;
}
__device__ inline std::uint64_t* combine_flag_at(const DeviceGroup& group, std::int32_t rank,
                                                 std::size_t index) {
  return reinterpret_cast<std::uint64_t*>(group.block[rank] + group.layout.combine_flags) + index;
}
__device__ inline std::byte* combine_row_at(const DeviceGroup& group, std::int32_t rank,
                                            std::size_t index) {
  return group.block[rank] + group.layout.combine_rows + index * group.layout.combine_row_bytes;
}

// Words with an epoch in their low 32 bits.

/// Distance by which the epoch of a word is ahead of `epoch`.
__device__ inline std::int32_t ahead_of(std::uint64_t word, std::uint64_t epoch) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) -
                                   static_cast<std::uint32_t>(epoch));
}
__device__ inline bool is_epoch(std::uint64_t word, std::uint64_t epoch) {
  return ahead_of(word, epoch) == 0;
}

__device__ inline void store_packet(std::byte* at, const SlotPacket& packet) {
  ptx::st_relaxed_sys_b128(at, packet.low, packet.high);
}
__device__ inline SlotPacket load_packet(const std::byte* at) {
  SlotPacket packet;
  ptx::ld_relaxed_sys_b128(at, packet.low, packet.high);
  return packet;
}

}  // namespace shoal::ep::cuda
