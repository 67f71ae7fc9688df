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

struct NoGate {
  SHOAL_HOST_DEVICE void operator()() const {}
};

/// The share of lane `lane` of `lanes` of a copy. Calls gate() after it has loaded what it can
/// before its first store; all lanes call it together. A lane has up to `kAtOnce` loads under way.
template <std::uint32_t kAtOnce, typename Platform, typename Gate = NoGate>
SHOAL_HOST_DEVICE void copy(const Platform& platform, std::byte* to, const std::byte* from,
                            std::uint64_t bytes, std::uint32_t lane, std::uint32_t lanes,
                            const Gate& gate = {}) {
  constexpr std::uint64_t kUnit = sizeof(Vector);
  const std::uint64_t to_unit = (kUnit - detail::offset_in(to, kUnit)) & (kUnit - 1);
  const std::uint64_t head = to_unit < bytes ? to_unit : bytes;
  const std::uint64_t units = (bytes - head) / kUnit;
  bool is_open = false;
  const auto open = [&] {
    if (!is_open) gate();
    is_open = true;
  };
  if (detail::offset_in(from + head, kUnit) == 0) {
    for (std::uint64_t base = 0; base < units; base += kAtOnce * lanes) {
      Vector values[kAtOnce];
      const std::uint64_t at = base + lane;
      for (std::uint32_t i = 0; i < kAtOnce; ++i)
        if (at + i * lanes < units)
          values[i] = platform.template load<Vector>(from + head + (at + i * lanes) * kUnit);
      open();
      for (std::uint32_t i = 0; i < kAtOnce; ++i)
        if (at + i * lanes < units)
          platform.template store<Vector>(to + head + (at + i * lanes) * kUnit, values[i]);
    }
    open();
  } else {
    open();
    for (std::uint64_t at = lane; at < units; at += lanes)
      platform.template store<Vector>(to + head + at * kUnit,
                                      detail::load_any<Vector>(platform, from + head + at * kUnit));
  }
  if (lane != 0) return;
  detail::copy_edge(platform, to, from, head);
  const std::uint64_t end = head + units * kUnit;
  detail::copy_edge(platform, to + end, from + end, bytes - end);
}

}  // namespace shoal::emulator::gpu
