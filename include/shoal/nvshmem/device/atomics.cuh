// SPDX-License-Identifier: Apache-2.0
// atomics.cuh: atomics inside kernels, by the calling thread.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

template <typename To, typename From>
__device__ To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  memcpy(&result, &value, sizeof result);
  return result;
}

/// Returns the value before. Floating point travels as the word of its width.
template <typename T>
__device__ T atomic(AtomicOp op, T* dest, T value, int pe, T cond = T{}) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  return bits_as<T>(device::atomic<Bits>(op, world(), reinterpret_cast<Bits*>(dest),
                                         bits_as<Bits>(value), pe, bits_as<Bits>(cond)));
}
template <typename T>
__device__ void atomic_set(T* dest, T value, int pe) {
  using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
  device::atomic_set<Bits>(world(), reinterpret_cast<Bits*>(dest), bits_as<Bits>(value), pe);
}

}  // namespace shoal::nvshmem

#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                                                        \
  SHOAL_NVSHMEM_DEFINE(TYPE, nvshmem_##NAME##_atomic_fetch, (const TYPE* source, int pe), {   \
    return shoal::nvshmem::atomic(shoal::AtomicOp::fetch, const_cast<TYPE*>(source),          \
                                  static_cast<TYPE>(0), pe);                                  \
  })                                                                                          \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME##_atomic_set, (TYPE * dest, TYPE value, int pe),  \
                       { shoal::nvshmem::atomic_set(dest, value, pe); })                      \
  SHOAL_NVSHMEM_DEFINE(TYPE, nvshmem_##NAME##_atomic_swap, (TYPE * dest, TYPE value, int pe), \
                       { return shoal::nvshmem::atomic(shoal::AtomicOp::swap, dest, value, pe); })
SHOAL_SHMEM_EXTENDED_AMO_TYPES(SHOAL_NVSHMEM_TYPE)
#undef SHOAL_NVSHMEM_TYPE

#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                                                             \
  SHOAL_NVSHMEM_DEFINE(                                                                            \
      TYPE, nvshmem_##NAME##_atomic_compare_swap, (TYPE * dest, TYPE cond, TYPE value, int pe),    \
      { return shoal::nvshmem::atomic(shoal::AtomicOp::compare_swap, dest, value, pe, cond); })    \
  SHOAL_NVSHMEM_DEFINE(TYPE, nvshmem_##NAME##_atomic_fetch_inc, (TYPE * dest, int pe), {           \
    return shoal::nvshmem::atomic(shoal::AtomicOp::add, dest, static_cast<TYPE>(1), pe);           \
  })                                                                                               \
  SHOAL_NVSHMEM_DEFINE(TYPE, nvshmem_##NAME##_atomic_fetch_add, (TYPE * dest, TYPE value, int pe), \
                       { return shoal::nvshmem::atomic(shoal::AtomicOp::add, dest, value, pe); })  \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME##_atomic_inc, (TYPE * dest, int pe), {                 \
    shoal::nvshmem::atomic(shoal::AtomicOp::add, dest, static_cast<TYPE>(1), pe);                  \
  })                                                                                               \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME##_atomic_add, (TYPE * dest, TYPE value, int pe),       \
                       { shoal::nvshmem::atomic(shoal::AtomicOp::add, dest, value, pe); })
SHOAL_SHMEM_AMO_TYPES(SHOAL_NVSHMEM_TYPE)
#undef SHOAL_NVSHMEM_TYPE

#define SHOAL_NVSHMEM_OP(TYPE, NAME, OP)                                                      \
  SHOAL_NVSHMEM_DEFINE(                                                                       \
      TYPE, nvshmem_##NAME##_atomic_fetch_##OP, (TYPE * dest, TYPE value, int pe),            \
      { return shoal::nvshmem::atomic(shoal::AtomicOp::bit_##OP, dest, value, pe); })         \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME##_atomic_##OP, (TYPE * dest, TYPE value, int pe), \
                       { shoal::nvshmem::atomic(shoal::AtomicOp::bit_##OP, dest, value, pe); })
#define SHOAL_NVSHMEM_TYPE(TYPE, NAME) \
  SHOAL_NVSHMEM_OP(TYPE, NAME, and)    \
  SHOAL_NVSHMEM_OP(TYPE, NAME, or)     \
  SHOAL_NVSHMEM_OP(TYPE, NAME, xor)
SHOAL_SHMEM_BITWISE_AMO_TYPES(SHOAL_NVSHMEM_TYPE)
#undef SHOAL_NVSHMEM_TYPE
#undef SHOAL_NVSHMEM_OP
