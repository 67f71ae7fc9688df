// SPDX-License-Identifier: Apache-2.0
// signals.h: put with signal, and signals: 64-bit words of the heap that change after the data
// before them have arrived. `sig_op` is NVSHMEM_SIGNAL_SET or NVSHMEM_SIGNAL_ADD. Waits on the
// host's side are those on streams; the others are in kernels.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME)                                                    \
  SHOAL_NVSHMEM_PAIR(void, NAME##_signal, TYPE* dest, const TYPE* source, size_t nelems,     \
                     uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)                \
  SHOAL_NVSHMEM_PAIR(void, NAME##_signal_nbi, TYPE* dest, const TYPE* source, size_t nelems, \
                     uint64_t* sig_addr, uint64_t signal, int sig_op, int pe)
#define SHOAL_NVSHMEM_DECLARE_TYPE(TYPE, NAME) SHOAL_NVSHMEM_DECLARE(TYPE, NAME##_put)
#define SHOAL_NVSHMEM_DECLARE_SIZE(BITS) SHOAL_NVSHMEM_DECLARE(void, put##BITS)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_DECLARE_TYPE)
SHOAL_SHMEM_SIZES(SHOAL_NVSHMEM_DECLARE_SIZE)
SHOAL_NVSHMEM_DECLARE(void, putmem)
#undef SHOAL_NVSHMEM_DECLARE
#undef SHOAL_NVSHMEM_DECLARE_TYPE
#undef SHOAL_NVSHMEM_DECLARE_SIZE

/// The value of a signal of this PE.
SHOAL_NVSHMEM_HD uint64_t nvshmem_signal_fetch(uint64_t* sig_addr);
/// In a kernel it orders nothing: nvshmem_fence or nvshmem_quiet before it does.
SHOAL_NVSHMEM_HD void nvshmemx_signal_op(uint64_t* sig_addr, uint64_t signal, int sig_op, int pe);
void nvshmemx_signal_op_on_stream(uint64_t* sig_addr, uint64_t signal, int sig_op, int pe,
                                  cudaStream_t stream);
void nvshmemx_signal_wait_until_on_stream(uint64_t* sig_addr, int cmp, uint64_t value,
                                          cudaStream_t stream);

// Hold the stream until the variable of this PE compares as asked. Words of 4 or 8 bytes.
#define SHOAL_NVSHMEM_DECLARE(TYPE, NAME) \
  void nvshmemx_##NAME##_wait_until_on_stream(TYPE* ivar, int cmp, TYPE value, cudaStream_t stream);
SHOAL_SHMEM_AMO_TYPES(SHOAL_NVSHMEM_DECLARE)
#undef SHOAL_NVSHMEM_DECLARE
