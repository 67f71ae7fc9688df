// SPDX-License-Identifier: Apache-2.0
// signals.h: put with signal, and signals (OpenSHMEM 1.5, section 9.8). `sig_addr` is a symmetric
// 64-bit word of the target PE, which changes after the data has arrived there. `sig_op` is
// SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE(TYPE, NAME, NBI)                                                     \
  void SHOAL_SHMEM(NAME##_signal##NBI)(TYPE * dest, const TYPE* source, size_t nelems,           \
                                       uint64_t* sig_addr, uint64_t signal, int sig_op, int pe); \
  void SHOAL_SHMEM(ctx_##NAME##_signal##NBI)(shmem_ctx_t ctx, TYPE * dest, const TYPE* source,   \
                                             size_t nelems, uint64_t* sig_addr, uint64_t signal, \
                                             int sig_op, int pe);
#define SHOAL_SHMEM_DECLARE_TYPE(TYPE, NAME) \
  SHOAL_SHMEM_DECLARE(TYPE, NAME##_put, )    \
  SHOAL_SHMEM_DECLARE(TYPE, NAME##_put, _nbi)
#define SHOAL_SHMEM_DECLARE_SIZE(BITS)   \
  SHOAL_SHMEM_DECLARE(void, put##BITS, ) \
  SHOAL_SHMEM_DECLARE(void, put##BITS, _nbi)
SHOAL_SHMEM_RMA_TYPES(SHOAL_SHMEM_DECLARE_TYPE)
SHOAL_SHMEM_SIZES(SHOAL_SHMEM_DECLARE_SIZE)
SHOAL_SHMEM_DECLARE(void, putmem, )
SHOAL_SHMEM_DECLARE(void, putmem, _nbi)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_TYPE
#undef SHOAL_SHMEM_DECLARE_SIZE

// 1.6: a signal without data.
void SHOAL_SHMEM(signal_set)(uint64_t* sig_addr, uint64_t value, int pe);
void SHOAL_SHMEM(ctx_signal_set)(shmem_ctx_t ctx, uint64_t* sig_addr, uint64_t value, int pe);
void SHOAL_SHMEM(signal_add)(uint64_t* sig_addr, uint64_t value, int pe);
void SHOAL_SHMEM(ctx_signal_add)(shmem_ctx_t ctx, uint64_t* sig_addr, uint64_t value, int pe);

// Of this PE.
uint64_t SHOAL_SHMEM(signal_fetch)(const uint64_t* sig_addr);
uint64_t SHOAL_SHMEM(signal_wait_until)(uint64_t* sig_addr, int cmp, uint64_t value);
