// SPDX-License-Identifier: Apache-2.0
// keys.hpp: memory keys as the NIC on a GPU looks them up. For host and device code; Platform: see
// copy.hpp.
#pragma once

#include "gpu/copy.hpp"
#include "gpu/state.hpp"

namespace shoal::emulator::gpu {

/// Regions in memory of the dispatcher's own, so that requests need no loads to find theirs. Empty
/// again when the host has changed a region.
struct KeyCache {
  static constexpr std::uint32_t kEntries = 32;

  std::uint64_t changes = 0;       ///< NicState::key_changes when it was emptied
  std::uint64_t seen_changes = 0;  ///< as last seen
  const Region* missed = nullptr;  ///< a region that was looked up and is not here
  std::uint32_t missed_entry = 0;
  const Region* at[kEntries] = {};  ///< where the region lies; nullptr: none
  Region regions[kEntries];
};

/// The keys of one NIC, and what is cached of them.
struct Keys {
  KeyTable table;
  KeyCache* cache = nullptr;
};

template <typename Platform>
SHOAL_HOST_DEVICE Region load_region(const Platform& platform, const Region& at) {
  const auto field = [&](const std::uint64_t& of) {
    return platform.template load<std::uint64_t>(reinterpret_cast<const std::byte*>(&of));
  };
  return {field(at.key),     field(at.domain), field(at.access),
          field(at.address), field(at.length), field(at.memory)};
}

/// Region `number` of a table. Lanes may look up different ones together.
template <typename Platform>
SHOAL_HOST_DEVICE Region look_up(const Platform& platform, const Keys& keys, std::uint32_t number) {
  KeyCache& cache = *keys.cache;
  const Region* const at = keys.table.regions + number;
  const std::uint32_t entry = (2 * number + keys.table.number % 2) % KeyCache::kEntries;
  if (cache.at[entry] == at) return cache.regions[entry];
  // Words of two lanes may mix: then a region lies where it is not found.
  cache.missed = at;
  cache.missed_entry = entry;
  return load_region(platform, *at);
}

/// Adds a region that was missed. By one lane.
template <typename Platform>
SHOAL_HOST_DEVICE void add_missed(const Platform& platform, KeyCache& cache) {
  if (cache.missed == nullptr) return;
  cache.regions[cache.missed_entry] = load_region(platform, *cache.missed);
  cache.at[cache.missed_entry] = cache.missed;
  cache.missed = nullptr;
}

/// The bytes of [address, address + length), or nullptr where `key` is unknown, belongs to another
/// domain, lacks one of the rights `access`, or does not cover the range.
template <typename Platform>
SHOAL_HOST_DEVICE std::byte* translate(const Platform& platform, const Keys& keys,
                                       std::uint32_t key, std::uint32_t domain,
                                       std::uint64_t address, std::uint64_t length,
                                       std::uint32_t access) {
  const std::uint32_t number = (key >> 8) - kFirstKey;  // wraps below the first
  if (number >= keys.table.count) return nullptr;
  const Region region = look_up(platform, keys, number);
  if (region.key != key || region.domain != domain || (region.access & access) != access)
    return nullptr;
  const std::uint64_t offset = address - region.address;  // wraps below the region
  if (offset > region.length || length > region.length - offset) return nullptr;
  return reinterpret_cast<std::byte*>(region.memory + offset);
}

}  // namespace shoal::emulator::gpu
