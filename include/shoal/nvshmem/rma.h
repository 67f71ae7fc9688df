// SPDX-License-Identifier: Apache-2.0
// rma.h: put and get. The side on the other PE is symmetric; the local side is memory of this GPU,
// the heap, or on the host any memory. Strides and counts are in elements, strides at least 1.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME)                                          \
  SHOAL_NVSHMEM_PAIR(void, NAME, TYPE* dest, const TYPE* source, size_t nelems, int pe) \
  SHOAL_NVSHMEM_PAIR(void, NAME##_nbi, TYPE* dest, const TYPE* source, size_t nelems, int pe)
#define SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME)                                              \
  SHOAL_NVSHMEM_PAIR(void, NAME, TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                     size_t nelems, int pe)
// On a stream, _g waits for the stream and returns the value. No graph can capture it.
#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)                            \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_put)                       \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_get)                       \
  SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME##_iput)                   \
  SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME##_iget)                   \
  SHOAL_NVSHMEM_PAIR(void, NAME##_p, TYPE* dest, TYPE value, int pe) \
  SHOAL_NVSHMEM_PAIR(TYPE, NAME##_g, const TYPE* source, int pe)
#define SHOAL_NVSHMEM_DECLARE_SIZE(BITS)          \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, put##BITS)     \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, get##BITS)     \
  SHOAL_NVSHMEM_DECLARE_STRIDED(void, iput##BITS) \
  SHOAL_NVSHMEM_DECLARE_STRIDED(void, iget##BITS)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_DECLARE)
SHOAL_SHMEM_SIZES(SHOAL_NVSHMEM_DECLARE_SIZE)
SHOAL_NVSHMEM_DECLARE_MOVE(void, putmem)
SHOAL_NVSHMEM_DECLARE_MOVE(void, getmem)
#undef SHOAL_NVSHMEM_DECLARE
#undef SHOAL_NVSHMEM_DECLARE_SIZE
#undef SHOAL_NVSHMEM_DECLARE_MOVE
#undef SHOAL_NVSHMEM_DECLARE_STRIDED
