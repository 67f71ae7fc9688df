// SPDX-License-Identifier: Apache-2.0
// collectives.cuh: collectives over teams inside kernels. One thread, warp or block of each PE
// calls; shoal/device/collective.cuh has the contract. The functions return 0, or 1 where the team
// does not exist, its heaps are not reached by loads and stores, or the deadline passed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#define SHOAL_KERNELS_ONLY
#include <shoal/device/collective.cuh>
#undef SHOAL_KERNELS_ONLY
#include <shoal/nvshmem/device/state.cuh>

namespace shoal::nvshmem {

/// The type that stands for T in reductions: the names of C for one integer share their code.
template <typename T>
struct Reduced {
  using type = T;
};
template <>
struct Reduced<__half> {
  using type = device::Float16;
};
template <>
struct Reduced<__nv_bfloat16> {
  using type = device::BFloat16;
};
template <typename T, bool is_integer = std::is_integral_v<T>>
struct ReducedAs : Reduced<T> {};
template <typename T>
struct ReducedAs<T, true> {
  using Unsigned = device::detail::UnitOf<sizeof(T)>;
  using type = std::conditional_t<std::is_signed_v<T>, std::make_signed_t<Unsigned>, Unsigned>;
};

/// Runs `call` with the team. Its result, or 1.
template <typename Call>
__device__ int with_team(nvshmem_team_t id, const Call& call) {
  const DeviceTeam* const team = find_team(id);
  if (team == nullptr) return 1;
  return call(team->team) ? 0 : 1;
}

// Not inlined: a call costs nothing compared with the wait for other PEs, and code that is inlined
// several times compiles slowly. In relocatable device code they are inlined, because a function
// that is compiled apart from its kernel has no launch bounds: it takes twice the registers, and
// cannot be linked into kernels of 1024 threads.
#if defined(__CUDACC_RDC__) && !defined(SHOAL_NVSHMEM_DEVICE_LIBRARY)
#define SHOAL_NVSHMEM_CALL __forceinline__
#else
#define SHOAL_NVSHMEM_CALL __noinline__
#endif

/// Elements of `bytes` bytes.
template <std::size_t bytes, typename S>
__device__ SHOAL_NVSHMEM_CALL int broadcast(S scope, nvshmem_team_t id, void* dest,
                                            const void* source, std::size_t nelems, int root) {
  using Unit = device::detail::UnitOf<bytes>;
  return with_team(id, [&](const device::Team& team) {
    return device::broadcast(scope, world(), team, static_cast<Unit*>(dest),
                             static_cast<const Unit*>(source), nelems, root);
  });
}
template <std::size_t bytes, typename S>
__device__ SHOAL_NVSHMEM_CALL int fcollect(S scope, nvshmem_team_t id, void* dest,
                                           const void* source, std::size_t nelems) {
  using Unit = device::detail::UnitOf<bytes>;
  return with_team(id, [&](const device::Team& team) {
    return device::all_gather(scope, world(), team, static_cast<Unit*>(dest),
                              static_cast<const Unit*>(source), nelems);
  });
}
template <std::size_t bytes, typename S>
__device__ SHOAL_NVSHMEM_CALL int alltoall(S scope, nvshmem_team_t id, void* dest,
                                           const void* source, std::size_t nelems) {
  using Unit = device::detail::UnitOf<bytes>;
  return with_team(id, [&](const device::Team& team) {
    return device::all_to_all(scope, world(), team, static_cast<Unit*>(dest),
                              static_cast<const Unit*>(source), nelems);
  });
}
template <typename Op, typename S, typename T>
__device__ SHOAL_NVSHMEM_CALL int reduce(S scope, nvshmem_team_t id, T* dest, const T* source,
                                         std::size_t nreduce) {
  using Element = typename ReducedAs<T>::type;
  return with_team(id, [&](const device::Team& team) {
    return device::reduce(scope, world(), team, Op{}, reinterpret_cast<Element*>(dest),
                          reinterpret_cast<const Element*>(source), nreduce);
  });
}
template <typename Op, typename S, typename T>
__device__ SHOAL_NVSHMEM_CALL int reducescatter(S scope, nvshmem_team_t id, T* dest,
                                                const T* source, std::size_t nreduce) {
  using Element = typename ReducedAs<T>::type;
  return with_team(id, [&](const device::Team& team) {
    return device::reduce_scatter(scope, world(), team, Op{}, reinterpret_cast<Element*>(dest),
                                  reinterpret_cast<const Element*>(source), nreduce);
  });
}

/// The pair with the largest x, of equal ones that of the lowest PE.
struct MaxLoc {
  __device__ double2 operator()(double2 a, double2 b) const { return b.x > a.x ? b : a; }
};
template <typename S>
__device__ SHOAL_NVSHMEM_CALL int maxloc(S scope, nvshmem_team_t id, double2* dest,
                                         const double2* source, std::size_t nreduce) {
  return with_team(id, [&](const device::Team& team) {
    return device::detail::reduce_wide<MaxLoc>(device::detail::ScopeCrew<S>{scope}, world(), team,
                                               MaxLoc{}, dest, source, nreduce);
  });
}

}  // namespace shoal::nvshmem

/// Rules by which reductions add up double2.
template <>
struct shoal::device::Elements<double2> {
  using Accumulator = double2;
  __device__ static double2 load(double2 value) { return value; }
  __device__ static double2 store(double2 value) { return value; }
};

#define SHOAL_NVSHMEM_MOVEMENT(TYPE, PREFIX, SUFFIX, BYTES)                                  \
  SHOAL_NVSHMEM_FORMS(                                                                       \
      int, PREFIX##broadcast##SUFFIX,                                                        \
      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems, int root),       \
      broadcast<BYTES>, team, dest, source, nelems, root)                                    \
  SHOAL_NVSHMEM_FORMS(int, PREFIX##fcollect##SUFFIX,                                         \
                      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems), \
                      fcollect<BYTES>, team, dest, source, nelems)                           \
  SHOAL_NVSHMEM_FORMS(int, PREFIX##alltoall##SUFFIX,                                         \
                      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nelems), \
                      alltoall<BYTES>, team, dest, source, nelems)
#define SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, WORD, OP)                                         \
  SHOAL_NVSHMEM_FORMS(int, NAME##_##WORD##_reduce,                                            \
                      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce), \
                      reduce<shoal::device::OP>, team, dest, source, nreduce)                 \
  SHOAL_NVSHMEM_FORMS(int, NAME##_##WORD##_reducescatter,                                     \
                      (nvshmem_team_t team, TYPE * dest, const TYPE* source, size_t nreduce), \
                      reducescatter<shoal::device::OP>, team, dest, source, nreduce)
#define SHOAL_NVSHMEM_TYPE(TYPE, NAME)                  \
  SHOAL_NVSHMEM_MOVEMENT(TYPE, NAME##_, , sizeof(TYPE)) \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, sum, Sum)         \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, prod, Prod)       \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, min, Min)         \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, max, Max)
#define SHOAL_NVSHMEM_BITWISE(TYPE, NAME)          \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, and, BitAnd) \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, or, BitOr)   \
  SHOAL_NVSHMEM_REDUCTION(TYPE, NAME, xor, BitXor)
SHOAL_NVSHMEM_RMA_TYPES(SHOAL_NVSHMEM_TYPE)
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(SHOAL_NVSHMEM_BITWISE)
SHOAL_NVSHMEM_MOVEMENT(void, , mem, 1)
SHOAL_NVSHMEM_DEVICE(int, nvshmemx_double2_maxloc_reduce_block,
                     (nvshmem_team_t team, double2* dest, const double2* source, size_t nreduce), {
                       return shoal::nvshmem::maxloc(shoal::device::Block{}, team, dest, source,
                                                     nreduce);
                     })
#undef SHOAL_NVSHMEM_CALL
#undef SHOAL_NVSHMEM_MOVEMENT
#undef SHOAL_NVSHMEM_REDUCTION
#undef SHOAL_NVSHMEM_TYPE
#undef SHOAL_NVSHMEM_BITWISE
