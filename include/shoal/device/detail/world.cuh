// SPDX-License-Identifier: Apache-2.0
// world.cuh: the world and its teams as this GPU sees them: heaps, addresses in them, members and
// barrier epochs.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/failure.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

__device__ inline std::size_t heap_offset(const World& world, const void* local) {
  return static_cast<std::size_t>(static_cast<const std::byte*>(local) - world.heap);
}

/// True if [offset, offset + bytes) of `pe` exists.
__device__ inline bool exists(const World& world, std::size_t offset, std::size_t bytes, Pe pe) {
  return static_cast<std::uint32_t>(pe) < static_cast<std::uint32_t>(world.n_pes) &&
         offset <= world.heap_bytes && bytes <= world.heap_bytes - offset;
}

/// report_unreached() for callers whose world is in memory anyway.
__device__ inline void report_range(const World& world, const void* local, std::size_t bytes,
                                    Pe pe) {
  FailureReport report{};
  report.offset = heap_offset(world, local);
  report.kind =
      exists(world, report.offset, bytes, pe) ? FailureKind::unreachable : FailureKind::bad_address;
  report.awaited = pe;
  report.bytes = bytes;
  record(world, report);
}

/// Reports that the PE or the range does not exist, or that this GPU cannot reach it.
__device__ __noinline__ inline void report_unreached(World world, const void* local,
                                                     std::size_t bytes, Pe pe) {
  report_range(world, local, bytes, pe);
}

/// The heap of `pe`, a PE of the world; nullptr when this GPU cannot reach it. An ordinary load: a
/// pointer from __ldg could alias anything, and the compiler would read the world again for every
/// operation of a loop.
__device__ inline std::byte* base_of(const World& world, Pe pe) {
  return world.bases != nullptr ? world.bases[pe]
                                : world.window + static_cast<std::size_t>(pe) * world.stride;
}

/// The copy of [local, local + bytes) on `pe`. Returns nullptr when the PE does not exist, the
/// range leaves the heap, or this GPU cannot reach it.
template <typename T>
__device__ T* reach(const World& world, T* local, std::size_t bytes, Pe pe) {
  const std::size_t offset = heap_offset(world, local);
  std::byte* const base = exists(world, offset, bytes, pe) ? base_of(world, pe) : nullptr;
  return base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
}

/// reach(); reports what is wrong.
template <typename T>
__device__ T* resolve(const World& world, T* local, std::size_t bytes, Pe pe) {
  T* const there = reach(world, local, bytes, pe);
  if (there == nullptr) report_unreached(world, local, bytes, pe);
  return there;
}

/// True if world PE `pe` belongs to the team.
__device__ inline bool is_member(const Team& team, Pe pe) {
  return (team.members[pe / 64] >> (pe % 64) & 1) != 0;
}

/// The epoch of the barrier after `last`. `last` may stem from an earlier team with this index.
__device__ inline std::uint64_t next_epoch(const Team& team, std::uint64_t last) {
  return (last >> Team::kEpochBits) == team.generation ? last + 1
                                                       : (team.generation << Team::kEpochBits) + 1;
}

}  // namespace shoal::device::detail
