// SPDX-License-Identifier: Apache-2.0
// rma.h: put and get (OpenSHMEM 1.5, section 9.6). The side on the other PE is symmetric; the local
// side is any memory. Strides and counts are in elements.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE_MOVE(TYPE, NAME)                                          \
  SHOAL_SHMEM_PAIR(void, NAME, TYPE* dest, const TYPE* source, size_t nelems, int pe) \
  SHOAL_SHMEM_PAIR(void, NAME##_nbi, TYPE* dest, const TYPE* source, size_t nelems, int pe)
#define SHOAL_SHMEM_DECLARE_STRIDED(TYPE, NAME)                                              \
  SHOAL_SHMEM_PAIR(void, NAME, TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                   size_t nelems, int pe)
#define SHOAL_SHMEM_DECLARE_BLOCKS(TYPE, NAME)                                               \
  SHOAL_SHMEM_PAIR(void, NAME, TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                   size_t bsize, size_t nblocks, int pe)
#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                            \
  SHOAL_SHMEM_DECLARE_MOVE(TYPE, NAME##_put)                       \
  SHOAL_SHMEM_DECLARE_MOVE(TYPE, NAME##_get)                       \
  SHOAL_SHMEM_PAIR(void, NAME##_p, TYPE* dest, TYPE value, int pe) \
  SHOAL_SHMEM_PAIR(TYPE, NAME##_g, const TYPE* source, int pe)     \
  SHOAL_SHMEM_DECLARE_STRIDED(TYPE, NAME##_iput)                   \
  SHOAL_SHMEM_DECLARE_STRIDED(TYPE, NAME##_iget)                   \
  SHOAL_SHMEM_DECLARE_BLOCKS(TYPE, NAME##_ibput)                   \
  SHOAL_SHMEM_DECLARE_BLOCKS(TYPE, NAME##_ibget)
SHOAL_SHMEM_RMA_TYPES(SHOAL_SHMEM_DECLARE)

// Routines without a type: elements of BITS bits, and bytes.
#define SHOAL_SHMEM_DECLARE_SIZE(BITS)          \
  SHOAL_SHMEM_DECLARE_MOVE(void, put##BITS)     \
  SHOAL_SHMEM_DECLARE_MOVE(void, get##BITS)     \
  SHOAL_SHMEM_DECLARE_STRIDED(void, iput##BITS) \
  SHOAL_SHMEM_DECLARE_STRIDED(void, iget##BITS) \
  SHOAL_SHMEM_DECLARE_BLOCKS(void, ibput##BITS) \
  SHOAL_SHMEM_DECLARE_BLOCKS(void, ibget##BITS)
SHOAL_SHMEM_SIZES(SHOAL_SHMEM_DECLARE_SIZE)
SHOAL_SHMEM_DECLARE_MOVE(void, putmem)
SHOAL_SHMEM_DECLARE_MOVE(void, getmem)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_MOVE
#undef SHOAL_SHMEM_DECLARE_STRIDED
#undef SHOAL_SHMEM_DECLARE_BLOCKS
#undef SHOAL_SHMEM_DECLARE_SIZE
