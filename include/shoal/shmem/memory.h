// SPDX-License-Identifier: Apache-2.0
// memory.h: the symmetric heap (OpenSHMEM 1.5, section 9.3). All calls are collective over all PEs,
// with equal arguments. A size of 0 gives NULL, without a barrier. NULL also where the heap has no
// room: SHMEM_SYMMETRIC_SIZE sets its size.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

void* SHOAL_SHMEM(malloc)(size_t size);
void* SHOAL_SHMEM(calloc)(size_t count, size_t size);
// `alignment`: a power of two and a multiple of sizeof(void*), up to 2 MiB.
void* SHOAL_SHMEM(align)(size_t alignment, size_t size);
// Returns NULL on all PEs, and keeps the block as it is, if the heap has no room.
void* SHOAL_SHMEM(realloc)(void* block, size_t size);
void* SHOAL_SHMEM(malloc_with_hints)(size_t size, long hints);
void SHOAL_SHMEM(free)(void* block);
