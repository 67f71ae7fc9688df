// SPDX-License-Identifier: Apache-2.0
// arena.hpp: regions of the receive area, taken when a dispatch starts and returned when its result
// goes.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "base/align.hpp"

namespace shoal::ep::detail {

/// First-fit allocation in [0, size), in pages. A region is taken at the largest size it may need
/// and shrunk once the real one is known. Any thread may call: results are released wherever their
/// last owner goes.
///
/// A tight arena has room for exactly `most` regions of the largest size, 1 or 2, and refuses more:
/// regions lie at its two ends, so that what is held never cuts the rest in two. Others need (2 n -
/// 1) times the largest size to promise room for n: with n - 1 held, of any sizes and wherever they
/// lie, one gap of the largest size is left.
class Arena {
 public:
  /// Tight for `results` of 1 or 2; 0: not tight.
  explicit Arena(std::size_t size, std::size_t results = 0)
      : size_(size), most_(results <= kTightest ? results : 0) {}

  /// Bytes in which `results` results of at most `largest` bytes can be held, where memory is worth
  /// saving.
  static std::size_t bytes_for(std::size_t results, std::size_t largest) {
    return (results <= kTightest ? results : 2 * results - 1) * pages(largest);
  }

  /// Offset of the lowest gap of `bytes` bytes; nullopt when there is none.
  std::optional<std::size_t> take(std::size_t bytes) {
    bytes = pages(bytes);
    std::lock_guard lock(mutex_);
    if (most_ != 0) return take_end(bytes);
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
  static constexpr std::size_t kTightest = 2;

  std::optional<std::size_t> take_end(std::size_t bytes) {
    if (regions_.size() >= most_ || bytes > size_) return std::nullopt;
    const auto fits = [&](std::size_t at) {
      for (const auto& [start, length] : regions_)
        if (at < start + length && start < at + bytes) return false;
      return true;
    };
    for (const std::size_t at : {std::size_t{0}, size_ - bytes})
      if (fits(at)) return regions_.emplace(at, bytes), at;
    return std::nullopt;
  }

  /// At least one page, so that no two regions start at the same offset.
  static std::size_t pages(std::size_t bytes) {
    return bytes <= kPage ? kPage : align_up(bytes, kPage);
  }

  static constexpr std::size_t kPage = kPageBytes;
  const std::size_t size_;
  const std::size_t most_;  // 0: as many as there is room for
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> regions_;  // offset to length
};

}  // namespace shoal::ep::detail
