// SPDX-License-Identifier: Apache-2.0
// links.hpp: bytes sent over the NVLinks of this thread's GPU, read from the counters of NVIDIA's
// management library (NVML).
#pragma once

#include <optional>

namespace shoal::bench::gpu {

/// Bytes over all NVLinks of a GPU. Raw bytes include packet headers, requests and replies.
struct LinkBytes {
  double sent = 0, received = 0, raw_sent = 0, raw_received = 0;
};

/// Totals since the driver was loaded, in steps of 1 KiB; nullopt where NVML or the GPU has no
/// counters.
std::optional<LinkBytes> read_links();

/// A share of what went over the links between two readings.
std::optional<LinkBytes> part_of_links(const std::optional<LinkBytes>& before,
                                       const std::optional<LinkBytes>& after, double part);

}  // namespace shoal::bench::gpu
