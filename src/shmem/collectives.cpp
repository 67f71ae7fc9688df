// SPDX-License-Identifier: Apache-2.0
#include "shmem/collectives.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "collective/puller.hpp"
#include "rma/address_checks.hpp"
#include "shmem/define.hpp"
#include "team/exchange.hpp"

namespace shoal::shmem {
namespace {

std::size_t blocks_of(const Team& team, std::size_t bytes) {
  return bytes_of(static_cast<std::size_t>(team.size()), bytes);
}

/// Over networks, longer data go straight to their place: a meeting costs less than the copies.
constexpr std::size_t kLongestInSlots = std::size_t{64} << 10;
static_assert(kLongestInSlots <= TeamMemory::kMostLength);

using Broadcast = TeamMemory::Broadcast;

[[noreturn]] void fail_to_agree(const detail::TeamState& team, std::size_t other,
                                const Broadcast& theirs, const Broadcast& mine) {
  const auto describe = [&](std::size_t pe, const Broadcast& broadcast) {
    return fmt::format("PE {}: {} bytes, PE_root {}", team.pes[pe], broadcast.bytes,
                       broadcast.root);
  };
  fail(Code::mismatch, "SHOAL-N821: broadcast: the PEs of team {} disagree: {}; {}", team.index,
       describe(other, theirs), describe(team.me(), mine));
}

/// The slot holds the data of the broadcast of this PE, and of no other one.
void check_slot(Program& program, const detail::TeamState& team, const TeamMemory::Slot& slot) {
  const std::uint64_t flag = program.team_memory.flag(slot);
  if (flag == slot.arrived) [[likely]]
    return;
  const Broadcast sent = TeamMemory::broadcast_of(flag);
  fail_to_agree(team, sent.root, sent, TeamMemory::broadcast_of(slot.arrived));
}

/// Since the PEs of the team have met, whatever was sent to this one is there: nothing, where this
/// PE has sent itself.
void check_sent(Program& program, const detail::TeamState& team) {
  program.team_memory.take_sent(team, [&](const TeamMemory::Slot& slot) {
    if (slot.is_in_use(program.team_memory.flag(slot))) check_slot(program, team, slot);
  });
}

/// Waits for the data of a slot.
void await(Program& program, const detail::TeamState& team, int root,
           const TeamMemory::Slot& slot) {
  detail::WorldState& core = program.core;
  const auto arrived = [&] { return slot.is_in_use(program.team_memory.flag(slot)); };
  if (arrived()) return;
  core.progress().set(detail::Activity::collective, team.epoch, "broadcast");
  const Pe from = team.pes[static_cast<std::size_t>(root)];
  const auto outcome = core.waits().poll(arrived, core.waits().deadline(), from);
  core.progress().set(detail::Activity::idle, team.epoch, "broadcast");
  if (outcome == detail::WaitOutcome::ready) return;
  core.waits().throw_failed(
      outcome, "broadcast",
      fmt::format("waiting for data from PE {}; {}", from, core.progress().describe(from)), from);
}

/// A broadcast through slots, in pieces. `to` of the root stays as it is.
void broadcast_by_slots(Program& program, const Team& team, std::byte* to, const std::byte* data,
                        std::size_t bytes, int root) {
  detail::TeamState& state = state_of(team);
  const std::size_t most = program.team_memory.slot_bytes(state);
  const auto n = static_cast<std::size_t>(team.size());
  const auto me = static_cast<std::size_t>(team.my_pe());
  for (std::size_t done = 0; done < bytes; done += most) {
    const std::size_t length = std::min(most, bytes - done);
    const TeamMemory::Slot slot =
        program.team_memory.next_slot(state, length, {static_cast<std::size_t>(root), bytes});
    if (slot.starts_round) {
      shoal::detail::sync(state, "broadcast");
      check_sent(program, state);
    }
    if (team.my_pe() != root) {
      await(program, state, root, slot);
      check_slot(program, state, slot);
      std::memcpy(to + done, program.world.heap().base() + slot.data(), length);
      check_slot(program, state, slot);  // a second root may have written during the copy
      continue;
    }
    program.team_memory.sent(state, slot);
    for (std::size_t d = 1; d < n; ++d) {
      const Target at = program.on(state.pes[(me + d) % n], slot.data());
      at.transport.put_signal(at.pe, at.offset, data + done, length,
                              program.on(at.pe, slot.flag).offset, SignalOp::set, slot.arrived);
    }
  }
}

}  // namespace

void barrier(Program& program, const Team& team) {
  shoal::barrier(team);
  check_sent(program, state_of(team));
}

void sync(Program& program, const Team& team) {
  shoal::sync(team);
  check_sent(program, state_of(team));
}

void check_apart(const void* dest, std::size_t dest_bytes, const void* source,
                 std::size_t source_bytes, bool in_place) {
  const auto to = reinterpret_cast<std::uintptr_t>(dest);
  const auto from = reinterpret_cast<std::uintptr_t>(source);
  require(dest_bytes == 0 || source_bytes == 0 || (in_place && to == from) ||
              to + dest_bytes <= from || from + source_bytes <= to,
          Code::invalid_argument,
          "SHOAL-N822: dest {} ({} bytes) and source {} ({} bytes) overlap; allowed: {}", dest,
          dest_bytes, source, source_bytes, in_place ? "apart, or the same address" : "apart");
}

void broadcast(Program& program, const Team& team, void* dest, const void* source,
               std::size_t bytes, int root, RootDest root_dest) {
  const auto n = static_cast<std::size_t>(team.size());
  require(root >= 0 && static_cast<std::size_t>(root) < n, Code::invalid_argument,
          "SHOAL-N823: PE_root is {}; allowed: 0 to {}, the PEs of the team", root, n - 1);
  if (bytes == 0) return;
  const std::size_t target = program.offset("dest", dest, bytes);
  const std::size_t origin = program.offset("source", source, bytes);
  auto* const to = program.in_heap("dest", static_cast<std::byte*>(dest), bytes);
  const auto* const data = program.in_heap("source", static_cast<const std::byte*>(source), bytes);
  check_apart(dest, bytes, source, bytes, true);
  const bool is_root = team.my_pe() == root;
  if (is_root && root_dest == RootDest::written && target != origin) std::memcpy(to, data, bytes);
  if (n == 1) return;

  detail::TeamState& state = state_of(team);
  const bool delivers = collective::delivers(state);
  const std::size_t slot = program.team_memory.slot_bytes(state);
  if (n <= TeamMemory::kMostPes && slot != 0 && bytes <= (delivers ? kLongestInSlots : slot))
    return broadcast_by_slots(program, team, to, data, bytes, root);
  const Broadcast mine{static_cast<std::size_t>(root), bytes};
  const auto all = shoal::detail::exchange(state, &mine, sizeof mine, "broadcast");
  for (std::size_t pe = 0; pe < n; ++pe) {
    Broadcast theirs;
    std::memcpy(&theirs, all.data() + pe * sizeof theirs, sizeof theirs);
    if (theirs != mine) fail_to_agree(state, pe, theirs, mine);
  }
  if (delivers) {
    std::vector<detail::Delivery> deliveries;
    if (is_root) deliveries.assign(n, {target, data, bytes});
    return shoal::detail::deliver(state, deliveries, "broadcast");
  }
  if (!is_root) {
    collective::Puller puller(state);
    puller.pull(to, static_cast<std::size_t>(root), origin, bytes);
    puller.finish();
  }
  sync(team);
}

void all_gather(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes) {
  shoal::all_gather_bytes(team, program.in_heap("dest", dest, blocks_of(team, bytes)),
                          program.in_heap("source", source, bytes), bytes);
}

void collect(Program& program, const Team& team, void* dest, const void* source,
             std::size_t bytes) {
  struct Part {
    std::uint64_t bytes, offset;
  };
  const Part mine{bytes, bytes == 0 ? 0 : program.offset("source", source, bytes)};
  const auto all = exchange_bytes(team, std::as_bytes(std::span(&mine, 1)));
  const auto n = static_cast<std::size_t>(team.size());
  std::vector<Part> parts(n);
  std::memcpy(parts.data(), all.data(), all.size());
  std::size_t total = 0;
  for (const Part& part : parts) total += part.bytes;
  auto* to = reinterpret_cast<std::byte*>(program.in_heap("dest", dest, total));
  check_apart(dest, total, source, bytes, false);
  collective::Puller puller(state_of(team));
  for (std::size_t pe = 0; pe < n; ++pe) {
    puller.pull(to, pe, parts[pe].offset, parts[pe].bytes);
    to += parts[pe].bytes;
  }
  puller.finish();
  sync(team);  // the sources may change
}

void all_to_all(Program& program, const Team& team, void* dest, const void* source,
                std::size_t bytes) {
  const std::size_t whole = blocks_of(team, bytes);
  shoal::all_to_all_bytes(team, program.in_heap("dest", dest, whole),
                          program.in_heap("source", source, whole), bytes);
}

void all_to_all_strided(Program& program, const Team& team, void* dest, const void* source,
                        const StridedBlocks& blocks) {
  for (const auto& [argument, stride] :
       {std::pair("dst", blocks.dst), std::pair("sst", blocks.sst)})
    require(stride >= 1, Code::invalid_argument, "SHOAL-N824: {} is {}; allowed: at least 1",
            argument, stride);
  const auto n = static_cast<std::size_t>(team.size());
  const auto me = static_cast<std::size_t>(team.my_pe());
  const std::size_t to_stride = bytes_of(static_cast<std::size_t>(blocks.dst), blocks.element);
  const std::size_t from_stride = bytes_of(static_cast<std::size_t>(blocks.sst), blocks.element);
  const std::size_t elements = bytes_of(n, blocks.count);
  const std::size_t to_bytes = detail::extent(blocks.element, to_stride, elements);
  const std::size_t from_bytes = detail::extent(blocks.element, from_stride, elements);
  const std::size_t to = to_bytes == 0 ? 0 : program.offset("dest", dest, to_bytes);
  const auto* const from = reinterpret_cast<const std::byte*>(
      program.in_heap("source", static_cast<const std::byte*>(source), from_bytes));
  sync(team);  // dest is ready
  for (std::size_t i = 1; i <= n && blocks.count != 0; ++i) {
    const std::size_t pe = (me + i) % n;
    const Target at =
        program.on(team.world_pe(static_cast<Pe>(pe)), to + me * blocks.count * to_stride);
    at.transport.put_strided(at.pe, at.offset, to_stride, from + pe * blocks.count * from_stride,
                             from_stride, blocks.element, blocks.count);
  }
  if (n > detail::ControlLayout::kDirectPes)
    program.world.quiet();  // sync orders data in small teams
  sync(team);
}

}  // namespace shoal::shmem

using namespace shoal::shmem;

SHMEM_DEFINE(void, barrier_all, ()) {
  guarded("shmem_barrier_all", [](Program& program) { barrier(program, program.all.team); });
}
SHMEM_DEFINE(void, sync_all, ()) {
  guarded("shmem_sync_all", [](Program& program) { sync(program, program.all.team); });
}
SHMEM_DEFINE(int, team_sync, (shmem_team_t team)) {
  guarded("shmem_team_sync", [&](Program& program) { sync(program, program.team(team).team); });
  return 0;
}

// Runs `STATEMENT` for the team of a routine.
#define ON_TEAM(NAME, STATEMENT)                     \
  guarded("shmem_" #NAME, [&](Program& program) {    \
    const shoal::Team& on = program.team(team).team; \
    STATEMENT;                                       \
  });                                                \
  return 0;
#define DEFINE_BLOCKS(TYPE, FUNCTION, NAME, BYTES)                                               \
  SHMEM_DEFINE(int, NAME, (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems)) { \
    ON_TEAM(NAME, FUNCTION(program, on, dest, source, bytes_of(nelems, BYTES)))                  \
  }
#define DEFINE_BROADCAST(TYPE, NAME, BYTES)                                                     \
  SHMEM_DEFINE(int, NAME,                                                                       \
               (shmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, int root)) { \
    ON_TEAM(NAME, broadcast(program, on, dest, source, bytes_of(nelems, BYTES), root))          \
  }
#define DEFINE_ALLTOALLS(TYPE, NAME, BYTES)                                                       \
  SHMEM_DEFINE(int, NAME,                                                                         \
               (shmem_team_t team, TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                size_t nelems)) {                                                                 \
    ON_TEAM(NAME, all_to_all_strided(program, on, dest, source, {BYTES, nelems, dst, sst}))       \
  }
#define DEFINE_TYPE(TYPE, NAME)                                  \
  DEFINE_BLOCKS(TYPE, all_to_all, NAME##_alltoall, sizeof(TYPE)) \
  DEFINE_ALLTOALLS(TYPE, NAME##_alltoalls, sizeof(TYPE))         \
  DEFINE_BROADCAST(TYPE, NAME##_broadcast, sizeof(TYPE))         \
  DEFINE_BLOCKS(TYPE, collect, NAME##_collect, sizeof(TYPE))     \
  DEFINE_BLOCKS(TYPE, all_gather, NAME##_fcollect, sizeof(TYPE))
SHOAL_SHMEM_RMA_TYPES(DEFINE_TYPE)
DEFINE_BLOCKS(void, all_to_all, alltoallmem, 1)
DEFINE_ALLTOALLS(void, alltoallsmem, 1)
DEFINE_BROADCAST(void, broadcastmem, 1)
DEFINE_BLOCKS(void, collect, collectmem, 1)
DEFINE_BLOCKS(void, all_gather, fcollectmem, 1)
