// SPDX-License-Identifier: Apache-2.0
// nic_calls.cuh: the calls of the device API that the NIC executes: puts from the heap or of few
// bytes, values, and signals that set a word.
//
// Kernels have them that define SHOAL_DEVICE_GDA before they include the device API. Other kernels
// take the proxy, and do not read the code of the queues: a kernel has as many registers as its
// largest call needs, on whatever path, and these calls need up to 127.
//
// The functions return false where they did nothing and the proxy must serve the target, which
// exists.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/types.hpp>

#ifdef SHOAL_DEVICE_GDA
#include <shoal/device/detail/nic.cuh>
#include <shoal/device/detail/proxied.cuh>
#endif

namespace shoal::device::detail {

#ifdef SHOAL_DEVICE_GDA

__device__ inline bool uses_nic(const World& world) {
  return world.gda != nullptr;
}

/// Waits for what this block has posted for `pe`; -1: for what all kernels have, for all PEs.
__device__ __noinline__ inline bool drain_nic(const World& world, Pe pe) {
  if (world.gda == nullptr) return true;
  const gda::Routes& routes = *world.gda;
  gda::CudaPlatform platform = nic_platform(world);
  const gda::Ending ending =
      pe < 0 ? gda::drain_all(routes, platform)
             : gda::drain(routes, routes.by_pe[pe], spread_of_block(), platform);
  return check_nic(world, gda::Operation::order, ending, 0, 0);
}

/// `flag`: nullptr, or a word to set after the data.
__device__ inline bool nic_put(const World& world, const void* target, const void* source,
                               std::size_t bytes, Pe pe, const std::uint64_t* flag,
                               std::uint64_t value) {
  const gda::Route* const route = nic_route(world, target, bytes, pe);
  if (route == nullptr || !gda::can_send(*world.gda, *route, source, bytes)) return false;
  gda::Flag sets;
  if (flag != nullptr) {
    if (nic_route(world, flag, sizeof *flag, pe) == nullptr) return false;
    if (!drain_proxy(world)) return true;
    sets = {heap_offset(world, flag), value};
  }
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put,
            gda::put(*world.gda, *route, spread_of_block(), {offset, source, bytes},
                     flag == nullptr ? nullptr : &sets, platform),
            offset, bytes);
  return true;
}

/// Elements `rank`, `rank + size`, ... of `count`.
__device__ inline bool nic_put_strided(const World& world, const void* target, const void* source,
                                       std::size_t bytes, Pe pe, std::size_t element,
                                       std::size_t target_stride, std::size_t source_stride,
                                       unsigned rank, unsigned size, std::size_t count) {
  const gda::Strides strides{target_stride, source_stride, rank, size, count};
  const gda::Route* const route = nic_route(world, target, bytes, pe);
  if (route == nullptr || strides.count == 0) return false;
  const std::size_t span = (strides.count - 1) * strides.source + element;
  if (element > gda::kInlineBytes && !gda::can_send(*world.gda, *route, source, span)) return false;
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put,
            gda::put_strided(*world.gda, *route, spread_of_block(), {offset, source, element},
                             strides, platform),
            offset, bytes);
  return true;
}

__device__ inline bool nic_put_value(const World& world, const void* target, std::uint64_t value,
                                     unsigned width, Pe pe) {
  const gda::Route* const route = nic_route(world, target, width, pe);
  if (route == nullptr) return false;
  const std::size_t offset = heap_offset(world, target);
  gda::CudaPlatform platform = nic_platform(world);
  check_nic(world, gda::Operation::put_value,
            gda::put_value(*world.gda, *route, spread_of_block(), offset, value, width, platform),
            offset, width);
  return true;
}

/// Sets the word, after what the proxy has. `ok`: whether it was posted.
__device__ inline bool nic_signal(const World& world, const std::uint64_t* flag,
                                  std::uint64_t value, Pe pe, bool& ok) {
  const gda::Route* const route = nic_route(world, flag, sizeof *flag, pe);
  if (route == nullptr) return false;
  ok = drain_proxy(world);
  if (!ok) return true;
  const std::size_t offset = heap_offset(world, flag);
  gda::CudaPlatform platform = nic_platform(world);
  ok = check_nic(world, gda::Operation::signal,
                 gda::signal(*world.gda, *route, spread_of_block(), {offset, value}, platform),
                 offset, sizeof *flag);
  return true;
}

#else

__device__ inline bool uses_nic(const World&) {
  return false;
}
__device__ inline bool drain_nic(const World&, Pe) {
  return true;
}
__device__ inline bool nic_put(const World&, const void*, const void*, std::size_t, Pe,
                               const std::uint64_t*, std::uint64_t) {
  return false;
}
__device__ inline bool nic_put_strided(const World&, const void*, const void*, std::size_t, Pe,
                                       std::size_t, std::size_t, std::size_t, unsigned, unsigned,
                                       std::size_t) {
  return false;
}
__device__ inline bool nic_put_value(const World&, const void*, std::uint64_t, unsigned, Pe) {
  return false;
}
__device__ inline bool nic_signal(const World&, const std::uint64_t*, std::uint64_t, Pe, bool&) {
  return false;
}

#endif

}  // namespace shoal::device::detail
