// SPDX-License-Identifier: Apache-2.0
// linked_ring.cu: a kernel that knows the functions by their C names alone, as kernels of Triton
// and Numba do. It is linked with libnvshmem_device.ltoir.
#include <cstddef>
#include <cstdint>

extern "C" {
__device__ int nvshmem_my_pe();
__device__ int nvshmem_n_pes();
__device__ void nvshmemx_putmem_signal_block(void* dest, const void* source, size_t bytes,
                                             uint64_t* sig_addr, uint64_t signal, int sig_op,
                                             int pe);
__device__ uint64_t nvshmem_signal_wait_until(uint64_t* sig_addr, int cmp, uint64_t value);
__device__ void nvshmem_int_atomic_add(int* dest, int value, int pe);
__device__ void nvshmemx_barrier_all_block();

/// Sends `mine` to the next PE and waits for the previous one. Called once for each turn: 1, 2, ...
__global__ void ring(int* box, const int* mine, size_t count, uint64_t* flag, uint64_t turn,
                     int* arrived) {
  constexpr int kSet = 9, kEqual = 0;  // NVSHMEM_SIGNAL_SET, NVSHMEM_CMP_EQ
  const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  nvshmemx_putmem_signal_block(box, mine, count * sizeof(int), flag, turn, kSet, next);
  if (threadIdx.x == 0) {
    nvshmem_signal_wait_until(flag, kEqual, turn);
    nvshmem_int_atomic_add(arrived, box[count - 1], next);
  }
  nvshmemx_barrier_all_block();
}
}
