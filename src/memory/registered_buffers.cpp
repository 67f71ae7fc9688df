// SPDX-License-Identifier: Apache-2.0
#include "memory/registered_buffers.hpp"

#include <iterator>
#include <limits>

#include "base/check.hpp"

namespace shoal::memory {
namespace {

std::uintptr_t address(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace

void RegisteredBuffers::add(const void* pointer, std::size_t bytes) {
  const std::uintptr_t start = address(pointer);
  require(pointer != nullptr && bytes != 0, Code::invalid_argument,
          "SHOAL-N750: register_buffer of {} bytes at {}; a buffer is not empty", bytes, pointer);
  require(bytes - 1 <= std::numeric_limits<std::uintptr_t>::max() - start, Code::invalid_argument,
          "SHOAL-N750: register_buffer of {} bytes at {} leaves the address space", bytes, pointer);
  const auto next = ranges_.upper_bound(start + (bytes - 1));
  if (next != ranges_.begin()) {
    const auto [other, other_bytes] = *std::prev(next);
    require(other + other_bytes <= start, Code::invalid_argument,
            "SHOAL-N751: register_buffer of {} bytes at {} overlaps the {} bytes registered at {}; "
            "unregister those first",
            bytes, pointer, other_bytes, reinterpret_cast<const void*>(other));
  }
  ranges_.emplace(start, bytes);
}

void RegisteredBuffers::remove(const void* pointer) {
  require(ranges_.erase(address(pointer)) == 1, Code::invalid_argument,
          "SHOAL-N752: unregister_buffer of {}, where no registered buffer starts", pointer);
}

bool RegisteredBuffers::contains(const void* pointer, std::size_t bytes) const noexcept {
  const auto next = ranges_.upper_bound(address(pointer));
  if (next == ranges_.begin()) return false;
  const auto [start, size] = *std::prev(next);
  const std::size_t skipped = address(pointer) - start;
  return skipped < size && bytes <= size - skipped;
}

}  // namespace shoal::memory
