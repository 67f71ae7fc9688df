// SPDX-License-Identifier: Apache-2.0
// address.cuh: from an address in this PE's heap and a PE to an address that this GPU can use.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/detail/failure.cuh>

namespace shoal::device::detail {

/// The heap of `pe`, a PE of the world; nullptr when this GPU cannot reach it.
__device__ inline std::byte* base_of(const World& world, Pe pe) {
  return world.bases != nullptr ? world.bases[pe]
                                : world.window + static_cast<std::size_t>(pe) * world.stride;
}

/// The copy of [local, local + bytes) on `pe`. Returns nullptr and reports when the PE does not
/// exist, the range leaves the heap, or this GPU cannot reach it.
template <typename T>
__device__ T* resolve(const World& world, T* local, std::size_t bytes, Pe pe) {
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<const std::byte*>(local) - world.heap);
  const bool exists = static_cast<std::uint32_t>(pe) < static_cast<std::uint32_t>(world.n_pes) &&
                      offset <= world.heap_bytes && bytes <= world.heap_bytes - offset;
  std::byte* const base = exists ? base_of(world, pe) : nullptr;
  if (base != nullptr) return reinterpret_cast<T*>(base + offset);
  FailureReport report{};
  report.kind = exists ? FailureKind::unreachable : FailureKind::bad_address;
  report.awaited = pe;
  report.offset = offset;
  report.bytes = bytes;
  record(world, report);
  return nullptr;
}

/// Bytes from the first to the last of `count` elements; 2^64 - 1 on overflow.
__device__ inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  if (__umul64hi(count - 1, stride) != 0) return static_cast<std::size_t>(-1);
  const std::size_t bytes = (count - 1) * stride;
  return bytes + element < bytes ? static_cast<std::size_t>(-1) : bytes + element;
}

}  // namespace shoal::device::detail
