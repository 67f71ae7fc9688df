// SPDX-License-Identifier: Apache-2.0
// The symmetric heap.
#include <algorithm>
#include <cstring>

#include "pe/memory.hpp"
#include "shmem/allocation.hpp"
#include "shmem/define.hpp"

using namespace shoal::shmem;

namespace {

void* reallocate(Program& program, void* block, std::size_t size) {
  shoal::SymmetricHeap& heap = program.world.heap();
  if (block == nullptr) return allocate(program.world, size);
  if (size == 0) {
    heap.free(block);
    return nullptr;
  }
  const std::size_t before =
      heap.contains(block) ? program.core.memory().heap().size_of(heap.offset_of(block)) : 0;
  shoal::require(
      before != 0, shoal::Code::invalid_argument,
      "SHOAL-N833: block is {}; allowed: NULL, or what shmem_malloc, shmem_calloc, shmem_align or "
      "shmem_realloc returned and was not freed",
      block);
  // The old block may be the target of operations up to the barrier.
  shoal::barrier(program.all.team);
  void* const grown = allocate(program.world, size);
  if (grown == nullptr) return nullptr;
  std::memcpy(grown, block, std::min(before, size));
  heap.free(block);
  return grown;
}

}  // namespace

SHMEM_DEFINE(void*, malloc, (size_t size)) {
  return guarded("shmem_malloc", [&](Program& program) { return allocate(program.world, size); });
}

// Hints only optimize: those of other libraries are ignored like the known ones.
SHMEM_DEFINE(void*, malloc_with_hints, (size_t size, long)) {
  return guarded("shmem_malloc_with_hints",
                 [&](Program& program) { return allocate(program.world, size); });
}

SHMEM_DEFINE(void*, calloc, (size_t count, size_t size)) {
  return guarded("shmem_calloc",
                 [&](Program& program) { return allocate_zeros(program.world, count, size); });
}

SHMEM_DEFINE(void*, align, (size_t alignment, size_t size)) {
  return guarded("shmem_align", [&](Program& program) {
    return allocate_aligned(program.world, alignment, size);
  });
}

SHMEM_DEFINE(void*, realloc, (void* block, size_t size)) {
  return guarded("shmem_realloc",
                 [&](Program& program) { return reallocate(program, block, size); });
}

SHMEM_DEFINE(void, free, (void* block)) {
  guarded("shmem_free", [&](Program& program) { program.world.heap().free(block); });
}
