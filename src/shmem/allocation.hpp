// SPDX-License-Identifier: Apache-2.0
// allocation.hpp: how the standard C APIs allocate in a symmetric heap, for OpenSHMEM and NVSHMEM.
// A call completes the operations of this PE, then synchronizes all PEs: the barrier that the
// standards ask for. It returns nullptr for 0 bytes, at once, and where the heap has no room, which
// all PEs find alike.
#pragma once

#include <bit>
#include <cstddef>

#include "base/check.hpp"
#include "pe/memory.hpp"
#include "shmem/ending.hpp"
#include "shoal/world.hpp"

namespace shoal::shmem {

/// Result of `allocate`.
template <typename Allocate>
void* allocated(World& world, std::size_t bytes, Allocate&& allocate) {
  if (bytes == 0) return nullptr;
  world.quiet();
  try {
    return allocate();
  } catch (const Error& error) {
    if (error.code() != Code::exhausted) throw;
    return nullptr;
  }
}

inline void* allocate(World& world, std::size_t size) {
  return allocated(world, size, [&] { return world.heap().malloc(size); });
}

inline void* allocate_zeros(World& world, std::size_t count, std::size_t size) {
  return allocated(world, bytes_of(count, size), [&] { return world.heap().calloc(count, size); });
}

/// Returns nullptr, at once, for alignments that no block can have: no power of two, or above that
/// of the heap. Programs of other libraries ask for such and expect an answer.
inline void* allocate_aligned(World& world, std::size_t alignment, std::size_t size) {
  if (!std::has_single_bit(alignment) || alignment > memory::Segment::kAlignment) return nullptr;
  return allocated(world, size, [&] { return world.heap().align(alignment, size); });
}

}  // namespace shoal::shmem
