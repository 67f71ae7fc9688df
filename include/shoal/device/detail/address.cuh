// SPDX-License-Identifier: Apache-2.0
// address.cuh: from an address in this PE's heap and a PE to an address that this GPU can use.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/heaps.cuh>
#include <shoal/device/detail/unreached.cuh>

namespace shoal::device::detail {

/// The copy of [local, local + bytes) on `pe`. Returns nullptr when the PE does not exist, the
/// range leaves the heap, or this GPU cannot reach it.
template <typename T>
__device__ T* reach(const World& world, T* local, std::size_t bytes, Pe pe) {
  const std::size_t offset = heap_offset(world, local);
  std::byte* const base = exists(world, offset, bytes, pe) ? base_of(world, pe) : nullptr;
  return base == nullptr ? nullptr : reinterpret_cast<T*>(base + offset);
}

/// reach(); reports what is wrong.
template <typename T>
__device__ T* resolve(const World& world, T* local, std::size_t bytes, Pe pe) {
  T* const there = reach(world, local, bytes, pe);
  if (there == nullptr) report_unreached(world, local, bytes, pe);
  return there;
}

/// Bytes from the first to the last of `count` elements; 2^64 - 1 on overflow.
__device__ inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  if (__umul64hi(count - 1, stride) != 0) return static_cast<std::size_t>(-1);
  const std::size_t bytes = (count - 1) * stride;
  return bytes + element < bytes ? static_cast<std::size_t>(-1) : bytes + element;
}

}  // namespace shoal::device::detail
