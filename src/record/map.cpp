// SPDX-License-Identifier: Apache-2.0
#include "record/map.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <tuple>

#include "base/align.hpp"
#include "record/reader.hpp"
#include "record/text.hpp"

namespace shoal::detail::record {
namespace {

using observe::MemoryDimension;
using observe::MemoryMap;
using observe::MemoryRegion;

void store_region(RegionBlock& to, const MemoryRegion& region) noexcept {
  store_text(to.name, region.name);
  to.offset.store(region.offset);
  const std::size_t dimensions = std::min(region.dimensions.size(), kMapDimensions);
  to.dimensions.store(dimensions);
  for (std::size_t i = 0; i < dimensions; ++i) {
    store_text(to.dimension[i].name, region.dimensions[i].name);
    to.dimension[i].count.store(region.dimensions[i].count);
    to.dimension[i].stride.store(region.dimensions[i].stride);
  }
  to.bytes.store(region.bytes);  // last: readers skip 0
}

MemoryRegion load_region(const RegionBlock& from) {
  MemoryRegion region;
  region.bytes = from.bytes.load();
  region.name = load_text(from.name);
  region.offset = from.offset.load();
  const auto dimensions = std::min<std::uint64_t>(from.dimensions.load(), kMapDimensions);
  for (std::uint64_t i = 0; i < dimensions; ++i) {
    const DimensionBlock& dimension = from.dimension[i];
    MemoryDimension read{load_text(dimension.name), dimension.count.load(),
                         dimension.stride.load()};
    if (read.stride == 0) break;
    region.dimensions.push_back(std::move(read));
  }
  return region;
}

}  // namespace

MapRecorder::MapRecorder(const MemoryMap& map, std::size_t room) : room_(room) {
  const std::size_t places = std::min(map.pes.size(), map.addresses.size());
  const std::size_t places_at = sizeof(MapBlock);
  const std::size_t regions_at = places_at + places * sizeof(PlaceBlock);
  block_ = allocate(regions_at + room * sizeof(RegionBlock));
  auto* const data = block_.as<std::byte>();
  if (data == nullptr) {
    room_ = 0;
    return;
  }
  auto& head = *block_.as<MapBlock>();
  head.world.store(map.world);
  head.pe.store(static_cast<std::uint64_t>(map.pe));
  head.group.store(map.group);
  store_text(head.memory, map.memory);
  head.offset.store(map.offset);
  head.bytes.store(map.bytes);
  head.places.store(places);
  head.places_at.store(places_at);
  head.regions.store(room);
  head.regions_at.store(regions_at);
  auto* const place = reinterpret_cast<PlaceBlock*>(data + places_at);
  for (std::size_t i = 0; i < places; ++i) {
    place[i].pe.store(static_cast<std::uint64_t>(map.pes[i]));
    place[i].address.store(map.addresses[i]);
  }
  regions_ = reinterpret_cast<RegionBlock*>(data + regions_at);
  for (const MemoryRegion& region : map.regions)
    if (used_ < room_) store_region(regions_[used_++], region);
  block_.publish(Kind::map);
}

void MapRecorder::add(const char* name, std::uint64_t offset, std::uint64_t bytes) noexcept {
  for (std::size_t i = 0; i < room_; ++i) {
    if (regions_[i].bytes.load() != 0) continue;
    store_text(regions_[i].name, name);
    regions_[i].offset.store(offset);
    regions_[i].dimensions.store(0);
    regions_[i].bytes.store(bytes);
    used_ = std::max(used_, i + 1);
    return;
  }
}

void MapRecorder::remove(std::uint64_t offset) noexcept {
  for (std::size_t i = 0; i < used_; ++i)
    if (regions_[i].bytes.load() != 0 && regions_[i].offset.load() == offset)
      return regions_[i].bytes.store(0);
}

std::vector<MemoryMap> read_maps(const ProcessBlock& process, std::size_t bytes) {
  std::vector<MemoryMap> maps;
  each_section(
      process, bytes, Kind::map, sizeof(MapBlock), [&](const std::byte* at, std::size_t size) {
        const auto& head = *reinterpret_cast<const MapBlock*>(at);
        const std::uint64_t places = head.places.load(), places_at = head.places_at.load();
        const std::uint64_t regions = head.regions.load(), regions_at = head.regions_at.load();
        const auto fits = [&](std::uint64_t start, std::uint64_t count, std::size_t each) {
          return start % alignof(Word) == 0 && start <= size && count <= (size - start) / each;
        };
        if (!fits(places_at, places, sizeof(PlaceBlock)) ||
            !fits(regions_at, regions, sizeof(RegionBlock)))
          return;
        MemoryMap map;
        map.world = head.world.load();
        map.pe = static_cast<Pe>(head.pe.load());
        map.pid = static_cast<std::int64_t>(process.pid.load());
        map.group = head.group.load();
        map.memory = load_text(head.memory);
        map.offset = head.offset.load();
        map.bytes = head.bytes.load();
        const auto* const place = reinterpret_cast<const PlaceBlock*>(at + places_at);
        for (std::uint64_t i = 0; i < places; ++i) {
          map.pes.push_back(static_cast<Pe>(place[i].pe.load()));
          map.addresses.push_back(place[i].address.load());
        }
        const auto* const region = reinterpret_cast<const RegionBlock*>(at + regions_at);
        for (std::uint64_t i = 0; i < regions; ++i)
          if (region[i].bytes.load() != 0) map.regions.push_back(load_region(region[i]));
        std::sort(map.regions.begin(), map.regions.end(),
                  [](const auto& a, const auto& b) { return a.offset < b.offset; });
        maps.push_back(std::move(map));
      });
  std::sort(maps.begin(), maps.end(), [](const MemoryMap& a, const MemoryMap& b) {
    return std::tie(a.world, a.pe, a.group, a.offset) < std::tie(b.world, b.pe, b.group, b.offset);
  });
  return maps;
}

}  // namespace shoal::detail::record

namespace shoal::observe {

std::vector<MemoryMap> read_process_memory() {
  const auto* const own = detail::record::own_record();
  if (own == nullptr) return {};
  return detail::record::read_maps(*own, detail::record::kRecordBytes);
}

std::vector<MemoryMap> read_host_memory() {
  std::vector<MemoryMap> all;
  detail::record::each_process([&](const detail::record::ProcessBlock& process, std::size_t bytes) {
    for (MemoryMap& map : detail::record::read_maps(process, bytes)) all.push_back(std::move(map));
  });
  return all;
}

}  // namespace shoal::observe
