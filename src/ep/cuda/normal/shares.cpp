// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/normal/shares.hpp"

#include <array>

#include "ep/cuda/group/group.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {
namespace {

/// Writes an entry. A kernel that read the entry for its old number has ended, and a kernel that
/// looks for the new one is launched after these writes.
void set(SharedRange& entry, const SharedRange& wanted) {
  if (entry.id == wanted.id) return;
  entry = wanted;
}

}  // namespace

ShareTable::ShareTable(const detail::GroupState& state)
    : state_(state),
      ranges_(state.world->memory().shared_ranges()),
      memory_(take_pinned(static_cast<std::size_t>(state.shape.ranks) * kShareSlots *
                          sizeof(SharedRange))),
      entries_(static_cast<SharedRange*>(memory_.get())) {}

void ShareTable::refresh() {
  const std::uint64_t version = ranges_.version();
  if (version == version_) return;
  for (std::int32_t rank = 0; rank < state_.shape.ranks; ++rank) {
    std::array<SharedRange, kShareSlots> wanted{};
    for (const auto& range : ranges_.of(state_.team.world_pe(rank)))
      if (SharedRange& entry = wanted[range.id % kShareSlots]; entry.id == 0)
        entry = {range.id, range.base};
    for (std::uint32_t slot = 0; slot < kShareSlots; ++slot)
      set(entries_[rank * kShareSlots + slot], wanted[slot]);
  }
  version_ = version;
}

shoal::detail::SharedRanges::Place ShareTable::find(const void* pointer, std::size_t bytes) const {
  const auto place = ranges_.find(pointer, bytes);
  if (place.id == 0 || entries_[state_.me * kShareSlots + place.id % kShareSlots].id != place.id)
    return {};
  return place;
}

}  // namespace shoal::ep::cuda
