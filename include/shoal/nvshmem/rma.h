// SPDX-License-Identifier: Apache-2.0
// rma.h: put and get. The side on the other PE is symmetric; the local side is memory of this GPU,
// the heap, or on the host any memory. Strides and counts are in elements, strides at least 1.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME)                                                 \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME(TYPE* dest, const TYPE* source, size_t nelems, int pe); \
  void nvshmemx_##NAME##_on_stream(TYPE* dest, const TYPE* source, size_t nelems, int pe,      \
                                   cudaStream_t stream);
#define SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME)                                                \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME(TYPE* dest, const TYPE* source, ptrdiff_t dst,            \
                                       ptrdiff_t sst, size_t nelems, int pe);                    \
  void nvshmemx_##NAME##_on_stream(TYPE* dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, \
                                   size_t nelems, int pe, cudaStream_t stream);
#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)                                                  \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_put)                                             \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_get)                                             \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_put_nbi)                                         \
  SHOAL_NVSHMEM_DECLARE_MOVE(TYPE, NAME##_get_nbi)                                         \
  SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME##_iput)                                         \
  SHOAL_NVSHMEM_DECLARE_STRIDED(TYPE, NAME##_iget)                                         \
  SHOAL_NVSHMEM_HD void nvshmem_##NAME##_p(TYPE* dest, TYPE value, int pe);                \
  SHOAL_NVSHMEM_HD TYPE nvshmem_##NAME##_g(const TYPE* source, int pe);                    \
  void nvshmemx_##NAME##_p_on_stream(TYPE* dest, TYPE value, int pe, cudaStream_t stream); \
  /* Waits for the stream, then returns the value. No graph can capture it. */             \
  TYPE nvshmemx_##NAME##_g_on_stream(const TYPE* source, int pe, cudaStream_t stream);
#define SHOAL_NVSHMEM_DECLARE_SIZE(BITS)            \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, put##BITS)       \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, get##BITS)       \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, put##BITS##_nbi) \
  SHOAL_NVSHMEM_DECLARE_MOVE(void, get##BITS##_nbi) \
  SHOAL_NVSHMEM_DECLARE_STRIDED(void, iput##BITS)   \
  SHOAL_NVSHMEM_DECLARE_STRIDED(void, iget##BITS)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_DECLARE)
SHOAL_SHMEM_SIZES(SHOAL_NVSHMEM_DECLARE_SIZE)
SHOAL_NVSHMEM_DECLARE_MOVE(void, putmem)
SHOAL_NVSHMEM_DECLARE_MOVE(void, getmem)
SHOAL_NVSHMEM_DECLARE_MOVE(void, putmem_nbi)
SHOAL_NVSHMEM_DECLARE_MOVE(void, getmem_nbi)
#undef SHOAL_NVSHMEM_DECLARE
#undef SHOAL_NVSHMEM_DECLARE_SIZE
#undef SHOAL_NVSHMEM_DECLARE_MOVE
#undef SHOAL_NVSHMEM_DECLARE_STRIDED
