// SPDX-License-Identifier: Apache-2.0
// map.hpp: maps of memory in the record of the process (shoal/memory_map.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "record/process_record.hpp"
#include "shoal/memory_map.hpp"

namespace shoal::detail::record {

inline constexpr std::size_t kMapDimensions = 4;

struct DimensionBlock {
  Text<2> name;
  Word count, stride;
};
/// One region; one of 0 bytes is unused.
struct RegionBlock {
  Text<3> name;
  Word offset, bytes, dimensions;
  DimensionBlock dimension[kMapDimensions];
};
struct PlaceBlock {
  Word pe, address;
};
/// Places and regions follow. Offsets count from the start of the block.
struct MapBlock {
  Word world, pe, group;
  Text<2> memory;
  Word offset, bytes;
  Word places, places_at, regions, regions_at;
};

/// Shows one map while it lives.
class MapRecorder {
 public:
  MapRecorder() = default;  ///< nothing
  /// `room`: of regions. Shows nothing where the process has no memory for it.
  MapRecorder(const observe::MemoryMap& map, std::size_t room);

  /// Adds a region without entries, such as an allocation; it is missing where there is no room.
  void add(const char* name, std::uint64_t offset, std::uint64_t bytes) noexcept;
  void remove(std::uint64_t offset) noexcept;

 private:
  RegionBlock* regions_ = nullptr;
  std::size_t room_ = 0, used_ = 0;
  Block block_;
};

/// The maps in the record of `bytes` bytes at `process`. Nothing that it contains is trusted.
std::vector<observe::MemoryMap> read_maps(const ProcessBlock& process, std::size_t bytes);

}  // namespace shoal::detail::record
