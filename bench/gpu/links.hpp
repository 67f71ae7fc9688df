// SPDX-License-Identifier: Apache-2.0
// links.hpp: bytes sent over the NVLinks of this thread's GPU, read from the counters of NVIDIA's
// management library (NVML).
#pragma once

#include <array>
#include <optional>

namespace shoal::bench::gpu {

/// Bytes over all NVLinks of a GPU: sent, received, raw sent, raw received. Raw bytes include
/// packet headers, requests and replies.
using LinkBytes = std::array<double, 4>;

/// Totals since the driver was loaded, in steps of 1 KiB; nullopt where NVML or the GPU has no
/// counters.
std::optional<LinkBytes> read_links();

}  // namespace shoal::bench::gpu
