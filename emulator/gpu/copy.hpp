// SPDX-License-Identifier: Apache-2.0
// copy.hpp: moves bytes as DMA does: aligned words of the target are stored by one store. For host
// and device code.
//
// A Platform has load<T>(from) and store<T>(to, value) for naturally aligned integers of 1, 2, 4
// and 8 bytes and for Vector; stores become visible in any order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/config.hpp"

namespace shoal::emulator::gpu {

struct alignas(16) Vector {
  std::uint64_t low, high;
};

namespace detail {

SHOAL_HOST_DEVICE inline std::uint32_t offset_in(const std::byte* at, std::uint32_t unit) {
  return static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(at)) & (unit - 1);
}

/// `from` has any alignment.
template <typename T, typename Platform>
SHOAL_HOST_DEVICE T load_any(const Platform& platform, const std::byte* from) {
  if constexpr (sizeof(T) == 1) {
    return platform.template load<T>(from);
  } else if constexpr (sizeof(T) == sizeof(Vector)) {
    if (offset_in(from, sizeof(T)) == 0) return platform.template load<Vector>(from);
    return {load_any<std::uint64_t>(platform, from), load_any<std::uint64_t>(platform, from + 8)};
  } else {
    if (offset_in(from, sizeof(T)) == 0) return platform.template load<T>(from);
    if (sizeof(T) == 8 && offset_in(from, 4) == 0)
      return static_cast<T>(std::uint64_t{platform.template load<std::uint32_t>(from)} |
                            std::uint64_t{platform.template load<std::uint32_t>(from + 4)} << 32);
    std::uint64_t value = 0;
    for (std::uint32_t i = 0; i < sizeof(T); ++i)
      value |= std::uint64_t{platform.template load<std::uint8_t>(from + i)} << 8 * i;
    return static_cast<T>(value);
  }
}

template <typename T, typename Platform>
SHOAL_HOST_DEVICE bool copy_word(const Platform& platform, std::byte*& to, const std::byte*& from,
                                 std::uint64_t& bytes) {
  if (bytes < sizeof(T) || offset_in(to, sizeof(T)) != 0) return false;
  platform.template store<T>(to, load_any<T>(platform, from));
  to += sizeof(T);
  from += sizeof(T);
  bytes -= sizeof(T);
  return true;
}

/// By the largest words that fit.
template <typename Platform>
SHOAL_HOST_DEVICE void copy_edge(const Platform& platform, std::byte* to, const std::byte* from,
                                 std::uint64_t bytes) {
  while (bytes != 0)
    (void)(copy_word<std::uint64_t>(platform, to, from, bytes) ||
           copy_word<std::uint32_t>(platform, to, from, bytes) ||
           copy_word<std::uint16_t>(platform, to, from, bytes) ||
           copy_word<std::uint8_t>(platform, to, from, bytes));
}

}  // namespace detail

/// The share of lane `lane` of `lanes` of a copy.
template <typename Platform>
SHOAL_HOST_DEVICE void copy(const Platform& platform, std::byte* to, const std::byte* from,
                            std::uint64_t bytes, std::uint32_t lane, std::uint32_t lanes) {
  constexpr std::uint64_t kUnit = sizeof(Vector);
  constexpr int kAtOnce = 8;
  const std::uint64_t to_unit = (kUnit - detail::offset_in(to, kUnit)) & (kUnit - 1);
  const std::uint64_t head = to_unit < bytes ? to_unit : bytes;
  if (lane == 0) detail::copy_edge(platform, to, from, head);
  to += head;
  from += head;
  bytes -= head;
  const std::uint64_t units = bytes / kUnit;
  std::uint64_t at = lane;
  if (detail::offset_in(from, kUnit) == 0)
    for (; at + (kAtOnce - 1) * lanes < units; at += kAtOnce * lanes) {
      Vector values[kAtOnce];
      for (int i = 0; i < kAtOnce; ++i)
        values[i] = platform.template load<Vector>(from + (at + i * lanes) * kUnit);
      for (int i = 0; i < kAtOnce; ++i)
        platform.template store<Vector>(to + (at + i * lanes) * kUnit, values[i]);
    }
  for (; at < units; at += lanes)
    platform.template store<Vector>(to + at * kUnit,
                                    detail::load_any<Vector>(platform, from + at * kUnit));
  if (lane == 0)
    detail::copy_edge(platform, to + units * kUnit, from + units * kUnit, bytes % kUnit);
}

}  // namespace shoal::emulator::gpu
