// SPDX-License-Identifier: Apache-2.0
#include "ep/group/block_map.hpp"

#include <utility>

namespace shoal::ep::detail {

shoal::detail::record::MapRecorder show_block(const GroupState& group, const std::string& memory,
                                              std::size_t offset, std::size_t bytes,
                                              std::span<std::byte* const> blocks,
                                              std::vector<observe::MemoryRegion> regions) {
  observe::MemoryMap map;
  map.world = group.world->recorder().world();
  map.pe = group.world->my_pe();
  map.group = group.recorder.number();
  map.memory = memory;
  map.offset = offset;
  map.bytes = bytes;
  for (std::int32_t rank = 0; rank < group.shape.ranks; ++rank) {
    map.pes.push_back(group.world_pe(rank));
    map.addresses.push_back(
        reinterpret_cast<std::uintptr_t>(blocks[static_cast<std::size_t>(rank)]));
  }
  map.regions = std::move(regions);
  return {map, map.regions.size()};
}

}  // namespace shoal::ep::detail
