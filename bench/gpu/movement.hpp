// SPDX-License-Identifier: Apache-2.0
// movement.hpp: moves rows between PEs by lists of addresses, without a protocol.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace shoal::bench::gpu {

/// A row that is loaded once and stored to `count` targets, at most 32, from targets[first] on.
struct RowMove {
  const std::byte* from;
  std::uint32_t first, count;
};

struct Movement {
  const RowMove* moves;
  std::byte* const* targets;
  std::uint32_t count;
  std::uint32_t row_bytes;  ///< a multiple of 16
};

/// One thread block an SM.
void move_rows(cudaStream_t stream, const Movement& movement, std::int32_t sms);

}  // namespace shoal::bench::gpu
