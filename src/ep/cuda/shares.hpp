// SPDX-License-Identifier: Apache-2.0
// shares.hpp: buffers that members share (SymmetricHeap::share_buffer), as the kernels of a group
// find them.
#pragma once

#include <memory>

#include "ep/cuda/normal/kernels.cuh"
#include "ep/state.hpp"
#include "world/memory/shared_buffers.hpp"

namespace shoal::ep::cuda {

/// Entries for all members in host memory that the GPU reads: nothing has to be copied or ordered
/// when they change, nor while a stream is captured, and a graph that is replayed finds them where
/// they were.
///
/// Of numbers that share an entry the smallest one in use has it, on all members alike; the owner
/// of another one does as if it were not shared. So an entry changes only after its buffer is no
/// longer shared, when no kernel reads it.
class ShareTable {
 public:
  explicit ShareTable(const detail::GroupState& state);

  /// Takes up what has been shared and unshared since the last time. Before `find` and every launch
  /// that reads entries.
  void refresh();
  /// The shared range of this PE around [pointer, pointer + bytes), one that every member finds
  /// here; else id 0.
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
