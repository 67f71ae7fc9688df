// SPDX-License-Identifier: Apache-2.0
// The symmetric heap.
#include "nvshmem/define.hpp"
#include "shmem/allocation.hpp"

using namespace shoal::nvshmem;

namespace {

/// Returns NVSHMEMX_ERROR_INVALID_VALUE where `change` refuses its argument.
template <typename Change>
int changed(Change&& change) {
  try {
    change();
    return NVSHMEMX_SUCCESS;
  } catch (const shoal::Error& error) {
    if (error.code() != shoal::Code::invalid_argument) throw;
    return NVSHMEMX_ERROR_INVALID_VALUE;
  }
}

}  // namespace

NVSHMEM_DEFINE(void*, malloc, (size_t size)) {
  return guarded("nvshmem_malloc",
                 [&](Program& program) { return shoal::shmem::allocate(program.world, size); });
}
NVSHMEM_DEFINE(void*, calloc, (size_t count, size_t size)) {
  return guarded("nvshmem_calloc", [&](Program& program) {
    return shoal::shmem::allocate_zeros(program.world, count, size);
  });
}
NVSHMEM_DEFINE(void*, align, (size_t alignment, size_t size)) {
  return guarded("nvshmem_align", [&](Program& program) {
    return shoal::shmem::allocate_aligned(program.world, alignment, size);
  });
}
NVSHMEM_DEFINE(void, free, (void* pointer)) {
  guarded("nvshmem_free", [&](Program& program) { program.world.heap().free(pointer); });
}

NVSHMEM_DEFINE(void*, ptr, (const void* dest, int pe)) {
  return guarded("nvshmem_ptr", [&](Program& program) -> void* {
    program.check_pe(pe);
    if (!program.is_symmetric(dest)) return nullptr;
    return program.world.heap().peer_pointer(dest, pe);
  });
}
NVSHMEMX_DEFINE(void*, mc_ptr, (nvshmem_team_t, const void*)) {
  return nullptr;
}

NVSHMEMX_DEFINE(int, buffer_register, (void* pointer, size_t bytes)) {
  return guarded("nvshmemx_buffer_register", [&](Program& program) {
    const std::lock_guard lock(program.mutex);
    return changed([&] {
      program.world.heap().register_buffer(pointer, bytes);
      program.buffers.insert(pointer);
    });
  });
}
NVSHMEMX_DEFINE(int, buffer_unregister, (void* pointer)) {
  return guarded("nvshmemx_buffer_unregister", [&](Program& program) {
    const std::lock_guard lock(program.mutex);
    return changed([&] {
      program.world.heap().unregister_buffer(pointer);
      program.buffers.erase(pointer);
    });
  });
}
NVSHMEMX_DEFINE(void, buffer_unregister_all, ()) {
  guarded("nvshmemx_buffer_unregister_all", [&](Program& program) {
    const std::lock_guard lock(program.mutex);
    for (void* const pointer : program.buffers) program.world.heap().unregister_buffer(pointer);
    program.buffers.clear();
  });
}
NVSHMEMX_DEFINE(void*, buffer_register_symmetric, (void*, size_t, int)) {
  return nullptr;
}
NVSHMEMX_DEFINE(int, buffer_unregister_symmetric, (void*, size_t)) {
  return NVSHMEMX_ERROR_INVALID_VALUE;
}
