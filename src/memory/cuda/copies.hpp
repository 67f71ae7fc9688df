// SPDX-License-Identifier: Apache-2.0
// copies.hpp: copies between buffers that may be on the host, pinned or not, or on a GPU.
#pragma once

#include <cstddef>

#include "memory/cuda/driver.hpp"

namespace shoal::memory::cuda {

/// True if memory at `pointer` is in a GPU, so that the host does not read it directly. The driver
/// does not know ordinary memory.
bool on_gpu(const Driver& driver, const void* pointer);

/// `count` elements of `element` bytes, `pitch` bytes apart.
struct Elements {
  std::byte* start;
  std::size_t element, count, pitch;
};

/// Starts a copy on `stream` between elements of the same size and number. Pitches are at least the
/// size of an element and below 2 GiB.
CUresult start_copy(const Driver& driver, const Elements& target, const Elements& source,
                    CUstream stream);

}  // namespace shoal::memory::cuda
