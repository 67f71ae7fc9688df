// SPDX-License-Identifier: Apache-2.0
// shared_ranges.hpp: buffers of the program that all PEs map (SymmetricHeap::share_buffer).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "memory/host/fd_exchange.hpp"
#include "memory/shared_buffers.hpp"
#include "shoal/heap.hpp"

namespace shoal::detail {

/// The ranges that this PE shares, and its mappings of other PEs' ranges. All PEs know a range by
/// the number that its owner gave it; the numbers of one owner only grow.
struct SharedBufferTable {
  struct Own {
    memory::BufferRange range;
    int uses = 0;
    bool everywhere = true;  ///< mapped by every PE that reaches this PE's heap
  };
  std::unique_ptr<memory::SharedBuffers> mappings;
  std::map<std::uint64_t, Own> own;
  std::uint64_t last = 0;  ///< number given last
  std::optional<memory::FdSocket> socket;
};

/// The ranges that PEs share now, at their addresses for this PE's GPU. Separate from the table
/// because any thread may ask, also while another thread is in share_buffer.
class SharedRanges {
 public:
  struct Range {
    std::uint64_t id = 0;       ///< never used again by its owner
    std::byte* base = nullptr;  ///< nullptr where this PE does not map it
  };
  /// A piece of memory of this PE within one of its ranges; id 0: no range that all PEs map
  /// contains it.
  struct Place {
    std::uint64_t id = 0;
    std::uint64_t offset = 0;  ///< from the start of the range
  };

  Place find(const void* pointer, std::size_t bytes) const;
  std::vector<Range> of(Pe pe) const;  ///< in ascending order of id
  /// Changes whenever the result of `of` changes.
  std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

  // For share_buffer, unshare_buffer and the end of the world.
  void add(Pe pe, std::uint64_t id, std::byte* base);
  void add_own(Pe my_pe, std::uint64_t id, const SharedBufferTable::Own& own,
               const memory::SharedBuffers& mappings);
  void remove(Pe pe, std::uint64_t id) noexcept;
  void clear() noexcept;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<Pe, std::uint64_t>, std::byte*> ranges_;
  std::map<std::uint64_t, memory::BufferRange> own_;  // those that all PEs map
  Pe my_pe_ = 0;
  const memory::SharedBuffers* mappings_ = nullptr;
  std::atomic<std::uint64_t> version_ = 0;
};

}  // namespace shoal::detail
