// SPDX-License-Identifier: Apache-2.0
// arrival.cuh: the epochs of collectives: waiting for all PEs, and the end of a collective.
//
// A collective takes one epoch of its team, or two where it runs between two barriers. It ends on a
// PE only when every PE has entered its last epoch. So no two PEs are more than one epoch apart,
// and what a PE reads in an epoch may be written again two epochs later.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/wait.cuh>
#include <shoal/device/detail/world.cuh>
#include <shoal/device/types.hpp>

namespace shoal::device::detail {

/// The heap of PE `pe` of the team.
__device__ inline std::byte* team_base(const World& world, const Team& team, Pe pe) {
  return base_of(world, team.pes[pe]);
}

/// The copy of `local`, an address in this PE's heap, on PE `pe` of the team, which is reached.
template <typename T>
__device__ T* on_pe(const World& world, const Team& team, T* local, Pe pe) {
  return reinterpret_cast<T*>(team_base(world, team, pe) + heap_offset(world, local));
}

/// Reports that the team has no collectives in kernels: too many PEs (-1), or a PE out of reach.
__device__ __noinline__ inline void report_no_collectives(World world, Pe unreached) {
  FailureReport report{};
  report.kind = FailureKind::no_collectives;
  report.awaited = unreached;
  record(world, report);
}

/// True if the team can run collectives and the ranges exist. Reports where not.
__device__ inline bool usable(const World& world, const Team& team, const void* target,
                              std::size_t target_bytes, const void* source,
                              std::size_t source_bytes) {
  if (team.size == 0) {
    report_no_collectives(world, -1);
    return false;
  }
  for (Pe pe = 0; pe < team.size; ++pe)
    if (team_base(world, team, pe) == nullptr) {
      report_no_collectives(world, team.pes[pe]);
      return false;
    }
  if (target_bytes != 0 && !exists(world, heap_offset(world, target), target_bytes, world.my_pe)) {
    report_unreached(world, target, target_bytes, world.my_pe);
    return false;
  }
  if (source_bytes != 0 && !exists(world, heap_offset(world, source), source_bytes, world.my_pe)) {
    report_unreached(world, source, source_bytes, world.my_pe);
    return false;
  }
  return true;
}

/// `count` elements of `blocks` blocks, in bytes; 2^64 - 1 on overflow.
__device__ inline std::size_t total_bytes(std::size_t count, std::size_t element, Pe blocks) {
  const auto factor = element * static_cast<std::size_t>(blocks);
  if (factor != 0 && count > static_cast<std::size_t>(-1) / factor)
    return static_cast<std::size_t>(-1);
  return count * factor;
}

/// Waits until all PEs have entered `epoch`. Returns the same on all threads of the group.
template <typename Crew>
__device__ bool await_all(const Crew& crew, const World& world, const Team& team,
                          std::uint64_t epoch) {
  bool ok = true;
  for (auto pe = static_cast<Pe>(crew.group_rank()); pe < team.size && ok;
       pe += static_cast<Pe>(crew.group_size()))
    if (pe != team.my_pe)
      ok = wait_for<std::uint64_t>(world, FailureKind::collective, team.arrived + team.pes[pe],
                                   Compare::greater_equal, epoch, team.pes[pe]);
  return crew.all(ok);
}

/// Tells all PEs that this one has entered `epoch`, releasing what the group has stored, and waits
/// until they all have. Returns the same on all threads of the group.
template <typename Crew>
__device__ bool meet(const Crew& crew, const World& world, const Team& team, std::uint64_t epoch) {
  crew.sync();
  for (auto pe = static_cast<Pe>(crew.group_rank()); pe < team.size;
       pe += static_cast<Pe>(crew.group_size()))
    if (pe != team.my_pe)
      ptx::st_release_sys(on_pe(world, team, team.arrived + world.my_pe, pe), epoch);
  return await_all(crew, world, team, epoch);
}

/// Makes `epoch` the team's once all groups have read the one before. Every group calls, in a
/// collective that does not end with meet_and_finish. What groups have stored is not released.
template <typename Crew>
__device__ void advance(const Crew& crew, const Team& team, std::uint64_t epoch) {
  crew.sync();
  if (crew.group_rank() == 0 && crew.count_last(team)) *team.epoch = epoch;
}

/// Ends a collective with a barrier in `epoch`, its last; every group calls. Only the last group
/// knows whether all went well, and returns that.
template <typename Crew>
__device__ bool meet_and_finish(const Crew& crew, const World& world, const Team& team,
                                std::uint64_t epoch, bool ok) {
  ok = crew.all(ok);
  bool last = true;
  if (crew.group_rank() == 0) {
    last = crew.release_last(team);
    if (last) {
      for (Pe pe = 0; pe < team.size; ++pe)
        if (pe != team.my_pe)
          ptx::st_relaxed_sys(on_pe(world, team, team.arrived + world.my_pe, pe), epoch);
      *team.epoch = epoch;
    }
  }
  if (crew.all(last)) ok = await_all(crew, world, team, epoch) && ok;
  crew.sync();
  return ok;
}

}  // namespace shoal::device::detail
