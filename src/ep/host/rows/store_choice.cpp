// SPDX-License-Identifier: Apache-2.0
#include "ep/host/rows/store_choice.hpp"

#include <unistd.h>

#include <algorithm>

namespace shoal::ep::host {

// Virtual machines report the caches of the whole socket but have only a share of them.
constexpr std::size_t kDefault = std::size_t{16} << 20, kMost = std::size_t{32} << 20;

std::size_t last_level_cache_bytes() {
  static const std::size_t bytes = [] {
    const long reported = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (reported <= 0) return kDefault;
    return std::min(static_cast<std::size_t>(reported), kMost);
  }();
  return bytes;
}

}  // namespace shoal::ep::host
