// SPDX-License-Identifier: Apache-2.0
// state.cuh: the device state of a translation unit.
//
// Each unit has the state in constant memory of its own image, so that relocatable device code is
// not needed; with it, the linker merges the states of all units. A static object of each unit
// hands the library a function that finds the state. Initialization fills all of them, and a unit
// that is loaded later is filled at once. The function is compiled with the unit: only the unit's
// own CUDA runtime knows the address.
//
// Images that the driver API loads have no such object: nvshmemx_cumodule_init and
// nvshmemx_culibrary_init find the state by its name. The library of device functions
// (cmake/nvshmem_device.cmake) is this header with SHOAL_NVSHMEM_DEVICE_LIBRARY: all functions are
// defined, used or not, and the state is the one of the image that the library is linked into.
#pragma once

#include <cuda_runtime.h>

#define SHOAL_KERNELS_ONLY
#include <shoal/device/functions.cuh>
#undef SHOAL_KERNELS_ONLY
#include <shoal/nvshmem/device/state_type.hpp>

#ifdef SHOAL_NVSHMEM_DEVICE_LIBRARY
#define SHOAL_NVSHMEM_INLINE
__constant__ shoal::nvshmem::DeviceState shoal_nvshmem_state_d;
#elif defined(__CUDACC_RDC__)
#define SHOAL_NVSHMEM_INLINE inline
inline __constant__ shoal::nvshmem::DeviceState shoal_nvshmem_state_d;
#else
#define SHOAL_NVSHMEM_INLINE inline
static __constant__ shoal::nvshmem::DeviceState shoal_nvshmem_state_d;
#endif

extern "C" {
// The library keeps `find` until the unit is unloaded. `find` returns the address of the state on
// the current device, or NULL.
void shoal_nvshmem_add_unit(void* (*find)(void));
void shoal_nvshmem_remove_unit(void* (*find)(void));
}

#ifndef __CUDA_ARCH__
namespace {

void* shoal_nvshmem_find_state() {
  void* address = nullptr;
  return cudaGetSymbolAddress(&address, shoal_nvshmem_state_d) == cudaSuccess ? address : nullptr;
}

class ShoalNvshmemUnit {
 public:
  explicit ShoalNvshmemUnit(void* (*find)()) : find_(find) { shoal_nvshmem_add_unit(find_); }
  ~ShoalNvshmemUnit() { shoal_nvshmem_remove_unit(find_); }
  ShoalNvshmemUnit(const ShoalNvshmemUnit&) = delete;
  ShoalNvshmemUnit& operator=(const ShoalNvshmemUnit&) = delete;

 private:
  void* (*find_)();
};
const ShoalNvshmemUnit shoal_nvshmem_unit(&shoal_nvshmem_find_state);

}  // namespace
#endif

// SHOAL_NVSHMEM_DEFINE: a function that the library defines for the host and this header for
// kernels. SHOAL_NVSHMEM_DEVICE: one for kernels alone.
#ifdef __CUDA_ARCH__
#define SHOAL_NVSHMEM_DEFINE(RESULT, NAME, PARAMETERS, ...) \
  extern "C" SHOAL_NVSHMEM_INLINE __host__ __device__ RESULT NAME PARAMETERS __VA_ARGS__
#else
#define SHOAL_NVSHMEM_DEFINE(RESULT, NAME, PARAMETERS, ...)
#endif
#define SHOAL_NVSHMEM_DEVICE(RESULT, NAME, PARAMETERS, ...) \
  extern "C" SHOAL_NVSHMEM_INLINE __device__ RESULT NAME PARAMETERS __VA_ARGS__

// A function of which a thread, a warp and a block have a form: FUNCTION of this namespace with the
// scope and the other arguments.
#define SHOAL_NVSHMEM_FORM(KIND, SCOPE, RESULT, NAME, PARAMETERS, FUNCTION, ...)               \
  KIND(RESULT, NAME, PARAMETERS, {                                                             \
    return static_cast<RESULT>(shoal::nvshmem::FUNCTION(shoal::device::SCOPE{}, __VA_ARGS__)); \
  })
#define SHOAL_NVSHMEM_FORMS(RESULT, NAME, ...)                                                \
  SHOAL_NVSHMEM_FORM(SHOAL_NVSHMEM_DEFINE, Thread, RESULT, nvshmem_##NAME, __VA_ARGS__)       \
  SHOAL_NVSHMEM_FORM(SHOAL_NVSHMEM_DEVICE, Warp, RESULT, nvshmemx_##NAME##_warp, __VA_ARGS__) \
  SHOAL_NVSHMEM_FORM(SHOAL_NVSHMEM_DEVICE, Block, RESULT, nvshmemx_##NAME##_block, __VA_ARGS__)

namespace shoal::nvshmem {

__device__ inline const device::World& world() {
  return shoal_nvshmem_state_d.world;
}

/// nullptr: there is no such team.
__device__ inline const DeviceTeam* find_team(std::int32_t id) {
  const DeviceState& state = shoal_nvshmem_state_d;
  if (id < 0 || id >= state.n_teams || state.teams[id].n_pes == 0) return nullptr;
  return state.teams + id;
}

}  // namespace shoal::nvshmem
