// SPDX-License-Identifier: Apache-2.0
// shares.hpp: the table in which combine kernels find the buffers that ranks share
// (SymmetricHeap::share_buffer).
#pragma once

#include <memory>

#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/group/state.hpp"
#include "pe/shared_ranges.hpp"

namespace shoal::ep::cuda {

/// Entries for all ranks, in host memory that the GPU reads. A change needs neither a copy nor an
/// order on streams, also while a stream is captured, and a replayed graph finds the entries in
/// place.
///
/// Several numbers map to one entry. The smallest one in use has it, on all ranks alike; a buffer
/// with another number is treated as if it were not shared. So an entry changes only when its
/// buffer is no longer shared, and then no kernel reads it.
class ShareTable {
 public:
  explicit ShareTable(const detail::GroupState& state);

  /// Applies all changes since the last call. Called before `find` and before every launch that
  /// reads entries.
  void refresh();
  /// The shared range of this PE that contains [pointer, pointer + bytes), if all ranks have an
  /// entry for it; otherwise id 0.
  shoal::detail::SharedRanges::Place find(const void* pointer, std::size_t bytes) const;
  const SharedRange* entries() const noexcept { return entries_; }

 private:
  const detail::GroupState& state_;
  const shoal::detail::SharedRanges& ranges_;
  std::shared_ptr<void> memory_;
  SharedRange* entries_;
  std::uint64_t version_ = 0;
};

}  // namespace shoal::ep::cuda
