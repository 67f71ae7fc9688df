// SPDX-License-Identifier: Apache-2.0
#include "memory/allocator.hpp"

#include <algorithm>

#include "base/align.hpp"

namespace shoal::memory {

Allocator::Allocator(std::size_t size) : size_(size & ~(kMinimumAlignment - 1)) {
  if (size_ != 0) insert_free(0, size_);
}

void Allocator::insert_free(std::size_t offset, std::size_t bytes) {
  free_by_offset_.emplace(offset, bytes);
  free_by_size_.emplace(bytes, offset);
}

void Allocator::erase_free(std::size_t offset, std::size_t bytes) {
  free_by_offset_.erase(offset);
  free_by_size_.erase({bytes, offset});
}

std::optional<std::size_t> Allocator::allocate(std::size_t bytes, std::size_t alignment) {
  if (bytes == 0 || bytes > size_) return std::nullopt;  // also keeps the rounding from overflowing
  bytes = align_up(bytes, kMinimumAlignment);
  alignment = std::max(alignment, kMinimumAlignment);
  for (auto block = free_by_size_.lower_bound({bytes, 0}); block != free_by_size_.end(); ++block) {
    const auto [block_bytes, block_offset] = *block;
    const std::size_t offset = align_up(block_offset, alignment);
    const std::size_t gap = offset - block_offset;
    if (gap > block_bytes || block_bytes - gap < bytes) continue;
    erase_free(block_offset, block_bytes);
    if (gap != 0) insert_free(block_offset, gap);
    if (const std::size_t rest = block_bytes - gap - bytes; rest != 0)
      insert_free(offset + bytes, rest);
    used_blocks_.emplace(offset, bytes);
    used_ += bytes;
    high_water_ = std::max(high_water_, offset + bytes);
    return offset;
  }
  return std::nullopt;
}

bool Allocator::release(std::size_t offset) {
  const auto block = used_blocks_.find(offset);
  if (block == used_blocks_.end()) return false;
  std::size_t begin = offset;
  std::size_t end = offset + block->second;
  used_ -= block->second;
  used_blocks_.erase(block);
  if (const auto next = free_by_offset_.find(end); next != free_by_offset_.end()) {
    const auto [next_offset, next_bytes] = *next;
    end += next_bytes;
    erase_free(next_offset, next_bytes);
  }
  if (auto previous = free_by_offset_.lower_bound(begin); previous != free_by_offset_.begin()) {
    const auto [previous_offset, previous_bytes] = *--previous;
    if (previous_offset + previous_bytes == begin) {
      begin = previous_offset;
      erase_free(previous_offset, previous_bytes);
    }
  }
  insert_free(begin, end - begin);
  return true;
}

std::size_t Allocator::size_of(std::size_t offset) const {
  const auto block = used_blocks_.find(offset);
  return block == used_blocks_.end() ? 0 : block->second;
}

std::size_t Allocator::largest_free() const {
  return free_by_size_.empty() ? 0 : free_by_size_.rbegin()->first;
}

}  // namespace shoal::memory
