// SPDX-License-Identifier: Apache-2.0
#include "shmem/team_memory.hpp"

#include <algorithm>

#include "world/state.hpp"

namespace shoal::shmem {
namespace {

constexpr std::size_t kLine = 64;
constexpr std::size_t kTeams = 8;
constexpr std::size_t kScratchBytes = std::size_t{16} << 20;
/// Longer elements are faster by RMA from where they lie.
constexpr std::size_t kLongestPart = std::size_t{512} << 10;
constexpr std::size_t kShortestPart = 1024;
/// Broadcasts between two meetings, which cost half a round trip.
constexpr std::size_t kSlots = 32;
/// The same of short data. More than kSlots: a meeting takes as long as ten such broadcasts.
constexpr std::size_t kLines = 128;
/// Over networks, a broadcast through slots overlaps with the next one. Between PEs that share
/// memory, long data are better read from where they lie.
constexpr std::size_t kNetworkSlotBytes = std::size_t{32} << 10, kSharedSlotBytes = 4096;
static_assert(kScratchBytes + kTeams * (kSlots * (kNetworkSlotBytes + kLine) + kLines * kLine) <=
              TeamMemory::kMostBytes);
constexpr int kCountBits = 40;  // as those of teams/exchange.cpp

}  // namespace

void TeamMemory::allocate(World& world) {
  const detail::WorldState& core = world.state();
  n_pes_ = static_cast<std::size_t>(world.n_pes());
  teams_ = std::min(static_cast<std::size_t>(core.settings().max_teams), kTeams);
  counts_.resize(teams_);
  const std::vector<std::int32_t> domains = core.load_store_domains();
  const bool networked =
      std::ranges::any_of(domains, [](std::int32_t domain) { return domain != 0; });
  slot_stride_ = (networked ? kNetworkSlotBytes : kSharedSlotBytes) + kLine;
  if (networked) {
    const std::size_t part = kScratchBytes / (teams_ * 2 * n_pes_) / kLine * kLine;
    scratch_bytes_ = part < kShortestPart ? 0 : std::min(part, kLongestPart);
  }
  const std::size_t lines = teams_ * kLines * kLine, slots = teams_ * kSlots * slot_stride_;
  void* const memory =
      world.heap().align(kLine, lines + slots + teams_ * 2 * n_pes_ * scratch_bytes_);
  lines_ = world.heap().offset_of(memory);
  slots_ = lines_ + lines;
  scratch_ = slots_ + slots;
}

collective::Scratch TeamMemory::scratch(const detail::TeamState& team) const noexcept {
  const auto index = static_cast<std::size_t>(team.index);
  if (index >= teams_ || scratch_bytes_ == 0) return {};
  return {scratch_ + index * 2 * n_pes_ * scratch_bytes_, scratch_bytes_};
}

std::size_t TeamMemory::slot_bytes(const detail::TeamState& team) const noexcept {
  return static_cast<std::size_t>(team.index) < teams_ ? slot_stride_ - kLine : 0;
}

TeamMemory::Slot TeamMemory::next_slot(const detail::TeamState& team, std::size_t bytes) {
  const auto index = static_cast<std::size_t>(team.index);
  Count& count = counts_[index];
  if (count.generation != team.generation) count = {team.generation, 0, 0};
  const bool is_short = bytes <= kLine - sizeof(std::uint64_t);
  const std::uint64_t number = is_short ? count.lines++ : count.slots++;
  const std::size_t each = is_short ? kLines : kSlots;
  const std::size_t stride = is_short ? kLine : slot_stride_;
  return {.flag = (is_short ? lines_ : slots_) + (index * each + number % each) * stride,
          .arrived = (team.generation << kCountBits) | (number + 1),
          .starts_round = number != 0 && number % each == 0};
}

}  // namespace shoal::shmem
