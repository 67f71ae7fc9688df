// SPDX-License-Identifier: Apache-2.0
// arena.hpp: allocates regions of the receive area, each from the start of a dispatch until its
// result is released.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/align.hpp"
#include "base/checked.hpp"

namespace shoal::ep::detail {

/// First-fit allocation in [0, size), in pages. A region is taken at the largest size that it may
/// need and shrunk once its size is known. Any thread may call: a result is released by the thread
/// that drops its last owner.
///
/// A tight arena holds exactly `results` regions of the largest size, 1 or 2, and refuses more. Its
/// regions lie at its two ends, so that a held region never splits the free space. A tight arena
/// for one result can have room for a transient region besides, which lies in the lowest gap.
///
/// A first-fit arena for n results needs (2 n - 1) times the largest size: with n - 1 regions held,
/// of any sizes and at any offsets, one gap of the largest size remains.
///
/// Every replay of a CUDA graph writes to the regions of the dispatches that it captured, also when
/// their results have been released. The arena keeps such regions until the graph is gone: only
/// other captured results and transient ones (DispatchOptions::transient) may lie there.
class Arena {
 public:
  /// `results`: tight if 1 or 2; else first fit. `transient`: regions for which a tight arena has
  /// room next to them, 1 only with a single result.
  explicit Arena(std::size_t size, std::size_t results = 0, std::size_t transient = 0) {
    reset(size, results, transient);
  }

  /// Another size, while no region is taken.
  void reset(std::size_t size, std::size_t results, std::size_t transient) {
    std::lock_guard lock(mutex_);
    size_ = size;
    most_ = results <= kTightest ? results : 0;
    most_transient_ = transient;
  }

  /// Bytes of an arena (size, results) for regions of at most `largest` bytes. Throws
  /// Error{invalid_argument} when they exceed 64 bits.
  static std::size_t bytes_for(std::size_t results, std::size_t largest) {
    return results <= kTightest ? checked_mul(kOption, results, pages(largest))
                                : first_fit_bytes_for(results, largest);
  }
  /// Bytes of a first-fit arena for so many regions, also for 1 or 2.
  static std::size_t first_fit_bytes_for(std::size_t results, std::size_t largest) {
    return checked_mul(kOption, 2 * results - 1, pages(largest));
  }

  /// Offset of the lowest gap of `bytes` bytes; nullopt when there is none. `graph`: the number of
  /// the graph for which the region is kept until forget(graph); 0: none. Captured and transient
  /// regions lie where graphs write, if there is room.
  std::optional<std::size_t> take(std::size_t bytes, std::uint64_t graph = 0,
                                  bool transient = false) {
    bytes = pages(bytes);
    std::lock_guard lock(mutex_);
    if (is_full(transient)) return std::nullopt;
    const bool shares = transient || graph != 0,
               at_end = most_ != 0 && !(transient && most_transient_ != 0);
    std::optional<std::size_t> at;
    if (shares && (transient || most_transient_ == 0)) at = shared_place(bytes);
    if (!at) at = at_end ? end_place(bytes, shares) : gap(bytes, shares);
    return taken(at, {bytes, transient}, graph);
  }
  /// Like take, for a captured result that may be held for long: no other graph writes to it, and
  /// room remains where no graph writes. Only the first graph gets such a place.
  std::optional<std::size_t> take_apart(std::size_t bytes, std::uint64_t graph) {
    bytes = pages(bytes);
    std::lock_guard lock(mutex_);
    if (is_full(false)) return std::nullopt;
    if (!std::all_of(kept_.begin(), kept_.end(),
                     [&](const Kept& kept) { return kept.graph == graph; }))
      return std::nullopt;
    std::optional<std::size_t> at;
    if (!kept_.empty())
      at = most_transient_ == 0 ? shared_place(bytes) : end_place(bytes, true);
    else
      at = most_ != 0 ? end_place(bytes, false) : gap(bytes, false);
    return taken(at, {bytes, false}, graph);
  }
  /// No instance of the graph exists any more.
  void forget(std::uint64_t graph) {
    std::lock_guard lock(mutex_);
    std::erase_if(kept_, [&](const Kept& kept) { return kept.graph == graph; });
  }
  void shrink(std::size_t offset, std::size_t bytes) {
    std::lock_guard lock(mutex_);
    regions_.at(offset).length = pages(bytes);
  }
  void release(std::size_t offset) {
    std::lock_guard lock(mutex_);
    regions_.erase(offset);
  }
  /// The number of results that are held.
  std::size_t regions() const {
    std::lock_guard lock(mutex_);
    return regions_.size();
  }
  /// False if graphs leave a tight arena no room for a plain result of any size. A first-fit one
  /// is not asked.
  bool has_plain_room() const {
    std::lock_guard lock(mutex_);
    if (kept_.empty() || most_ == 0) return true;
    return !is_full(false) && end_place(size_ / (most_ + most_transient_), false).has_value();
  }
  /// True if regions are kept for graphs.
  bool keeps() const {
    std::lock_guard lock(mutex_);
    return !kept_.empty();
  }

 private:
  static constexpr std::size_t kTightest = 2;
  static constexpr const char* kOption = "ep::GroupOptions.live_results";

  struct Held {
    std::size_t length;
    bool transient;
  };
  struct Kept {
    std::uint64_t graph;
    std::size_t offset, length;
    bool operator==(const Kept&) const = default;
  };

  /// True if a tight arena holds as many regions as it may.
  bool is_full(bool transient) const {
    if (most_ == 0) return false;
    if (transient) return regions_.size() >= most_ + most_transient_;
    const auto results = std::count_if(regions_.begin(), regions_.end(), [&](const auto& held) {
      return most_transient_ == 0 || !held.second.transient;
    });
    return static_cast<std::size_t>(results) >= most_;
  }

  /// Takes the region at `at`, if there is one.
  std::optional<std::size_t> taken(std::optional<std::size_t> at, const Held& held,
                                   std::uint64_t graph) {
    if (!at) return std::nullopt;
    regions_.emplace(*at, held);
    const Kept kept{graph, *at, held.length};
    if (graph != 0 && std::find(kept_.begin(), kept_.end(), kept) == kept_.end())
      kept_.push_back(kept);
    return at;
  }

  /// True if [at, at + bytes) is free; a region that shares may overlap those kept for graphs.
  bool fits(std::size_t at, std::size_t bytes, bool shares) const {
    if (at > size_ || bytes > size_ - at) return false;
    const auto apart = [&](std::size_t start, std::size_t length) {
      return at >= start + length || start >= at + bytes;
    };
    return std::all_of(regions_.begin(), regions_.end(),
                       [&](const auto& held) { return apart(held.first, held.second.length); }) &&
           (shares || std::all_of(kept_.begin(), kept_.end(), [&](const Kept& kept) {
              return apart(kept.offset, kept.length);
            }));
  }

  /// A place that overlaps a region which is kept for a graph.
  std::optional<std::size_t> shared_place(std::size_t bytes) const {
    for (const Kept& kept : kept_) {
      const std::size_t end = kept.offset + kept.length;
      if (fits(kept.offset, bytes, true)) return kept.offset;
      if (end >= bytes && fits(end - bytes, bytes, true)) return end - bytes;
    }
    return std::nullopt;
  }

  std::optional<std::size_t> end_place(std::size_t bytes, bool shares) const {
    if (bytes > size_) return std::nullopt;
    for (const std::size_t at : {std::size_t{0}, size_ - bytes})
      if (fits(at, bytes, shares)) return at;
    return std::nullopt;
  }

  std::optional<std::size_t> gap(std::size_t bytes, bool shares) const {
    if (fits(0, bytes, shares)) return 0;
    std::optional<std::size_t> lowest;  // a gap begins where a region ends
    const auto after = [&](std::size_t end) {
      if ((!lowest || end < *lowest) && fits(end, bytes, shares)) lowest = end;
    };
    for (const auto& [start, held] : regions_) after(start + held.length);
    for (const Kept& kept : kept_) after(kept.offset + kept.length);
    return lowest;
  }

  /// At least one page, so that no two regions start at the same offset.
  static std::size_t pages(std::size_t bytes) {
    return bytes <= kPageBytes ? kPageBytes : checked_align_up(kOption, bytes, kPageBytes);
  }

  std::size_t size_ = 0;
  std::size_t most_ = 0;  // 0: as many as there is room for
  std::size_t most_transient_ = 0;
  mutable std::mutex mutex_;
  std::map<std::size_t, Held> regions_;  // by offset
  std::vector<Kept> kept_;               // they may overlap
};

}  // namespace shoal::ep::detail
