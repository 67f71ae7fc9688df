// SPDX-License-Identifier: Apache-2.0
// copy.hpp: copies of long blocks between heaps.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace shoal::collective {

/// memcpy in pieces. The C library copies more than about 2 KiB by one string instruction (`rep
/// movsb`), which on some processors is slow for lines that another core has written, up to twice
/// the time at 256 KiB; shorter copies take its loop of vector loads and stores.
inline void copy_block(void* target, const void* source, std::size_t bytes) noexcept {
  constexpr std::size_t kPiece = 2048;
  auto* to = static_cast<std::byte*>(target);
  const auto* from = static_cast<const std::byte*>(source);
  while (bytes > kPiece) {
    std::memcpy(to, from, kPiece);
    to += kPiece;
    from += kPiece;
    bytes -= kPiece;
  }
  if (bytes != 0) std::memcpy(to, from, bytes);
}

}  // namespace shoal::collective
