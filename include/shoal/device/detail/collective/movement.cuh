// SPDX-License-Identifier: Apache-2.0
// movement.cuh: collectives that move bytes, by the threads of a crew.
//
// Small blocks travel as packets. Larger ones are written by the PE that has them, between two
// barriers: the first says that targets may be written, the second that all is written. A PE writes
// to the next PE first, so that no link is shared by all. An all-to-all with sizes reads instead,
// because the receiver knows where a block goes.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/collective/arrival.cuh>
#include <shoal/device/detail/collective/packets.cuh>
#include <shoal/device/detail/copy.cuh>

namespace shoal::device::detail {

/// The PE `step` after this one in the team.
__device__ inline Pe following(const Team& team, Pe step) {
  const Pe pe = team.my_pe + step;
  return pe < team.size ? pe : pe - team.size;
}

/// Loads in flight of a thread of the crew, in copies and of packets.
template <typename Crew>
__device__ constexpr int copied_at_once() {
  return Crew::kOwnKernel ? kUnroll : 2;
}
template <typename Crew>
__device__ constexpr int polled_at_once() {
  return Crew::kOwnKernel ? 4 : 3;
}

/// True if `bytes` bytes per PE travel as packets; the same on all PEs.
template <typename Crew>
__device__ bool by_packets(const Team& team, std::size_t bytes) {
  return team.packets != nullptr && bytes <= team.packet_limit && bytes <= Crew::kPacketBytes;
}

template <typename Crew>
__device__ void write_block(const Crew& crew, const World& world, const Team& team,
                            std::byte* target, const std::byte* source, std::size_t bytes, Pe pe) {
  std::byte* const to = on_pe(world, team, target, pe);
  if (to != source)
    copy<Direction::put, copied_at_once<Crew>()>(crew.rank(), crew.size(), to, source, bytes);
}

/// From so many bytes on, the PEs of a broadcast read from the root instead of being written to:
/// then the threads of all of them have accesses in flight, not those of the root alone.
inline constexpr std::size_t kPulledBytes = std::size_t{8} << 20;

/// `bytes` bytes of the root's source to all. T: the type whose alignment both addresses have.
template <typename T, typename Crew>
__device__ bool broadcast_by(const Crew& crew, const World& world, const Team& team,
                             std::byte* target, const std::byte* source, std::size_t bytes, Pe root,
                             std::size_t pulled_bytes = kPulledBytes) {
  bool fits = usable(world, team, target, bytes, source, bytes);
  if (fits && static_cast<std::uint32_t>(root) >= static_cast<std::uint32_t>(team.size)) {
    report_unreached(world, target, bytes, -1);
    fits = false;
  }
  if (!crew.all(fits)) return false;
  const std::uint64_t epoch = next_epoch(team, *team.epoch);
  if (by_packets<Crew>(team, bytes)) {
    const bool ok = exchange_packets<polled_at_once<Crew>()>(
        crew, world, team, epoch, packets_of(bytes), root,
        [&](std::size_t k, Pe) { return load_data<T>(source, bytes, k); },
        [&](std::size_t k, Pe, std::uint64_t data) { store_data<T>(target, bytes, k, data); },
        [](std::size_t) {});
    return crew.all(ok);
  }
  const bool ok = meet(crew, world, team, epoch);
  if (ok && bytes >= pulled_bytes) {
    const std::byte* const from = on_pe(world, team, source, root);
    if (from != target)
      copy<Direction::get, copied_at_once<Crew>()>(crew.rank(), crew.size(), target, from, bytes);
  } else if (ok && team.my_pe == root)
    for (Pe step = 1; step <= team.size; ++step)
      write_block(crew, world, team, target, source, bytes, following(team, step % team.size));
  return meet_and_finish(crew, world, team, epoch + 1, ok);
}

/// Block `block_of(pe)` of this PE's source to block my_pe of PE `pe`. `stride`: 0 where all PEs
/// get the same block.
template <typename T, typename Crew>
__device__ bool spread_by(const Crew& crew, const World& world, const Team& team, std::byte* target,
                          const std::byte* source, std::size_t bytes, std::size_t stride) {
  const std::size_t target_bytes = total_bytes(bytes, 1, team.size);
  const std::size_t source_bytes = stride == 0 ? bytes : target_bytes;
  if (!crew.all(usable(world, team, target, target_bytes, source, source_bytes))) return false;
  const std::uint64_t epoch = next_epoch(team, *team.epoch);
  if (by_packets<Crew>(team, bytes)) {
    const bool ok = exchange_packets<polled_at_once<Crew>()>(
        crew, world, team, epoch, packets_of(bytes), -1,
        [&](std::size_t k, Pe pe) {
          return load_data<T>(source + static_cast<std::size_t>(pe) * stride, bytes, k);
        },
        [&](std::size_t k, Pe pe, std::uint64_t data) {
          store_data<T>(target + static_cast<std::size_t>(pe) * bytes, bytes, k, data);
        },
        [](std::size_t) {});
    return crew.all(ok);
  }
  const bool ok = meet(crew, world, team, epoch);
  std::byte* const place = target + static_cast<std::size_t>(team.my_pe) * bytes;
  for (Pe step = 1; ok && step <= team.size; ++step) {
    const Pe pe = following(team, step % team.size);
    write_block(crew, world, team, place, source + static_cast<std::size_t>(pe) * stride, bytes,
                pe);
  }
  return meet_and_finish(crew, world, team, epoch + 1, ok);
}

/// Reports block `pe` of an all-to-all, which does not fit: as large as `bytes`.
__device__ inline void report_block(const World& world, Pe pe, std::uint64_t bytes,
                                    std::uint64_t room) {
  FailureReport report{};
  report.kind = FailureKind::block_too_large;
  report.awaited = pe;
  report.bytes = bytes;
  report.expected = room;
  record(world, report);
}

template <typename Crew>
__device__ bool all_to_all_v_by(const Crew& crew, const World& world, const Team& team,
                                const AllToAllV& v) {
  const std::size_t table = static_cast<std::size_t>(team.size) * sizeof(std::uint64_t);
  if (!crew.all(usable(world, team, v.send_bytes, table, v.send_offsets, table))) return false;
  const std::uint64_t epoch = next_epoch(team, *team.epoch);
  const bool met = meet(crew, world, team, epoch);
  bool ok = met;
  for (Pe step = 0; met && step < team.size; ++step) {
    const Pe pe = following(team, step);
    std::uint64_t bytes = ptx::ld_relaxed_sys(on_pe(world, team, v.send_bytes + team.my_pe, pe));
    const std::uint64_t from =
        ptx::ld_relaxed_sys(on_pe(world, team, v.send_offsets + team.my_pe, pe));
    if (v.received != nullptr && crew.rank() == 0) v.received[pe] = bytes;
    if (v.receive_room != nullptr && bytes > v.receive_room[pe]) {
      if (crew.rank() == 0) report_block(world, team.pes[pe], bytes, v.receive_room[pe]);
      bytes = v.receive_room[pe];
      ok = false;
    }
    if (bytes == 0) continue;
    const std::size_t offset = heap_offset(world, v.source);
    if (offset > world.heap_bytes || from > world.heap_bytes - offset ||
        bytes > world.heap_bytes - offset - from) {
      if (crew.rank() == 0)
        report_unreached(world, static_cast<const std::byte*>(v.source) + from, bytes,
                         team.pes[pe]);
      ok = false;
      continue;
    }
    copy<Direction::get, copied_at_once<Crew>()>(
        crew.rank(), crew.size(), static_cast<std::byte*>(v.target) + v.receive_offsets[pe],
        on_pe(world, team, static_cast<const std::byte*>(v.source), pe) + from, bytes);
  }
  const bool left = meet_and_finish(crew, world, team, epoch + 1, met);
  return left && ok;
}

}  // namespace shoal::device::detail
