// SPDX-License-Identifier: Apache-2.0
// blocks.hpp: the symmetric memory of a group, and its return to the heap.
//
// Releasing symmetric memory is collective, and destructors do not communicate. A block that a PE
// drops is therefore offered for release; the next call that is collective over the world releases
// the blocks that every PE has offered.
#pragma once

#include <cstddef>
#include <memory>

#include "world/state.hpp"

namespace shoal::ep::detail {

struct OfferedBlocks;

/// A block of the heap or of staging memory, at the same offset on all PEs. The destructor is
/// local: it offers the block.
class Block {
 public:
  Block() = default;  ///< none
  Block(shoal::detail::WorldState& world, std::size_t offset, bool staging);
  Block(Block&&) noexcept = default;
  Block& operator=(Block&&) noexcept = default;
  ~Block() { offer(); }

  /// Offers the memory for release, as the destructor does. Any thread may call; later calls do
  /// nothing.
  void offer() noexcept;
  /// Releases the memory at once. Collective over the world.
  void release();
  /// Leaves the memory allocated until the world closes: other ranks may still write to it.
  void keep() noexcept { (void)take(); }

 private:
  /// True for the first of all calls of offer, release and keep.
  bool take() noexcept;

  shoal::detail::WorldState* world_ = nullptr;
  std::size_t offset_ = 0;
  bool staging_ = false;
  bool taken_ = false;
  std::shared_ptr<OfferedBlocks> offered_;  ///< of the world; nullptr: no block
};

/// Releases the blocks that all PEs of the world have offered. Collective over the world.
void release_offered_blocks(shoal::detail::WorldState& world);

}  // namespace shoal::ep::detail
