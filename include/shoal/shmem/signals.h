// SPDX-License-Identifier: Apache-2.0
// signals.h: put with signal, and signals (OpenSHMEM 1.5, section 9.8). `sig_addr` is a symmetric
// 64-bit word of the target PE, which changes after the data has arrived there. `sig_op` is
// SHMEM_SIGNAL_SET or SHMEM_SIGNAL_ADD.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

#define SHOAL_SHMEM_DECLARE(TYPE, NAME)                                                    \
  SHOAL_SHMEM_PAIR(void, NAME##_signal, TYPE* dest, const TYPE* source, size_t nelems,     \
                   uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)                \
  SHOAL_SHMEM_PAIR(void, NAME##_signal_nbi, TYPE* dest, const TYPE* source, size_t nelems, \
                   uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)
#define SHOAL_SHMEM_DECLARE_TYPE(TYPE, NAME) SHOAL_SHMEM_DECLARE(TYPE, NAME##_put)
#define SHOAL_SHMEM_DECLARE_SIZE(BITS) SHOAL_SHMEM_DECLARE(void, put##BITS)
SHOAL_SHMEM_RMA_TYPES(SHOAL_SHMEM_DECLARE_TYPE)
SHOAL_SHMEM_SIZES(SHOAL_SHMEM_DECLARE_SIZE)
SHOAL_SHMEM_DECLARE(void, putmem)
#undef SHOAL_SHMEM_DECLARE
#undef SHOAL_SHMEM_DECLARE_TYPE
#undef SHOAL_SHMEM_DECLARE_SIZE

// 1.6: a signal without data.
SHOAL_SHMEM_PAIR(void, signal_set, uint64_t* sig_addr, uint64_t value, int pe)
SHOAL_SHMEM_PAIR(void, signal_add, uint64_t* sig_addr, uint64_t value, int pe)

// Signals of this PE.
uint64_t SHOAL_SHMEM(signal_fetch)(const uint64_t* sig_addr);
uint64_t SHOAL_SHMEM(signal_wait_until)(uint64_t* sig_addr, int cmp, uint64_t value);
