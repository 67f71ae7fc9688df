// arena.hpp: regions of the receive area, taken when a dispatch starts and returned when its result goes.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

namespace shoal::ep::detail {

/// First-fit allocation in [0, size), in pages. A region is taken at the largest size it may need and shrunk once the
/// real one is known. Any thread may call: results are released wherever their last owner goes.
class Arena {
 public:
  explicit Arena(std::size_t size) : size_(size) {}

  /// Offset of the lowest gap of `bytes` bytes; nullopt when there is none.
  std::optional<std::size_t> take(std::size_t bytes) {
    bytes = pages(bytes);
    std::lock_guard lock(mutex_);
    std::size_t at = 0;
    for (const auto& [start, length] : regions_) {
      if (start - at >= bytes) break;
      at = start + length;
    }
    if (size_ < at || size_ - at < bytes) return std::nullopt;
    regions_.emplace(at, bytes);
    return at;
  }
  void shrink(std::size_t offset, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    regions_.at(offset) = pages(bytes);
  }
  void release(std::size_t offset) {
    std::lock_guard lock(mutex_);
    regions_.erase(offset);
  }
  std::size_t regions() const {
    std::lock_guard lock(mutex_);
    return regions_.size();
  }

 private:
  /// At least one page, so that no two regions start at the same offset.
  static std::size_t pages(std::size_t bytes) { return bytes <= kPage ? kPage : (bytes + kPage - 1) / kPage * kPage; }

  static constexpr std::size_t kPage = 4096;
  const std::size_t size_;
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> regions_;  // offset to length
};

}  // namespace shoal::ep::detail
