// SPDX-License-Identifier: Apache-2.0
// heap_arrays.hpp: which arrays of the heap (SymmetricHeap::allocate) the PEs no longer use.
//
// The destructor of an array sets a flag and nothing else, on any thread, also in a forked child.
// Each heap call exchanges the numbers of the arrays that a PE has dropped since its last call. A
// PE names a number once, so a call without new ones costs nothing; what all PEs have named is
// released on all of them at the same call.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

namespace shoal::detail {

class HeapArrays {
 public:
  /// Set when the array of this PE is destroyed.
  using Dropped = std::atomic<bool>;

  /// Numbers that one PE passes in one exchange.
  struct Block {
    static constexpr std::size_t kMost = 16;
    std::uint64_t count = 0;
    std::uint64_t more = 0;  ///< 1: this PE has further numbers for another exchange
    std::array<std::uint64_t, kMost> numbers{};
  };

  /// Counts a block that all PEs have allocated, so that its number is the same on all of them.
  void count_allocation() noexcept { ++last_; }
  /// Adds the block counted last as an array.
  std::shared_ptr<Dropped> add(std::size_t offset) {
    auto dropped = std::make_shared<Dropped>(false);
    arrays_[last_] = {offset, dropped, false, 0};
    return dropped;
  }
  /// Removes the array at `offset`, which is freed explicitly.
  void remove(std::size_t offset) {
    std::erase_if(arrays_, [&](const auto& one) { return one.second.offset == offset; });
  }
  /// The lowest numbers of arrays that this PE has dropped and not yet named.
  Block unnamed() const {
    Block block;
    for (const auto& [number, array] : arrays_) {
      if (array.named || !array.dropped->load(std::memory_order_acquire)) continue;
      if (block.count == Block::kMost) {
        block.more = 1;
        break;
      }
      block.numbers[block.count++] = number;
    }
    return block;
  }
  /// Takes the blocks of all PEs, by PE. Returns the offsets of the arrays that all of them have
  /// now named; these are removed.
  std::vector<std::size_t> take(std::span<const Block> blocks, std::size_t me) {
    std::vector<std::size_t> released;
    for (std::size_t pe = 0; pe < blocks.size(); ++pe) {
      for (std::size_t i = 0; i < blocks[pe].count; ++i) {
        const auto found = arrays_.find(blocks[pe].numbers[i]);
        if (found == arrays_.end()) continue;  // freed explicitly
        Array& array = found->second;
        array.named |= pe == me;
        if (++array.names < blocks.size()) continue;
        released.push_back(array.offset);
        arrays_.erase(found);
      }
    }
    return released;
  }

 private:
  struct Array {
    std::size_t offset = 0;
    std::shared_ptr<Dropped> dropped;
    bool named = false;     ///< by this PE
    std::size_t names = 0;  ///< PEs that have named it
  };
  std::uint64_t last_ = 0;
  std::map<std::uint64_t, Array> arrays_;
};

}  // namespace shoal::detail
