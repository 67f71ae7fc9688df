// SPDX-License-Identifier: Apache-2.0
// cursor.hpp: lays out arrays one after another in a block of memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/checked.hpp"

namespace shoal::ep::detail {

/// Hands out consecutive parts of a block, as offsets. Throws Error{invalid_argument} when an
/// offset exceeds 64 bits.
struct Cursor {
  static constexpr std::size_t kAlignment = 128;              ///< bytes
  static constexpr const char* kOption = "ep::GroupOptions";  ///< sizes follow from it

  std::size_t at = 0;

  std::size_t take(std::size_t bytes, std::size_t alignment = kAlignment) {
    const std::size_t start = aligned(alignment);
    at = checked_add(kOption, start, bytes);
    return start;
  }
  /// The end of the parts so far, rounded up.
  std::size_t aligned(std::size_t alignment) const {
    return checked_align_up(kOption, at, alignment);
  }
};

/// Hands out consecutive arrays of a block. With a null block it only counts.
class ArrayCursor {
 public:
  explicit ArrayCursor(void* block) : block_(block) {}

  template <typename T>
  T* take(std::size_t count) {
    return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(block_) +
                                cursor_.take(checked_mul(Cursor::kOption, count, sizeof(T))));
  }
  /// Size of the arrays so far, padded so that blocks of this size can lie one after another.
  std::size_t bytes() const { return cursor_.aligned(Cursor::kAlignment); }

 private:
  void* block_;
  Cursor cursor_;
};

}  // namespace shoal::ep::detail
