// SPDX-License-Identifier: Apache-2.0
// copy.cuh: copies by the threads of a scope, with the widest accesses that both addresses allow.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/ptx.cuh>

namespace shoal::device::detail {

enum class Direction { put, get };

/// The caller has ordered what a put reads. What a get reads may change at any time, so a get
/// bypasses the caches of this SM.
template <Direction direction, typename Unit>
__device__ Unit load(const Unit* address) {
  if constexpr (direction == Direction::get) {
    return ptx::ld_relaxed_sys(address);
  } else {
    return *address;
  }
}

/// Loads in flight per thread. A load from a peer takes about a microsecond.
inline constexpr int kUnroll = 4;

/// `count` elements; threads `rank` of `size` share the work.
template <Direction direction, int kInFlight, typename Unit>
__device__ void copy_units(unsigned rank, unsigned size, Unit* target, const Unit* source,
                           std::size_t count) {
  std::size_t i = rank;
  for (; i + (kInFlight - 1) * static_cast<std::size_t>(size) < count;
       i += kInFlight * static_cast<std::size_t>(size)) {
    Unit values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k)
      values[k] = load<direction>(source + i + static_cast<std::size_t>(k) * size);
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) target[i + static_cast<std::size_t>(k) * size] = values[k];
  }
#pragma unroll 1
  for (; i < count; i += size) target[i] = load<direction>(source + i);
}

/// `bytes` bytes between addresses that are equal modulo sizeof(Unit).
template <Direction direction, int kInFlight, typename Unit>
__device__ void copy_as(unsigned rank, unsigned size, std::uint8_t* target,
                        const std::uint8_t* source, std::size_t bytes) {
  const std::size_t misaligned =
      (sizeof(Unit) - reinterpret_cast<std::uintptr_t>(target) % sizeof(Unit)) % sizeof(Unit);
  const std::size_t head = misaligned < bytes ? misaligned : bytes;
  copy_units<direction, kInFlight>(rank, size, target, source, head);
  const std::size_t units = (bytes - head) / sizeof(Unit);
  copy_units<direction, kInFlight>(rank, size, reinterpret_cast<Unit*>(target + head),
                                   reinterpret_cast<const Unit*>(source + head), units);
  const std::size_t done = head + units * sizeof(Unit);
  copy_units<direction, kInFlight>(rank, size, target + done, source + done, bytes - done);
}

/// Copies with the widest accesses that both addresses allow; a single aligned 4- or 8-byte word is
/// one access. Threads `rank` of `size` share the work.
template <Direction direction, int kInFlight = kUnroll>
__device__ void copy(unsigned rank, unsigned size, void* target_bytes, const void* source_bytes,
                     std::size_t bytes) {
  auto* const target = static_cast<std::uint8_t*>(target_bytes);
  const auto* const source = static_cast<const std::uint8_t*>(source_bytes);
  const auto both =
      reinterpret_cast<std::uintptr_t>(target) | reinterpret_cast<std::uintptr_t>(source);
  const auto apart =
      reinterpret_cast<std::uintptr_t>(target) ^ reinterpret_cast<std::uintptr_t>(source);
  if ((both | bytes) % 16 == 0) {  // nothing before and after: the instructions cost as much
    copy_units<direction, kInFlight>(rank, size, reinterpret_cast<ulonglong2*>(target),
                                     reinterpret_cast<const ulonglong2*>(source), bytes / 16);
  } else if (bytes == 8 && both % 8 == 0) {
    copy_as<direction, kInFlight, std::uint64_t>(rank, size, target, source, bytes);
  } else if (bytes == 4 && both % 4 == 0) {
    copy_as<direction, kInFlight, std::uint32_t>(rank, size, target, source, bytes);
  } else if (apart % 16 == 0) {
    copy_as<direction, kInFlight, ulonglong2>(rank, size, target, source, bytes);
  } else if (apart % 8 == 0) {
    copy_as<direction, kInFlight, std::uint64_t>(rank, size, target, source, bytes);
  } else if (apart % 4 == 0) {
    copy_as<direction, kInFlight, std::uint32_t>(rank, size, target, source, bytes);
  } else if (apart % 2 == 0) {
    copy_as<direction, kInFlight, std::uint16_t>(rank, size, target, source, bytes);
  } else {
    copy_units<direction, kInFlight>(rank, size, target, source, bytes);
  }
}

/// `count` elements of `element` bytes, `target_stride` and `source_stride` bytes apart.
template <Direction direction>
__device__ void copy_strided(std::size_t rank, std::size_t size, std::uint8_t* target,
                             std::size_t target_stride, const std::uint8_t* source,
                             std::size_t source_stride, std::size_t element, std::size_t count) {
  for (std::size_t i = rank; i < count; i += size)
    copy<direction>(0, 1, target + i * target_stride, source + i * source_stride, element);
}

}  // namespace shoal::device::detail
