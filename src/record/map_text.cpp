// SPDX-License-Identifier: Apache-2.0
// map_text.cpp: maps of memory as text and JSON, and what lies at an address.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>

#include "shoal/memory_map.hpp"

namespace shoal::observe {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryDimension, name, count, stride)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryRegion, name, offset, bytes, dimensions)
// `world` is text, as in json.cpp.
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(MemoryMap, pe, pid, group, memory, offset, bytes, pes, addresses,
                                   regions)

namespace {

std::string name_of(const MemoryMap& map) {
  return map.group == 0 ? fmt::format("the {}", map.memory) : fmt::format("group {}", map.group);
}

/// "[parity 2][source rank 8][token 128]".
std::string dimensions_text(const MemoryRegion& region) {
  std::string text;
  for (const MemoryDimension& dimension : region.dimensions)
    text += fmt::format("[{} {}]", dimension.name, dimension.count);
  return text;
}

/// The block of `owner` that the PE of `map` sees at `address`, as text.
std::string place_text(const MemoryMap& map, std::size_t owner, std::uint64_t offset) {
  const std::string whose = map.group == 0 ? fmt::format("PE {}", map.pes[owner])
                                           : fmt::format("rank {} (PE {})", owner, map.pes[owner]);
  return fmt::format("{}, in {} of {} of world {:016x}, as PE {} (pid {}) sees it",
                     describe_offset(map, offset), name_of(map), whose, map.world, map.pe, map.pid);
}

}  // namespace

std::string describe_offset(const MemoryMap& map, std::uint64_t offset) {
  if (offset >= map.bytes) return fmt::format("offset {} beyond {} bytes", offset, map.bytes);
  for (const MemoryRegion& region : map.regions) {
    if (offset < region.offset || offset - region.offset >= region.bytes) continue;
    std::uint64_t rest = offset - region.offset, element = region.bytes;
    std::string text = region.name + ":";
    for (const MemoryDimension& dimension : region.dimensions) {
      text += fmt::format(" {} {},", dimension.name, rest / dimension.stride);
      rest %= dimension.stride;
      element = dimension.stride;
    }
    return text + fmt::format(" byte {} of {}", rest, element);
  }
  return fmt::format("unused, byte {} of {}", offset, map.bytes);
}

std::vector<std::string> locate_address(const std::vector<MemoryMap>& maps, std::uint64_t address) {
  std::vector<std::string> found;
  for (const MemoryMap& map : maps)
    for (std::size_t owner = 0; owner < std::min(map.pes.size(), map.addresses.size()); ++owner) {
      const std::uint64_t start = map.addresses[owner];
      if (start != 0 && address >= start && address - start < map.bytes)
        found.push_back(place_text(map, owner, address - start));
    }
  return found;
}

std::vector<std::string> locate_offset(const std::vector<MemoryMap>& maps, std::uint64_t offset) {
  std::vector<std::string> found;
  for (const MemoryMap& map : maps) {
    if (map.memory != "heap" || offset < map.offset || offset - map.offset >= map.bytes) continue;
    std::string text =
        fmt::format("{}, in {} of world {:016x}", describe_offset(map, offset - map.offset),
                    name_of(map), map.world);
    // The PEs of a world agree.
    if (std::find(found.begin(), found.end(), text) == found.end()) found.push_back(text);
  }
  return found;
}

std::string to_text(const MemoryMap& map) {
  fmt::memory_buffer to;
  const auto out = std::back_inserter(to);
  fmt::format_to(out, "world {:016x}, PE {} (pid {}), {}: {} bytes at offset {} of the {}\n",
                 map.world, map.pe, map.pid, name_of(map), map.bytes, map.offset, map.memory);
  for (std::size_t i = 0; i < std::min(map.pes.size(), map.addresses.size()); ++i)
    if (map.addresses[i] != 0)
      fmt::format_to(out, "  of PE {} at {:#x}\n", map.pes[i], map.addresses[i]);
  fmt::format_to(out, "  {:>14}  {:>14}  region\n", "offset", "bytes");
  for (const MemoryRegion& region : map.regions)
    fmt::format_to(out, "  {:>14}  {:>14}  {}{}\n", region.offset, region.bytes, region.name,
                   dimensions_text(region));
  return fmt::to_string(to);
}

std::string to_json(const MemoryMap& map) {
  nlohmann::json document = map;
  document["shoal_memory"] = 1;
  document["world"] = fmt::format("{:016x}", map.world);
  return document.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace shoal::observe
