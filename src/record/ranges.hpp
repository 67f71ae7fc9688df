// SPDX-License-Identifier: Apache-2.0
// ranges.hpp: NVTX ranges of operations, for profilers. They exist in builds with CUDA.
#pragma once

#include <cstddef>

namespace shoal::detail::record {

#ifdef SHOAL_WITH_CUDA
/// True if a profiler is attached to this process that reads ranges. Asked once per process.
bool has_profiler() noexcept;
/// Begins a range of this thread in the domain "shoal", named after the index in kOperationNames.
/// Only where there is a profiler.
void begin_range(std::size_t operation) noexcept;
/// Ends the range of this thread that began last.
void end_range() noexcept;
#else
inline bool has_profiler() noexcept {
  return false;
}
inline void begin_range(std::size_t) noexcept {}
inline void end_range() noexcept {}
#endif

}  // namespace shoal::detail::record
