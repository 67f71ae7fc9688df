// SPDX-License-Identifier: Apache-2.0
// word.cuh: integers by their width; loads and atomics of words of 4 or 8 bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include <shoal/device/ptx.cuh>
#include <shoal/device/scope.cuh>
#include <shoal/operation.hpp>

namespace shoal::device::detail {

using shoal::detail::holds;

/// The unsigned integer of 1, 2, 4 or 8 bytes, and two of them for 16.
template <std::size_t bytes>
__device__ constexpr auto make_unit() {
  static_assert(bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8 || bytes == 16);
  if constexpr (bytes == 1) return std::uint8_t{};
  if constexpr (bytes == 2) return std::uint16_t{};
  if constexpr (bytes == 4) return std::uint32_t{};
  if constexpr (bytes == 8) return std::uint64_t{};
  if constexpr (bytes == 16) return ulonglong2{};
}
template <std::size_t bytes>
using UnitOf = decltype(make_unit<bytes>());

/// The unsigned type of a word's width, as the instructions take it.
template <SHOAL_WORD T>
using Bits = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
/// The same as CUDA's atomic functions take it.
template <SHOAL_WORD T>
using AtomicBits = std::conditional_t<sizeof(T) == 8, unsigned long long, unsigned>;

template <SHOAL_WORD T>
__device__ T load_acquire(const T* variable) {
  return static_cast<T>(ptx::ld_acquire_sys(reinterpret_cast<const Bits<T>*>(variable)));
}

/// Relaxed, at system scope; returns the value before.
template <SHOAL_WORD T>
__device__ T atomic_on(AtomicOp op, T* address, T operand, T compare) {
  auto* const word = reinterpret_cast<AtomicBits<T>*>(address);
  const auto value = static_cast<AtomicBits<T>>(operand);
  switch (op) {
    case AtomicOp::fetch:
      return static_cast<T>(atomicAdd_system(word, AtomicBits<T>{0}));
    case AtomicOp::set:
    case AtomicOp::swap:
      return static_cast<T>(atomicExch_system(word, value));
    case AtomicOp::add:
      return static_cast<T>(atomicAdd_system(word, value));
    case AtomicOp::bit_and:
      return static_cast<T>(atomicAnd_system(word, value));
    case AtomicOp::bit_or:
      return static_cast<T>(atomicOr_system(word, value));
    case AtomicOp::bit_xor:
      return static_cast<T>(atomicXor_system(word, value));
    case AtomicOp::compare_swap:
      return static_cast<T>(atomicCAS_system(word, static_cast<AtomicBits<T>>(compare), value));
  }
  return T{};
}

}  // namespace shoal::device::detail
