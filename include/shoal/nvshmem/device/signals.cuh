// SPDX-License-Identifier: Apache-2.0
// signals.cuh: put with signal, and signals, inside kernels.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

__device__ inline SignalOp signal_op_of(int op) {
  return op == NVSHMEM_SIGNAL_ADD ? SignalOp::add : SignalOp::set;
}

template <typename S>
__device__ void put_signal(S scope, void* dest, const void* source, std::size_t nelems,
                           std::size_t element, std::uint64_t* flag, std::uint64_t value, int op,
                           int pe) {
  device::put_signal(
      scope, world(), static_cast<std::byte*>(dest), static_cast<const std::byte*>(source),
      device::detail::extent(element, element, nelems), flag, signal_op_of(op), value, pe);
}

}  // namespace shoal::nvshmem

#define SHOAL_NVSHMEM_PUT_SIGNAL(TYPE, NAME, BYTES)                                        \
  SHOAL_NVSHMEM_FORMS(void, NAME,                                                          \
                      (TYPE * dest, const TYPE* source, size_t nelems, uint64_t* sig_addr, \
                       uint64_t signal, int sig_op, int pe),                               \
                      put_signal, dest, source, nelems, BYTES, sig_addr, signal, sig_op, pe)
#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                            \
  SHOAL_NVSHMEM_PUT_SIGNAL(TYPE, NAME##_put_signal, sizeof(TYPE)) \
  SHOAL_NVSHMEM_PUT_SIGNAL(TYPE, NAME##_put_signal_nbi, sizeof(TYPE))
#define SHOAL_NVSHMEM_SIZE(BITS)                               \
  SHOAL_NVSHMEM_PUT_SIGNAL(void, put##BITS##_signal, BITS / 8) \
  SHOAL_NVSHMEM_PUT_SIGNAL(void, put##BITS##_signal_nbi, BITS / 8)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_TYPE)
SHOAL_SHMEM_SIZES(SHOAL_NVSHMEM_SIZE)
SHOAL_NVSHMEM_PUT_SIGNAL(void, putmem_signal, 1)
SHOAL_NVSHMEM_PUT_SIGNAL(void, putmem_signal_nbi, 1)
#undef SHOAL_NVSHMEM_TYPE
#undef SHOAL_NVSHMEM_SIZE
#undef SHOAL_NVSHMEM_PUT_SIGNAL

SHOAL_NVSHMEM_DEFINE(uint64_t, nvshmem_signal_fetch, (uint64_t* sig_addr),
                     { return shoal::device::signal_fetch(sig_addr); })
// Orders nothing, as in NVSHMEM: a program that wants order calls nvshmem_fence before it.
SHOAL_NVSHMEM_DEFINE(void, nvshmemx_signal_op,
                     (uint64_t* sig_addr, uint64_t signal, int sig_op, int pe), {
                       shoal::device::detail::signal_by_one<false>(
                           shoal::nvshmem::world(), sig_addr, shoal::nvshmem::signal_op_of(sig_op),
                           signal, pe);
                     })
