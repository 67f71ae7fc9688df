// SPDX-License-Identifier: Apache-2.0
// registered_buffers.hpp: user buffers that transports may use directly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace shoal::memory {

/// Disjoint ranges of private memory.
class RegisteredBuffers {
 public:
  /// Throws Error{invalid_argument} if the range is empty, wraps around or overlaps a registered
  /// one.
  void add(const void* pointer, std::size_t bytes);
  /// Throws Error{invalid_argument} if no range starts at `pointer`.
  void remove(const void* pointer);
  /// True if one registered range holds all `bytes` bytes.
  bool contains(const void* pointer, std::size_t bytes) const noexcept;
  std::size_t count() const noexcept { return ranges_.size(); }

 private:
  std::map<std::uintptr_t, std::size_t> ranges_;  // start -> bytes
};

}  // namespace shoal::memory
