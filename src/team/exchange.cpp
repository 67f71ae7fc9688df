// SPDX-License-Identifier: Apache-2.0
// Exchange, sync and deliver: the operations that all collectives consist of. Small teams write to
// all PEs, in one hop; larger ones take ceil(log2 n) rounds (dissemination; for blobs, the
// all-gather of Bruck). PEs that share memory and cores meet at the first one (meeting_of).
//
// Flags carry the number of the operation, (generation, epoch), and are never reset. A PE may be
// one operation ahead of another, so the areas alternate by parity: a PE that starts operation
// e + 2 has seen all PEs enter e + 1, hence leave e.
#include "team/exchange.hpp"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "base/check.hpp"
#include "fabric/fabric.hpp"
#include "pe/health.hpp"
#include "pe/memory.hpp"
#include "pe/wait_order.hpp"
#include "record/files.hpp"
#include "world/state.hpp"

namespace shoal::detail {
namespace {

std::uint64_t wire_epoch(const TeamState& team) {
  return team.call(team.epoch).number;
}

/// The epoch in a flag; 0 where an earlier team wrote it.
std::uint64_t seen_epoch(const TeamState& team, std::uint64_t flag) {
  return flag >> kEpochBits == team.generation ? flag & ((std::uint64_t{1} << kEpochBits) - 1) : 0;
}

/// The PEs of a team as a ring, by distance from this PE.
struct Ring {
  std::size_t size;
  std::size_t me;
  explicit Ring(const TeamState& team) : size(team.size()), me(team.me()) {}
  std::size_t ahead(std::size_t distance) const { return (me + distance) % size; }
  std::size_t behind(std::size_t distance) const { return (me + size - distance) % size; }
};

/// Only the bytes that used_bytes counts are set.
void make_entry(ExchangeEntry& entry, std::uint64_t epoch, const void* mine, std::size_t bytes,
                const char* what, std::size_t declared) {
  entry.flag = 0;
  entry.epoch = epoch;
  entry.declared = static_cast<std::uint32_t>(declared == 0 ? bytes : declared);
  entry.bytes = static_cast<std::uint16_t>(bytes);
  entry.what_bytes = static_cast<std::uint16_t>(strnlen(what, ExchangeEntry::kWhatBytes));
  if (bytes != 0) std::memcpy(entry.payload, mine, bytes);
  std::memcpy(entry.payload + bytes, what, entry.what_bytes);
}

std::size_t used_bytes(const ExchangeEntry& entry) {
  return offsetof(ExchangeEntry, payload) + entry.bytes + entry.what_bytes;
}

std::string_view what_of(const ExchangeEntry& entry) {
  if (entry.bytes > ExchangeEntry::kBlobBytes || entry.what_bytes > ExchangeEntry::kWhatBytes)
    return "an unknown call";
  return {reinterpret_cast<const char*>(entry.payload) + entry.bytes, entry.what_bytes};
}

/// Throws Error{mismatch} where PE `from` of the team made another call. The sizes of the blobs are
/// those of Shoal's records, so they are named only where two PEs made the same call with blobs of
/// their own.
void check_entry(const TeamState& team, const ExchangeEntry& theirs, const ExchangeEntry& mine,
                 std::size_t from) {
  if (theirs.epoch == mine.epoch && theirs.declared == mine.declared) [[likely]]
    return;
  const bool same_call = what_of(theirs) == what_of(mine);
  const auto call = [&](const ExchangeEntry& entry) {
    if (entry.epoch != mine.epoch)
      return std::string("a call without data (sync, or closing the world)");
    return same_call ? fmt::format("{} with {} bytes", what_of(entry), entry.declared)
                     : std::string(what_of(entry));
  };
  const Pe pes[] = {team.pes[from], team.pes[team.me()]};
  fail(Code::mismatch,
       "SHOAL-N200: {}: operation {} of team {} differs among its PEs: PE {} made {}, PE {} made "
       "{}{}",
       what_of(mine), team.epoch, team.index, pes[1], call(mine), pes[0], call(theirs),
       team.world->progress().refusal(pes, team.call(team.epoch)));
}

/// Numbers the operation and runs it. A failed wait leaves the team broken: this PE no longer knows
/// which of its flags and entries the other PEs have read, so it writes none again.
template <typename Operation>
void run_operation(TeamState& team, const char* what, Operation&& operation) {
  WorldState& world = *team.world;
  require(world.is_open(), Code::closed, "SHOAL-N172: {}: the world is closed", what);
  if (team.broken)
    fail(team.broken->code(),
         "SHOAL-N201: {}: an earlier operation of team {} failed on this PE: {}", what, team.index,
         reason_of(*team.broken));
  ++team.epoch;
  try {
    operation(wire_epoch(team), team.epoch % 2);
  } catch (const Error& error) {
    if (error.code() == Code::mismatch) throw;
    team.broken = error;
    world.recorder().set_failure(reason_of(error));
    record::write_after_failure(world.recorder().world(), world.my_pe(),
                                world.settings().flight_dir, record::FailureOf::team);
    throw;
  }
}

/// Waits until `seen()`, the newest flag of PE `from`, is at least `value`. `word`: the flag to
/// block on.
template <typename Seen, typename Word>
void wait_for(const TeamState& team, std::uint64_t value, std::size_t from, const char* what,
              Seen&& seen, Word&& word) {
  const Pe pe = team.pes[from];
  const auto ready = [&] { return seen() >= value; };
  // Only what outlasts the polls counts: a look at the clock takes a fifth of a barrier.
  WorldState& world = *team.world;
  Waits& waits = world.waits();
  if (waits.spin(ready, pe)) return;
  const Clock::time_point start = Clock::now();
  const auto outcome = waits.outlast(ready, start + world.settings().timeout, pe, word);
  if (world.recorder().counts()) world.recorder().count_wait(pe, Clock::now() - start);
  if (outcome == WaitOutcome::ready) return;
  const std::string call =
      fmt::format("{} (operation {} of team {})", what, team.epoch, team.index);
  const std::string refused = world.progress().refusal(pe, team.call(team.epoch));
  std::string detail =
      fmt::format("waiting for PE {}, expected operation {}, seen {}{}; {}", pe, team.epoch,
                  seen_epoch(team, seen()), refused, world.progress().describe(pe));
  FailureCause cause{pe, fmt::format("late for {}{}", call, refused)};
  if (outcome == WaitOutcome::peer_failed) {
    cause = parse_cause(world.health().failure(pe).value_or(cause.text()));
  } else if (outcome == WaitOutcome::interrupted) {
    cause = {world.my_pe(), fmt::format("interrupted in {}", call)};
  } else if (const auto earlier = world.health().published_cause(pe)) {
    detail += fmt::format("; PE {} {}", pe, describe_consequence(*earlier));
    cause = *earlier;
  }
  world.health().publish_cause(cause);
  waits.throw_failed(outcome, call, detail, pe);
}

void wait_flag(const TeamState& team, std::size_t flag, std::uint64_t value, std::size_t from,
               const char* what) {
  const Memory& memory = team.world->memory();
  wait_for(team, value, from, what, [&] { return memory.load(flag); }, [flag] { return flag; });
}

void wait_flags(TeamState& team, std::uint64_t value, std::uint64_t parity, const char* what) {
  WorldState& world = *team.world;
  const Memory& memory = world.memory();
  const ControlLayout& layout = memory.layout();
  const Ring ring(team);
  const auto flag = [&](std::size_t distance) {
    return layout.flag(team.index, parity, ring.behind(distance));
  };
  const auto seen = [&](std::size_t distance) { return memory.load(flag(distance)); };
  for (std::size_t d = 1; d < ring.size; ++d)
    wait_for(
        team, value, ring.behind(d), what, [&] { return seen(d); },
        [&] {
          if (!world.waits().crowded()) return flag(d);
          return flag(
              team.wait_order.pick(d, ring.size, mixed(value) + ring.me,
                                   [&](std::size_t other) { return seen(other) >= value; }));
        });
}

/// Each PE raises its flag in the memory of the first PE. A PE that then sees all flags there
/// raises one at each other PE, that of the first. The first PE needs none: all flags are in its
/// own memory.
void meet_at_first(TeamState& team, std::uint64_t value, std::uint64_t parity, const char* what) {
  const Pe first = team.pes[0];
  const Memory& memory = team.world->memory();
  const Fabric& fabric = team.world->fabric();
  transport::Transport& at_first = fabric.route(first);
  const auto flag = [&](std::size_t of) { return memory.layout().flag(team.index, parity, of); };
  const auto seen = [&](std::size_t of) {
    return at_first.atomic(first, AtomicOp::fetch, flag(of), 0, 0, sizeof(std::uint64_t));
  };
  std::size_t missing = 0;
  const auto all_came = [&] {
    while (missing < team.size() && seen(missing) >= value) ++missing;
    return missing == team.size();
  };
  // At least one of two PEs that arrive at the same time sees the other. If the processor's order
  // allows that neither does, both look again when their block ends.
  at_first.atomic(first, AtomicOp::set, flag(team.me()), value, 0, sizeof value);
  if (all_came()) {
    for (std::size_t to = 1; to < team.size(); ++to)
      if (to != team.me())
        fabric.route(team.pes[to]).raise_flag(team.pes[to], flag(0), SignalOp::set, value);
    return;
  }
  if (team.me() == 0) return wait_flags(team, value, parity, what);
  const auto released = [&] { return memory.load(flag(0)) >= value; };
  // A missing PE is awaited by name, for messages and so that its end is noticed.
  while (!released() && !all_came())
    wait_for(
        team, value, missing, what, [&] { return released() ? value : seen(missing); },
        [&] { return flag(0); });
}

}  // namespace

std::vector<std::byte> exchange(TeamState& team, const void* mine, std::size_t bytes,
                                const char* what, std::size_t declared) {
  require(bytes <= kExchangeBytes, Code::invalid_argument,
          "SHOAL-N202: {}: a blob of {} bytes; at most {} are exchanged", what, bytes,
          kExchangeBytes);
  const Ring ring(team);
  std::vector<std::byte> result(ring.size * bytes);
  const Memory& memory = team.world->memory();
  const Fabric& fabric = team.world->fabric();
  run_operation(team, what, [&](std::uint64_t epoch, std::uint64_t parity) {
    const ControlLayout& layout = memory.layout();
    ExchangeEntry entry;
    make_entry(entry, epoch, mine, bytes, what, declared);
    const auto put = [&](std::size_t to, std::size_t target, const void* source, std::size_t length,
                         std::size_t flag) {
      const Pe pe = team.pes[to];
      fabric.route(pe).put_signal(pe, target, source, length, flag, SignalOp::set, epoch);
    };
    const auto take = [&](std::size_t from, const ExchangeEntry& theirs) {
      check_entry(team, theirs, entry, from);
      if (bytes != 0) std::memcpy(result.data() + from * bytes, theirs.payload, bytes);
    };
    const auto entry_at = [&](std::size_t offset) -> ExchangeEntry& {
      return *reinterpret_cast<ExchangeEntry*>(memory.control(offset));
    };

    constexpr std::size_t kStart = offsetof(ExchangeEntry, epoch);
    const std::size_t length = used_bytes(entry) - kStart;
    if (team.meeting == Meeting::at_first) {
      const Pe first = team.pes[0];
      transport::Transport& at_first = fabric.route(first);
      at_first.put(first, layout.entry(team.index, parity, ring.me) + kStart, &entry.epoch, length);
      meet_at_first(team, epoch, parity, what);
      ExchangeEntry theirs;
      for (std::size_t from = 0; from < ring.size; ++from) {
        const std::size_t offset = layout.entry(team.index, parity, from) + kStart;
        at_first.get(&theirs.epoch, first, offset, length);
        if (theirs.epoch != entry.epoch || theirs.declared != entry.declared)
          at_first.get(&theirs.epoch, first, offset, sizeof theirs - kStart);
        take(from, theirs);
      }
      return;
    }
    if (team.meeting == Meeting::at_all) {
      for (std::size_t d = 1; d < ring.size; ++d)
        put(ring.ahead(d), layout.entry(team.index, parity, ring.me) + kStart, &entry.epoch, length,
            layout.flag(team.index, parity, ring.me));
      wait_flags(team, epoch, parity, what);
      take(ring.me, entry);
      for (std::size_t d = 1; d < ring.size; ++d)
        take(ring.ahead(d), entry_at(layout.entry(team.index, parity, ring.ahead(d))));
      return;
    }
    // Position p holds the entry of PE me + p. Before the round of distance d, positions 0 .. d - 1
    // are filled.
    std::memcpy(&entry_at(layout.entry(team.index, parity, 0)), &entry, used_bytes(entry));
    std::size_t round = 0;
    for (std::size_t d = 1; d < ring.size; d *= 2, ++round) {
      const std::size_t count = std::min(d, ring.size - d);
      const std::size_t flag = layout.flag(team.index, parity, round);
      put(ring.behind(d), layout.entry(team.index, parity, d),
          &entry_at(layout.entry(team.index, parity, 0)), count * sizeof(ExchangeEntry), flag);
      wait_flag(team, flag, epoch, ring.ahead(d), what);
    }
    for (std::size_t p = 0; p < ring.size; ++p)
      take(ring.ahead(p), entry_at(layout.entry(team.index, parity, p)));
  });
  return result;
}

void sync(TeamState& team, const char* what) {
  deliver(team, {}, what);
}

void deliver(TeamState& team, std::span<const Delivery> deliveries, const char* what) {
  const Memory& memory = team.world->memory();
  Fabric& fabric = team.world->fabric();
  const Ring ring(team);
  // For one peer, its signal waits for the data, and the call for the use of the source. For
  // several peers, all start at once.
  const bool at_once = !deliveries.empty() && ring.size > 2;
  const auto start = [&](std::size_t to) {
    const Delivery& delivery = deliveries[to];
    const Pe pe = team.pes[to];
    if (delivery.bytes != 0)
      fabric.route(pe).put_nbi(pe, memory.host_offset(delivery.offset), delivery.source,
                               delivery.bytes);
  };
  run_operation(team, what, [&](std::uint64_t epoch, std::uint64_t parity) {
    const ControlLayout& layout = memory.layout();
    if (at_once)
      for (std::size_t d = 1; d < ring.size; ++d) start(ring.ahead(d));
    const auto raise = [&](std::size_t to, std::size_t flag) {
      const Pe pe = team.pes[to];
      if (deliveries.empty() || at_once || deliveries[to].bytes == 0)
        return fabric.route(pe).raise_flag(pe, flag, SignalOp::set, epoch);
      const Delivery& delivery = deliveries[to];
      fabric.route(pe).put_signal(pe, memory.host_offset(delivery.offset), delivery.source,
                                  delivery.bytes, flag, SignalOp::set, epoch);
    };
    if (team.meeting == Meeting::at_first) {
      meet_at_first(team, epoch, parity, what);
      if (at_once) fabric.quiet();
      return;
    }
    if (team.meeting == Meeting::at_all) {
      for (std::size_t d = 1; d < ring.size; ++d)
        raise(ring.ahead(d), layout.flag(team.index, parity, ring.me));
      wait_flags(team, epoch, parity, what);
      if (at_once) fabric.quiet();
      return;
    }
    // Most PEs learn from others than the sender that all have arrived.
    if (at_once) fabric.quiet();
    std::size_t round = 0;
    for (std::size_t d = 1; d < ring.size; d *= 2, ++round) {
      const std::size_t flag = layout.flag(team.index, parity, round);
      raise(ring.ahead(d), flag);
      wait_flag(team, flag, epoch, ring.behind(d), what);
    }
  });
}

}  // namespace shoal::detail
