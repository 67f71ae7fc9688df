// SPDX-License-Identifier: Apache-2.0
// cuda_heap.hpp: the environment of PEs whose heaps are in GPU memory, or in that of the fake
// driver.
#pragma once

#include "support/process/process.hpp"

namespace shoal::test {

/// `handle`: SHOAL_CUDA_HANDLE. `size`: of each heap.
inline Environment cuda_heap_environment(const std::string& handle,
                                         const std::string& size = "8M") {
  return {{"SHOAL_HEAP", "cuda"},
          {"SHOAL_CUDA_HANDLE", handle},
          {"SHOAL_SYMMETRIC_SIZE", size},
          {"SHOAL_MAX_TEAMS", "40"},
          {"SHOAL_TIMEOUT_MS", "20000"}};
}

}  // namespace shoal::test
