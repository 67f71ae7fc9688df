// SPDX-License-Identifier: Apache-2.0
// cursor.hpp: lays out arrays one after another in a block of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/plan/layout.hpp"

namespace shoal::ep::detail {

/// Hands out consecutive parts of a block, as offsets.
struct Cursor {
  static constexpr std::size_t kAlignment = 128;

  std::size_t at = 0;

  std::size_t take(std::size_t bytes, std::size_t alignment = kAlignment) {
    const std::size_t start = align_up(at, alignment);
    at = start + bytes;
    return start;
  }
};

/// Hands out consecutive arrays of a block. With a null block it only counts.
class ArrayCursor {
 public:
  explicit ArrayCursor(void* block) : block_(block) {}

  template <typename T>
  T* take(std::size_t count) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(block_) +
                                cursor_.take(count * sizeof(T)));
  }
  /// So far; padded, so that blocks of this size can lie one after another.
  std::size_t bytes() const { return align_up(cursor_.at, Cursor::kAlignment); }

 private:
  void* block_;
  Cursor cursor_;
};

}  // namespace shoal::ep::detail
