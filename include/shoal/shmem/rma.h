// SPDX-License-Identifier: Apache-2.0
// rma.h: put and get (OpenSHMEM 1.5, section 9.6). The side on the other PE is symmetric; the local
// side is any memory. Strides and counts are in elements.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                                            \
  void SHOAL_SHMEM(NAME##_put)(TYPE * dest, const TYPE* source, size_t nelems, int pe);            \
  void SHOAL_SHMEM(ctx_##NAME##_put)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,             \
                                     size_t nelems, int pe);                                       \
  void SHOAL_SHMEM(NAME##_get)(TYPE * dest, const TYPE* source, size_t nelems, int pe);            \
  void SHOAL_SHMEM(ctx_##NAME##_get)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,             \
                                     size_t nelems, int pe);                                       \
  void SHOAL_SHMEM(NAME##_put_nbi)(TYPE * dest, const TYPE* source, size_t nelems, int pe);        \
  void SHOAL_SHMEM(ctx_##NAME##_put_nbi)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,         \
                                         size_t nelems, int pe);                                   \
  void SHOAL_SHMEM(NAME##_get_nbi)(TYPE * dest, const TYPE* source, size_t nelems, int pe);        \
  void SHOAL_SHMEM(ctx_##NAME##_get_nbi)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,         \
                                         size_t nelems, int pe);                                   \
  void SHOAL_SHMEM(NAME##_p)(TYPE * dest, TYPE value, int pe);                                     \
  void SHOAL_SHMEM(ctx_##NAME##_p)(shmem_ctx_t ctx, TYPE * dest, TYPE value, int pe);              \
  TYPE SHOAL_SHMEM(NAME##_g)(const TYPE* source, int pe);                                          \
  TYPE SHOAL_SHMEM(ctx_##NAME##_g)(shmem_ctx_t ctx, const TYPE* source, int pe);                   \
  void SHOAL_SHMEM(NAME##_iput)(TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst,     \
                                size_t nelems, int pe);                                            \
  void SHOAL_SHMEM(ctx_##NAME##_iput)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,            \
                                      ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);        \
  void SHOAL_SHMEM(NAME##_iget)(TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst,     \
                                size_t nelems, int pe);                                            \
  void SHOAL_SHMEM(ctx_##NAME##_iget)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,            \
                                      ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe);        \
  void SHOAL_SHMEM(NAME##_ibput)(TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst,    \
                                 size_t bsize, size_t nblocks, int pe);                            \
  void SHOAL_SHMEM(ctx_##NAME##_ibput)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,           \
                                       ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, \
                                       int pe);                                                    \
  void SHOAL_SHMEM(NAME##_ibget)(TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst,    \
                                 size_t bsize, size_t nblocks, int pe);                            \
  void SHOAL_SHMEM(ctx_##NAME##_ibget)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,           \
                                       ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks, \
                                       int pe);
SHOAL_SHMEM_RMA_TYPES(SHOAL_SHMEM_DECLARE)
#undef SHOAL_SHMEM_DECLARE

// put, get and their non-blocking forms without a type: of elements of SIZE bits, and of bytes.
#define SHOAL_SHMEM_DECLARE(PUT, GET, NBI)                                                         \
  void SHOAL_SHMEM(PUT##NBI)(void* dest, const void* source, size_t nelems, int pe);               \
  void SHOAL_SHMEM(ctx_##PUT##NBI)(shmem_ctx_t ctx, void* dest, const void* source, size_t nelems, \
                                   int pe);                                                        \
  void SHOAL_SHMEM(GET##NBI)(void* dest, const void* source, size_t nelems, int pe);               \
  void SHOAL_SHMEM(ctx_##GET##NBI)(shmem_ctx_t ctx, void* dest, const void* source, size_t nelems, \
                                   int pe);
#define SHOAL_SHMEM_DECLARE_STRIDED(BITS)                                                          \
  void SHOAL_SHMEM(iput##BITS)(void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst,       \
                               size_t nelems, int pe);                                             \
  void SHOAL_SHMEM(ctx_iput##BITS)(shmem_ctx_t ctx, void* dest, const void* source, ptrdiff_t dst, \
                                   ptrdiff_t sst, size_t nelems, int pe);                          \
  void SHOAL_SHMEM(iget##BITS)(void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst,       \
                               size_t nelems, int pe);                                             \
  void SHOAL_SHMEM(ctx_iget##BITS)(shmem_ctx_t ctx, void* dest, const void* source, ptrdiff_t dst, \
                                   ptrdiff_t sst, size_t nelems, int pe);                          \
  void SHOAL_SHMEM(ibput##BITS)(void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst,      \
                                size_t bsize, size_t nblocks, int pe);                             \
  void SHOAL_SHMEM(ctx_ibput##BITS)(shmem_ctx_t ctx, void* dest, const void* source,               \
                                    ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks,    \
                                    int pe);                                                       \
  void SHOAL_SHMEM(ibget##BITS)(void* dest, const void* source, ptrdiff_t dst, ptrdiff_t sst,      \
                                size_t bsize, size_t nblocks, int pe);                             \
  void SHOAL_SHMEM(ctx_ibget##BITS)(shmem_ctx_t ctx, void* dest, const void* source,               \
                                    ptrdiff_t dst, ptrdiff_t sst, size_t bsize, size_t nblocks,    \
                                    int pe);
#define SHOAL_SHMEM_DECLARE_SIZE(BITS)            \
  SHOAL_SHMEM_DECLARE(put##BITS, get##BITS, )     \
  SHOAL_SHMEM_DECLARE(put##BITS, get##BITS, _nbi) \
  SHOAL_SHMEM_DECLARE_STRIDED(BITS)
SHOAL_SHMEM_SIZES(SHOAL_SHMEM_DECLARE_SIZE)
SHOAL_SHMEM_DECLARE(putmem, getmem, )
SHOAL_SHMEM_DECLARE(putmem, getmem, _nbi)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_STRIDED
#undef SHOAL_SHMEM_DECLARE_SIZE
