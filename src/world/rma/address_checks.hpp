// SPDX-License-Identifier: Apache-2.0
// address_checks.hpp: checks of the arguments of one-sided operations, the same for those of the
// host and on streams.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "world/parts.hpp"

namespace shoal::detail {

inline void check_pe(const WorldParts& world, const char* what, Pe pe) {
  require(pe >= 0 && pe < world.n_pes, Code::invalid_argument,
          "{}: PE {}; the world has PEs 0 to {}", what, pe, world.n_pes - 1);
}

/// Checks that [address, address + bytes) lies in the heap of a PE of the world, where there is
/// memory. Returns its offset.
inline std::size_t checked(const WorldParts& world, const char* what, RemoteAddress address,
                           std::size_t bytes) {
  check_pe(world, what, address.pe);
  const std::size_t size = world.heap_size();
  require(
      address.offset <= size && bytes <= size - address.offset, Code::invalid_argument,
      "{}: {} bytes at offset {} of PE {} leave the symmetric heap of {} bytes (SHOAL_SYMMETRIC_SIZE)",
      what, bytes, address.offset, address.pe, size);
  require(
      bytes == 0 || address.offset + bytes <= world.heap_mapped(), Code::invalid_argument,
      "{}: {} bytes at offset {} of PE {}: the heap of {} bytes has memory up to {} so far; allocate it first",
      what, bytes, address.offset, address.pe, size, world.heap_mapped());
  return address.offset;
}

/// As checked, for an aligned word of `width` bytes.
inline std::size_t checked_word(const WorldParts& world, const char* what, RemoteAddress address,
                                std::size_t width) {
  require(width == 4 || width == 8, Code::invalid_argument,
          "{}: a word of {} bytes; allowed: 4 or 8", what, width);
  require(address.offset % width == 0, Code::invalid_argument,
          "{}: offset {} of PE {} is not a multiple of the word's {} bytes", what, address.offset,
          address.pe, width);
  return checked(world, what, address, width);
}

inline std::size_t checked_signal(const WorldParts& world, const char* what,
                                  RemoteSpan<std::uint64_t> flag) {
  require(flag.count >= 1, Code::invalid_argument, "{}: an empty span as signal", what);
  return checked_word(world, what, flag.address, sizeof(std::uint64_t));
}

inline void check_local(const char* what, const void* buffer, std::size_t bytes) {
  require(buffer != nullptr || bytes == 0, Code::invalid_argument,
          "{}: the local buffer of {} bytes is null", what, bytes);
}

/// Bytes from the first to the last element; saturates, so that the range check refuses what
/// overflows.
inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count - 1, stride, &bytes) ||
      __builtin_add_overflow(bytes, element, &bytes))
    return SIZE_MAX;
  return bytes;
}

}  // namespace shoal::detail
