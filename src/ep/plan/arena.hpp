// SPDX-License-Identifier: Apache-2.0
// arena.hpp: allocates regions of the receive area, each from the start of a dispatch until its
// result is released.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>

#include "base/align.hpp"
#include "base/checked.hpp"

namespace shoal::ep::detail {

/// First-fit allocation in [0, size), in pages. A region is taken at the largest size that it may
/// need and shrunk once its size is known. Any thread may call: a result is released by the thread
/// that drops its last owner.
///
/// A tight arena holds exactly `results` regions of the largest size, 1 or 2, and refuses more. Its
/// regions lie at its two ends, so that a held region never splits the free space. A first-fit
/// arena for n results needs (2 n - 1) times the largest size: with n - 1 regions held, of any
/// sizes and at any offsets, one gap of the largest size remains.
class Arena {
 public:
  /// Tight if `results` is 1 or 2; else first fit.
  explicit Arena(std::size_t size, std::size_t results = 0)
      : size_(size), most_(results <= kTightest ? results : 0) {}

  /// Another size, while no region is taken.
  void reset(std::size_t size, std::size_t results) {
    std::lock_guard lock(mutex_);
    size_ = size;
    most_ = results <= kTightest ? results : 0;
  }

  /// Bytes of an arena (size, results) for regions of at most `largest` bytes. Throws
  /// Error{invalid_argument} when they exceed 64 bits.
  static std::size_t bytes_for(std::size_t results, std::size_t largest) {
    return results <= kTightest ? checked_mul(kOption, results, pages(largest))
                                : first_fit_bytes_for(results, largest);
  }
  /// The same for a first-fit arena, whatever `results`.
  static std::size_t first_fit_bytes_for(std::size_t results, std::size_t largest) {
    return checked_mul(kOption, 2 * results - 1, pages(largest));
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
  static constexpr const char* kOption = "ep::GroupOptions.live_results";

  std::optional<std::size_t> take_end(std::size_t bytes) {
    if (regions_.size() >= most_ || bytes > size_) return std::nullopt;
    const auto fits = [&](std::size_t at) {
      for (const auto& [start, length] : regions_)
        if (at < start + length && start < at + bytes) return false;
      return true;
    };
    for (const std::size_t at : {std::size_t{0}, size_ - bytes}) {
      if (!fits(at)) continue;
      regions_.emplace(at, bytes);
      return at;
    }
    return std::nullopt;
  }

  /// At least one page, so that no two regions start at the same offset.
  static std::size_t pages(std::size_t bytes) {
    return bytes <= kPageBytes ? kPageBytes : checked_align_up(kOption, bytes, kPageBytes);
  }

  std::size_t size_;
  std::size_t most_;  // 0: as many as there is room for
  mutable std::mutex mutex_;
  std::map<std::size_t, std::size_t> regions_;  // offset to length
};

}  // namespace shoal::ep::detail
