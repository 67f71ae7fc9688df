// SPDX-License-Identifier: Apache-2.0
// memory.h: the symmetric heap.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

// Collective over all PEs, with equal arguments. NULL where size is 0 or the heap has no room.
void* nvshmem_malloc(size_t size);
void* nvshmem_calloc(size_t count, size_t size);
/// alignment: a power of two from sizeof(void*) to 2 MiB.
void* nvshmem_align(size_t alignment, size_t size);
/// NULL does nothing.
void nvshmem_free(void* pointer);

/// The address of symmetric `dest` on PE `pe` for loads and stores; NULL where it is out of reach,
/// and for addresses outside the heap.
SHOAL_NVSHMEM_HD void* nvshmem_ptr(const void* dest, int pe);
/// Always NULL: the library uses no multicast addresses.
SHOAL_NVSHMEM_HD void* nvshmemx_mc_ptr(nvshmem_team_t team, const void* pointer);

// Registers memory outside the heap as local side of operations. Not collective. Return 0, or
// NVSHMEMX_ERROR_INVALID_VALUE where the range is empty, overlaps a registered one or is not
// registered.
int nvshmemx_buffer_register(void* pointer, size_t bytes);
int nvshmemx_buffer_unregister(void* pointer);
void nvshmemx_buffer_unregister_all(void);

/// Always NULL, which callers get from NVSHMEM where memory cannot become part of the heap: a heap
/// is one range of addresses that no other allocation joins. Shoal's own interface shares memory of
/// other allocators (SymmetricHeap::share_buffer).
void* nvshmemx_buffer_register_symmetric(void* pointer, size_t bytes, int flags);
/// Always NVSHMEMX_ERROR_INVALID_VALUE: nothing is registered.
int nvshmemx_buffer_unregister_symmetric(void* pointer, size_t bytes);
