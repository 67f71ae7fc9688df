// SPDX-License-Identifier: Apache-2.0
// rma.cuh: put and get inside kernels. Forms without a suffix are performed by the calling thread,
// _warp and _block by all threads of a warp or block, which call converged with equal arguments.
// The non-blocking forms are the blocking ones.
#pragma once

#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

template <typename S>
__device__ void put(S scope, void* dest, const void* source, std::size_t nelems,
                    std::size_t element, int pe) {
  device::put_bytes(scope, world(), dest, source, device::detail::extent(element, element, nelems),
                    pe);
}
template <typename S>
__device__ void get(S scope, void* dest, const void* source, std::size_t nelems,
                    std::size_t element, int pe) {
  device::get_bytes(scope, world(), dest, source, device::detail::extent(element, element, nelems),
                    pe);
}
template <typename S, typename T>
__device__ void iput(S scope, T* dest, const T* source, std::ptrdiff_t dst, std::ptrdiff_t sst,
                     std::size_t nelems, int pe) {
  device::put_strided(scope, world(), dest, static_cast<std::size_t>(dst), source,
                      static_cast<std::size_t>(sst), nelems, pe);
}
template <typename S, typename T>
__device__ void iget(S scope, T* dest, const T* source, std::ptrdiff_t dst, std::ptrdiff_t sst,
                     std::size_t nelems, int pe) {
  device::get_strided(scope, world(), dest, static_cast<std::size_t>(dst), source,
                      static_cast<std::size_t>(sst), nelems, pe);
}

}  // namespace shoal::nvshmem

#define SHOAL_NVSHMEM_MOVE(TYPE, FUNCTION, NAME, BYTES)                                     \
  SHOAL_NVSHMEM_FORMS(void, NAME, (TYPE * dest, const TYPE* source, size_t nelems, int pe), \
                      FUNCTION, dest, source, nelems, BYTES, pe)
// CAST: the type of an element.
#define SHOAL_NVSHMEM_STRIDED(TYPE, CAST, FUNCTION, NAME)                                     \
  SHOAL_NVSHMEM_FORMS(                                                                        \
      void, NAME,                                                                             \
      (TYPE * dest, const TYPE* source, ptrdiff_t dst, ptrdiff_t sst, size_t nelems, int pe), \
      FUNCTION, static_cast<CAST*>(dest), static_cast<const CAST*>(source), dst, sst, nelems, pe)

#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                                                          \
  SHOAL_NVSHMEM_MOVE(TYPE, put, NAME##_put, sizeof(TYPE))                                       \
  SHOAL_NVSHMEM_MOVE(TYPE, get, NAME##_get, sizeof(TYPE))                                       \
  SHOAL_NVSHMEM_MOVE(TYPE, put, NAME##_put_nbi, sizeof(TYPE))                                   \
  SHOAL_NVSHMEM_MOVE(TYPE, get, NAME##_get_nbi, sizeof(TYPE))                                   \
  SHOAL_NVSHMEM_STRIDED(TYPE, TYPE, iput, NAME##_iput)                                          \
  SHOAL_NVSHMEM_STRIDED(TYPE, TYPE, iget, NAME##_iget)                                          \
  SHOAL_NVSHMEM_DEFINE(void, nvshmem_##NAME##_p, (TYPE * dest, TYPE value, int pe),             \
                       { shoal::device::put_value(shoal::nvshmem::world(), dest, value, pe); }) \
  SHOAL_NVSHMEM_DEFINE(TYPE, nvshmem_##NAME##_g, (const TYPE* source, int pe),                  \
                       { return shoal::device::get_value(shoal::nvshmem::world(), source, pe); })
#define SHOAL_NVSHMEM_SIZE(BITS)                                                         \
  SHOAL_NVSHMEM_MOVE(void, put, put##BITS, BITS / 8)                                     \
  SHOAL_NVSHMEM_MOVE(void, get, get##BITS, BITS / 8)                                     \
  SHOAL_NVSHMEM_MOVE(void, put, put##BITS##_nbi, BITS / 8)                               \
  SHOAL_NVSHMEM_MOVE(void, get, get##BITS##_nbi, BITS / 8)                               \
  SHOAL_NVSHMEM_STRIDED(void, shoal::device::detail::UnitOf<BITS / 8>, iput, iput##BITS) \
  SHOAL_NVSHMEM_STRIDED(void, shoal::device::detail::UnitOf<BITS / 8>, iget, iget##BITS)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_TYPE)
SHOAL_SHMEM_SIZES(SHOAL_NVSHMEM_SIZE)
SHOAL_NVSHMEM_MOVE(void, put, putmem, 1)
SHOAL_NVSHMEM_MOVE(void, get, getmem, 1)
SHOAL_NVSHMEM_MOVE(void, put, putmem_nbi, 1)
SHOAL_NVSHMEM_MOVE(void, get, getmem_nbi, 1)
#undef SHOAL_NVSHMEM_TYPE
#undef SHOAL_NVSHMEM_SIZE
#undef SHOAL_NVSHMEM_MOVE
#undef SHOAL_NVSHMEM_STRIDED
