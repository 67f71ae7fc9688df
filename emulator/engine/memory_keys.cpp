// SPDX-License-Identifier: Apache-2.0
#include "engine/memory_keys.hpp"

namespace shoal::emulator {

std::uint32_t MemoryKeys::create(const KeyAttributes& attributes) {
  if (keys_.size() >= limit_) return 0;
  std::uint32_t index = next_;
  if (free_.empty()) {
    ++next_;
  } else {
    index = free_.back();
    free_.pop_back();
  }
  keys_[index] = attributes;
  return index << 8 | attributes.variant;
}

bool MemoryKeys::destroy(std::uint32_t key) {
  if (find(key) == nullptr) return false;
  keys_.erase(key >> 8);
  free_.insert(free_.begin(), key >> 8);  // reused last, so that stale keys are noticed
  return true;
}

const KeyAttributes* MemoryKeys::find(std::uint32_t key) const {
  const auto at = keys_.find(key >> 8);
  if (at == keys_.end() || at->second.variant != (key & 0xff)) return nullptr;
  return &at->second;
}

std::byte* MemoryKeys::translate(std::uint32_t key, std::uint32_t domain, std::uint64_t address,
                                 std::uint64_t length, std::uint32_t access) const {
  const KeyAttributes* const region = find(key);
  if (region == nullptr || region->domain != domain || (region->access & access) != access)
    return nullptr;
  const std::uint64_t offset = address - region->address;  // wraps below the region
  if (offset > region->length || length > region->length - offset) return nullptr;
  return region->memory + offset;
}

}  // namespace shoal::emulator
