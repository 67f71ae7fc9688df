// SPDX-License-Identifier: Apache-2.0
// The two operations that everything collective is made of. Small teams write to all members
// directly, one hop; larger ones take ceil(log2 n) rounds (dissemination; for blobs, the all-gather
// of Bruck).
//
// Flags carry the number of the operation, (generation, epoch), and are never reset. A member may
// be one operation ahead of another: the areas alternate by parity, and a member that starts
// operation e + 2 has seen everybody enter e
// + 1, hence leave e.
#include <algorithm>
#include <cstddef>
#include <cstring>

#include "base/check.hpp"
#include "world/parts.hpp"

namespace shoal::detail {
namespace {

constexpr std::size_t kFlatMembers = 32;
constexpr int kEpochBits = 40;  // 10^12 operations of a team, 1.6 * 10^7 teams of a PE

std::uint64_t wire_epoch(const TeamState& team) {
  return (team.generation << kEpochBits) | team.epoch;
}

/// The epoch in a flag, 0 when an earlier team wrote it.
std::uint64_t seen_epoch(const TeamState& team, std::uint64_t flag) {
  return flag >> kEpochBits == team.generation ? flag & ((std::uint64_t{1} << kEpochBits) - 1) : 0;
}

/// The members that this PE has to do with, by distance from itself, as positions in a ring.
struct Ring {
  std::size_t size;
  std::size_t me;
  explicit Ring(const TeamState& team)
      : size(team.members.size()), me(static_cast<std::size_t>(team.my_pe)) {}
  std::size_t ahead(std::size_t distance) const { return (me + distance) % size; }
  std::size_t behind(std::size_t distance) const { return (me + size - distance) % size; }
};

ExchangeEntry make_entry(std::uint64_t epoch, const void* mine, std::size_t bytes,
                         const char* what) {
  ExchangeEntry entry{};
  entry.epoch = epoch;
  entry.bytes = bytes;
  std::memcpy(entry.what, what, strnlen(what, sizeof entry.what - 1));
  if (bytes != 0) std::memcpy(entry.blob, mine, bytes);
  return entry;
}

void check_entry(const TeamState& team, const ExchangeEntry& theirs, const ExchangeEntry& mine,
                 std::size_t member) {
  if (theirs.epoch == mine.epoch && theirs.bytes == mine.bytes) return;
  const std::string other = theirs.epoch == mine.epoch
                                ? fmt::format("called {} with {} bytes", theirs.what, theirs.bytes)
                                : std::string("made a call that exchanges nothing, such as sync");
  fail(
      Code::mismatch,
      "{}: operation {} of team {} differs among its members: PE {} called {} with {} bytes, PE {} {}",
      mine.what, team.epoch, team.index, team.members[static_cast<std::size_t>(team.my_pe)],
      mine.what, mine.bytes, team.members[member], other);
}

}  // namespace

void WorldState::wait_flag(const TeamState& team, std::size_t flag, std::uint64_t value,
                           std::size_t from, const char* what) {
  const Pe pe = team.members[from];
  const auto outcome = poll([&] { return parts_->load(flag) >= value; }, deadline(), pe);
  if (outcome == WaitOutcome::ready) return;
  throw_wait_failed(
      outcome, fmt::format("{} (operation {} of team {})", what, team.epoch, team.index),
      fmt::format("waiting for PE {}, expected operation {}, seen {}; {}", pe, team.epoch,
                  seen_epoch(team, parts_->load(flag)), describe_progress(pe)));
}

std::vector<std::byte> WorldState::exchange(TeamState& team, const void* mine, std::size_t bytes,
                                            const char* what) {
  require(bytes <= kExchangeBytes, Code::invalid_argument,
          "{}: a blob of {} bytes; at most {} are exchanged", what, bytes, kExchangeBytes);
  require(parts_->open, Code::closed, "{}: the world is closed", what);
  const Ring ring(team);
  ++team.epoch;
  const std::uint64_t epoch = wire_epoch(team);
  const std::uint64_t parity = team.epoch % 2;
  const ControlLayout& layout = parts_->layout;
  const ExchangeEntry entry = make_entry(epoch, mine, bytes, what);
  std::vector<std::byte> result(ring.size * bytes);
  const auto put = [&](std::size_t to, std::size_t target, const void* source, std::size_t length,
                       std::size_t flag) {
    const Pe pe = team.members[to];
    parts_->route(pe).put_signal(pe, target, source, length, flag, SignalOp::set, epoch);
  };
  const auto take = [&](std::size_t member, const ExchangeEntry& from) {
    check_entry(team, from, entry, member);
    if (bytes != 0) std::memcpy(result.data() + member * bytes, from.blob, bytes);
  };
  const auto entry_at = [&](std::size_t offset) -> ExchangeEntry& {
    return *reinterpret_cast<ExchangeEntry*>(parts_->control(offset));
  };

  if (ring.size <= kFlatMembers) {
    const std::size_t used = offsetof(ExchangeEntry, blob) + bytes;
    for (std::size_t d = 1; d < ring.size; ++d)
      put(ring.ahead(d), layout.entry(team.index, parity, ring.me), &entry, used,
          layout.flag(team.index, parity, ring.me));
    for (std::size_t d = 1; d < ring.size; ++d)
      wait_flag(team, layout.flag(team.index, parity, ring.behind(d)), epoch, ring.behind(d), what);
    take(ring.me, entry);
    for (std::size_t d = 1; d < ring.size; ++d)
      take(ring.ahead(d), entry_at(layout.entry(team.index, parity, ring.ahead(d))));
    return result;
  }
  // Position p holds the entry of member me + p; before the round of distance d, positions 0 .. d -
  // 1 are there.
  entry_at(layout.entry(team.index, parity, 0)) = entry;
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
  return result;
}

void WorldState::sync(TeamState& team, const char* what) {
  require(parts_->open, Code::closed, "{}: the world is closed", what);
  const Ring ring(team);
  ++team.epoch;
  const std::uint64_t epoch = wire_epoch(team);
  const std::uint64_t parity = team.epoch % 2;
  const ControlLayout& layout = parts_->layout;
  const auto raise = [&](std::size_t to, std::size_t flag) {
    const Pe pe = team.members[to];
    parts_->route(pe).signal(pe, flag, SignalOp::set, epoch);
  };
  if (ring.size <= kFlatMembers) {
    for (std::size_t d = 1; d < ring.size; ++d)
      raise(ring.ahead(d), layout.flag(team.index, parity, ring.me));
    for (std::size_t d = 1; d < ring.size; ++d)
      wait_flag(team, layout.flag(team.index, parity, ring.behind(d)), epoch, ring.behind(d), what);
    return;
  }
  std::size_t round = 0;
  for (std::size_t d = 1; d < ring.size; d *= 2, ++round) {
    const std::size_t flag = layout.flag(team.index, parity, round);
    raise(ring.ahead(d), flag);
    wait_flag(team, flag, epoch, ring.behind(d), what);
  }
}

}  // namespace shoal::detail
