// SPDX-License-Identifier: Apache-2.0
// team_memory.hpp: memory of collectives in the symmetric heap, by team.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "collective/reduce.hpp"
#include "shoal/world.hpp"
#include "team/team_state.hpp"

namespace shoal::shmem {

/// The first teams, by index, have memory: the predefined ones and a few others, since splits give
/// the lowest index that is free. Offsets are the same in every PE's heap.
class TeamMemory {
 public:
  /// At most this much of the heap.
  static constexpr std::size_t kMostBytes = std::size_t{32} << 20;

  /// Takes the memory from the heap. Collective.
  void allocate(World& world);

  /// For the reductions of a team whose PEs deliver; empty where the team has none.
  collective::Scratch scratch(const detail::TeamState& team) const noexcept;

  /// Room for the data of a broadcast, in every PE's heap: the root writes them to the others,
  /// which copy them once they have called. A flag of 8 bytes, then the data. Short data have slots
  /// of one cache line each, one after the other: flag and data travel together between cores, and
  /// prefetchers see a stream.
  struct Slot {
    std::size_t flag;
    std::uint64_t arrived;  ///< the flag, once the data are there
    /// True if the PEs must meet before they use the slot: they then have copied all earlier data.
    bool starts_round;
    std::size_t data() const noexcept { return flag + sizeof(std::uint64_t); }
    /// True if `value` is the flag of this use of the slot, by any broadcast.
    bool is_in_use(std::uint64_t value) const noexcept {
      return value >> kBroadcastBits == arrived >> kBroadcastBits;
    }
  };
  /// Arguments on which the PEs of a team must agree. A flag holds it in its low bits.
  struct Broadcast {
    std::size_t root = 0;
    std::size_t bytes = 0;  ///< not 0
    friend bool operator==(const Broadcast&, const Broadcast&) = default;
  };
  static Broadcast broadcast_of(std::uint64_t flag) noexcept;
  /// The limits of broadcasts through slots: what a flag has bits for.
  static constexpr int kRootBits = 5, kLengthBits = 16;
  static constexpr std::size_t kMostPes = std::size_t{1} << kRootBits;
  static constexpr std::size_t kMostLength = std::size_t{1} << kLengthBits;
  /// The longest data of a slot of the team; 0: it has none.
  std::size_t slot_bytes(const detail::TeamState& team) const noexcept;
  /// The next slot, for `piece` bytes of `broadcast`, of a team that has slots: on every PE of the
  /// team for each piece.
  Slot next_slot(const detail::TeamState& team, std::size_t piece, const Broadcast& broadcast);
  std::uint64_t flag(const Slot& slot) const noexcept;
  /// Slots whose data this PE has sent since the last call of take_sent. Another PE that writes to
  /// one of them on this PE takes itself for the root.
  void sent(const detail::TeamState& team, const Slot& slot) {
    counts_[static_cast<std::size_t>(team.index)].sent.push_back(slot);
  }
  /// Calls `use(slot)` for these slots.
  template <typename Use>
  void take_sent(const detail::TeamState& team, Use&& use) {
    if (static_cast<std::size_t>(team.index) >= teams_) return;
    Count& count = counts_[static_cast<std::size_t>(team.index)];
    if (count.generation == team.generation)
      for (const Slot& slot : count.sent) use(slot);
    count.sent.clear();
  }

 private:
  static constexpr int kBroadcastBits = kRootBits + kLengthBits;
  /// Slots of one length, `count` for each team.
  struct Slots {
    std::size_t most = 0;  ///< bytes of data
    std::size_t count = 0;
    std::size_t stride = 0;
    std::size_t start = 0;  ///< in every PE's heap
  };
  static constexpr std::size_t kKinds = 3;
  struct Count {
    std::uint64_t generation = 0;  ///< of the team that counts here
    std::array<std::uint64_t, kKinds> slots{};
    std::vector<Slot> sent = {};
  };

  std::byte* heap_ = nullptr;  ///< of this PE
  std::size_t n_pes_ = 0, teams_ = 0;
  std::array<Slots, kKinds> slots_;  ///< by length
  std::vector<Count> counts_;        ///< by team
  std::size_t scratch_ = 0;
  std::size_t scratch_bytes_ = 0;  ///< per team, parity and PE
};

}  // namespace shoal::shmem
