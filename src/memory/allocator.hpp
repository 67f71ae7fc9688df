// SPDX-License-Identifier: Apache-2.0
// allocator.hpp: which bytes of the symmetric heap are in use.
//
// Keeps its data outside the heap, so a stray store into the heap cannot damage it. Deterministic:
// the same calls give the same offsets on every PE, which makes the heap symmetric.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace shoal::memory {

/// Best fit (lowest offset among equals) with coalescing. allocate and release take O(log n) for
/// alignments up to kMinimumAlignment; larger alignments may search more blocks.
class Allocator {
 public:
  /// Two cache lines: neighbouring allocations share neither a line nor the pair of lines that the
  /// prefetcher loads together.
  static constexpr std::size_t kMinimumAlignment = 128;

  /// Manages offsets 0 .. size - 1; size is rounded down to kMinimumAlignment.
  explicit Allocator(std::size_t size);

  /// Offset of a new block of at least `bytes` bytes (not 0), a multiple of `alignment` (a power of
  /// two); nullopt when none fits.
  std::optional<std::size_t> allocate(std::size_t bytes, std::size_t alignment = kMinimumAlignment);

  /// Returns the block at `offset`. False, with nothing changed, when allocate did not return this
  /// offset or it was released since.
  bool release(std::size_t offset);

  /// Reserved size of the block at `offset`; 0 if there is none.
  std::size_t size_of(std::size_t offset) const;

  std::size_t size() const noexcept { return size_; }
  std::size_t used() const noexcept { return used_; }
  std::size_t free() const noexcept { return size_ - used_; }
  std::size_t largest_free() const;
  std::size_t blocks() const noexcept { return used_blocks_.size(); }

  /// End of the highest block ever allocated: bytes from here on were never used.
  std::size_t high_water() const noexcept { return high_water_; }

 private:
  void insert_free(std::size_t offset, std::size_t bytes);
  void erase_free(std::size_t offset, std::size_t bytes);

  std::size_t size_;
  std::size_t used_ = 0;
  std::size_t high_water_ = 0;
  std::map<std::size_t, std::size_t> used_blocks_;     // offset -> bytes
  std::map<std::size_t, std::size_t> free_by_offset_;  // offset -> bytes; no two are adjacent
  // (bytes, offset) of the same blocks.
  std::set<std::pair<std::size_t, std::size_t>> free_by_size_;
};

}  // namespace shoal::memory
