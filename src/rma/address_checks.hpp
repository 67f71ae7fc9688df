// SPDX-License-Identifier: Apache-2.0
// address_checks.hpp: argument checks of one-sided operations, shared by the operations of the host
// and those on streams.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"
#include "pe/memory.hpp"
#include "pe/placement.hpp"
#include "world/state.hpp"

namespace shoal::detail {

inline void check_pe(const WorldState& world, const char* what, Pe pe) {
  const Pe n_pes = world.placement().n_pes;
  require(pe >= 0 && pe < n_pes, Code::invalid_argument,
          "SHOAL-N790: {}: PE {}; the world has PEs 0 to {}", what, pe, n_pes - 1);
}

/// Throws the reason for which `checked` refuses a range. Empty ranges may lie beyond the memory.
[[gnu::cold, gnu::noinline]] inline void refuse_range(const WorldState& world, const char* what,
                                                      RemoteAddress address, std::size_t bytes) {
  check_pe(world, what, address.pe);
  const Memory& memory = world.memory();
  const std::size_t size = memory.heap_size();
  require(address.offset <= size && bytes <= size - address.offset, Code::invalid_argument,
          "SHOAL-N791: {}: {} bytes at offset {} of PE {} leave the symmetric heap of {} bytes "
          "(SHOAL_SYMMETRIC_SIZE)",
          what, bytes, address.offset, address.pe, size);
  require(
      bytes == 0, Code::invalid_argument,
      "SHOAL-N792: {}: {} bytes at offset {} of PE {}: the heap of {} bytes has memory up to {} so "
      "far; allocate it first",
      what, bytes, address.offset, address.pe, size, memory.heap_mapped());
}

/// Checks that [address, address + bytes) lies in the heap of a PE of the world and is backed by
/// memory. Returns its offset.
///
/// Short operations take a few ns, so the arguments stay in registers: the messages, which take
/// references, are made in a function of their own.
inline std::size_t checked(const WorldState& world, const char* what, RemoteAddress address,
                           std::size_t bytes) {
  const std::size_t mapped = world.memory().heap_mapped();
  if (address.pe < 0 || address.pe >= world.placement().n_pes || address.offset > mapped ||
      bytes > mapped - address.offset) [[unlikely]]
    refuse_range(world, what, address, bytes);
  return address.offset;
}

[[gnu::cold, gnu::noinline]] inline void refuse_word(const char* what, RemoteAddress address,
                                                     std::size_t width) {
  require(width == 4 || width == 8, Code::invalid_argument,
          "SHOAL-N793: {}: a word of {} bytes; allowed: 4 or 8", what, width);
  fail_made(Code::invalid_argument,
            "SHOAL-N805: {}: offset {} of PE {} is not a multiple of the word's {} bytes", what,
            address.offset, address.pe, width);
}

/// Like checked, for an aligned word of `width` bytes.
inline std::size_t checked_word(const WorldState& world, const char* what, RemoteAddress address,
                                std::size_t width) {
  if ((width != 4 && width != 8) || address.offset % width != 0) [[unlikely]]
    refuse_word(what, address, width);
  return checked(world, what, address, width);
}

inline std::size_t checked_signal(const WorldState& world, const char* what,
                                  RemoteSpan<std::uint64_t> flag) {
  check_element(what, "signal", flag.count);
  return checked_word(world, what, flag.address, sizeof(std::uint64_t));
}

/// Data and signal of one put_signal must be on the same PE.
inline void check_same_pe(RemoteAddress target, RemoteSpan<std::uint64_t> flag) {
  require(flag.address.pe == target.pe, Code::invalid_argument,
          "SHOAL-N795: put_signal: data for PE {}, but a signal of PE {}; they must be one PE",
          target.pe, flag.address.pe);
}

inline void check_local(const char* what, const void* buffer, std::size_t bytes) {
  require(buffer != nullptr || bytes == 0, Code::invalid_argument,
          "SHOAL-N794: {}: the local buffer of {} bytes is null", what, bytes);
}

inline void check_equal_counts(std::size_t target, std::size_t source) {
  require(target == source, Code::invalid_argument,
          "SHOAL-N796: source has {} elements, target {}; they must be equal", source, target);
}

/// Bytes from the first to the last element. Saturates, so that the range check rejects a size that
/// overflows.
inline std::size_t extent(std::size_t element, std::size_t stride, std::size_t count) {
  if (count == 0) return 0;
  std::size_t bytes = 0;
  if (__builtin_mul_overflow(count - 1, stride, &bytes) ||
      __builtin_add_overflow(bytes, element, &bytes))
    return SIZE_MAX;
  return bytes;
}

/// Checks that `count` elements, `remote_stride` apart, lie in a remote span of `available`.
inline void check_strides(std::size_t available, std::ptrdiff_t remote_stride,
                          std::ptrdiff_t local_stride, std::size_t count) {
  require(remote_stride >= 1 && local_stride >= 1, Code::invalid_argument,
          "SHOAL-N797: strides of {} elements (remote) and {} (local); both must be at least 1",
          remote_stride, local_stride);
  require(extent(1, static_cast<std::size_t>(remote_stride), count) <= available,
          Code::invalid_argument,
          "SHOAL-N797: {} elements {} apart leave the remote span of {} elements", count,
          remote_stride, available);
}

}  // namespace shoal::detail
