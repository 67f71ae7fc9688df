// SPDX-License-Identifier: Apache-2.0
// big_endian.hpp: integers as the hardware stores them.
#pragma once

#include <atomic>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace shoal::emulator {

static_assert(std::endian::native == std::endian::little, "the emulator swaps bytes");

template <std::unsigned_integral T>
constexpr T swap_bytes(T value) {
  if constexpr (sizeof(T) == 1)
    return value;
  else if constexpr (sizeof(T) == 2)
    return __builtin_bswap16(value);
  else if constexpr (sizeof(T) == 4)
    return __builtin_bswap32(value);
  else
    return __builtin_bswap64(value);
}

template <std::unsigned_integral T>
T load_be(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return swap_bytes(value);
}

template <std::unsigned_integral T>
void store_be(std::byte* to, T value) {
  value = swap_bytes(value);
  std::memcpy(to, &value, sizeof value);
}

/// Words that the other side writes or reads at the same time, such as doorbell records. A store
/// follows everything that this thread has stored before.
inline std::uint32_t load_shared_be32(const std::byte* from) {
  auto* const word = reinterpret_cast<std::uint32_t*>(const_cast<std::byte*>(from));
  return swap_bytes(std::atomic_ref<std::uint32_t>(*word).load(std::memory_order_acquire));
}
inline void store_shared_be32(std::byte* to, std::uint32_t value) {
  std::atomic_ref<std::uint32_t>(*reinterpret_cast<std::uint32_t*>(to))
      .store(swap_bytes(value), std::memory_order_release);
}

}  // namespace shoal::emulator
