// SPDX-License-Identifier: Apache-2.0
// store_choice.hpp: whether an operation's stores should bypass the caches. Pure.
#pragma once

#include <cstddef>

#include "ep/host/rows/row_ops.hpp"

namespace shoal::ep::host {

/// Streamed when one operation of all ranks moves more than the last-level cache holds, else
/// cached.
constexpr Store choose_store(std::size_t bytes_per_rank, std::int32_t ranks,
                             std::size_t cache_bytes) {
  return bytes_per_rank * ranks > cache_bytes ? Store::streamed : Store::cached;
}

/// Size of the last-level cache as the operating system reports it, at most 32 MiB; 16 MiB if it
/// reports none.
std::size_t last_level_cache_bytes();

}  // namespace shoal::ep::host
