// SPDX-License-Identifier: Apache-2.0
#include "shmem/team_memory.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "fabric/fabric.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::shmem {
namespace {

constexpr std::size_t kLine = 64;  ///< bytes of a cache line
constexpr std::size_t kTeams = 8;
constexpr std::size_t kScratchBytes = std::size_t{16} << 20;
/// Longer elements are faster by RMA from where they lie.
constexpr std::size_t kLongestPart = std::size_t{512} << 10;
constexpr std::size_t kShortestPart = 1024;  ///< bytes
/// {slot bytes, slot count}. The count bounds the broadcasts between two meetings.
/// A meeting takes half a round trip: as long as ten short broadcasts. Over networks, a broadcast
/// through slots overlaps with the next one. Between PEs that share memory, long data are better
/// read from where they lie, and all slots should stay in a cache.
constexpr std::size_t kLineBytes = kLine - sizeof(std::uint64_t);
constexpr std::pair<std::size_t, std::size_t> kNetworkSlots[] = {
    {kLineBytes, 128}, {4096, 128}, {std::size_t{32} << 10, 32}};
constexpr std::pair<std::size_t, std::size_t> kSharedSlots[] = {
    {kLineBytes, 128}, {1024, 32}, {4096, 32}};
constexpr std::size_t slot_stride(std::size_t most) {
  return (sizeof(std::uint64_t) + most + kLine - 1) / kLine * kLine;
}
constexpr std::size_t bytes_of_slots(const std::pair<std::size_t, std::size_t> (&kinds)[3]) {
  std::size_t bytes = 0;
  for (const auto& [most, count] : kinds) bytes += kTeams * count * slot_stride(most);
  return bytes;
}
static_assert(kScratchBytes +
                  std::max(bytes_of_slots(kNetworkSlots), bytes_of_slots(kSharedSlots)) <=
              TeamMemory::kMostBytes);

}  // namespace

void TeamMemory::allocate(World& world) {
  const detail::WorldState& core = state_of(world);
  heap_ = world.heap().base();
  n_pes_ = static_cast<std::size_t>(world.n_pes());
  teams_ = std::min(static_cast<std::size_t>(core.settings().max_teams), kTeams);
  counts_.resize(teams_);
  const std::vector<std::int32_t> domains = core.fabric().heap_domains();
  const bool networked =
      std::ranges::any_of(domains, [](std::int32_t domain) { return domain != 0; });
  if (networked) {
    const std::size_t part = kScratchBytes / (teams_ * 2 * n_pes_) / kLine * kLine;
    scratch_bytes_ = part < kShortestPart ? 0 : std::min(part, kLongestPart);
  }
  std::size_t bytes = 0;
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    const auto [most, count] = (networked ? kNetworkSlots : kSharedSlots)[kind];
    slots_[kind] = {most, count, slot_stride(most), bytes};
    bytes += teams_ * count * slot_stride(most);
  }
  scratch_ = bytes;
  void* const memory = world.heap().align(kLine, bytes + teams_ * 2 * n_pes_ * scratch_bytes_);
  const std::size_t start = world.heap().offset_of(memory);
  for (Slots& slots : slots_) slots.start += start;
  scratch_ += start;
}

collective::Scratch TeamMemory::scratch(const detail::TeamState& team) const noexcept {
  const auto index = static_cast<std::size_t>(team.index);
  if (index >= teams_ || scratch_bytes_ == 0) return {};
  return {scratch_ + index * 2 * n_pes_ * scratch_bytes_, scratch_bytes_};
}

std::size_t TeamMemory::slot_bytes(const detail::TeamState& team) const noexcept {
  return static_cast<std::size_t>(team.index) < teams_ ? slots_.back().most : 0;
}

TeamMemory::Broadcast TeamMemory::broadcast_of(std::uint64_t flag) noexcept {
  return {flag >> kLengthBits & (kMostPes - 1), (flag & (kMostLength - 1)) + 1};
}

std::uint64_t TeamMemory::flag(const Slot& slot) const noexcept {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(heap_ + slot.flag))
      .load(std::memory_order_acquire);
}

TeamMemory::Slot TeamMemory::next_slot(const detail::TeamState& team, std::size_t piece,
                                       const Broadcast& broadcast) {
  // A flag: generation of the team, round, broadcast. Rounds may start again, because a round ends
  // when all PEs meet; the flags of this PE are then cleared while none is on its way.
  constexpr int kRoundBits = detail::kEpochBits - kBroadcastBits;
  constexpr std::uint64_t kRounds = std::uint64_t{1} << kRoundBits;
  const auto index = static_cast<std::size_t>(team.index);
  Count& count = counts_[index];
  if (count.generation != team.generation) count = {team.generation, {}};
  std::size_t kind = 0;
  while (kind + 1 < kKinds && piece > slots_[kind].most) ++kind;
  const Slots& slots = slots_[kind];
  const std::uint64_t number = count.slots[kind]++;
  const std::uint64_t round = number / slots.count + 1, at = number % slots.count;
  const std::size_t first = slots.start + index * slots.count * slots.stride;
  if (at == 0 && round % kRounds == 0)
    for (std::size_t i = 0; i < slots.count; ++i)
      std::atomic_ref(*reinterpret_cast<std::uint64_t*>(heap_ + first + i * slots.stride))
          .store(0, std::memory_order_relaxed);
  return {.flag = first + at * slots.stride,
          .arrived = team.generation << detail::kEpochBits | round % kRounds << kBroadcastBits |
                     broadcast.root << kLengthBits | (broadcast.bytes - 1),
          .starts_round = number != 0 && at == 0};
}

}  // namespace shoal::shmem
