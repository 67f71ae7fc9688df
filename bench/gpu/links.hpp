// SPDX-License-Identifier: Apache-2.0
// links.hpp: what went over the NVLinks of this thread's GPU, by the counters of NVIDIA's
// management library (NVML).
#pragma once

#include <optional>

namespace shoal::bench::gpu {

/// Bytes over all NVLinks of a GPU. Raw: with packet headers, requests and answers.
struct LinkBytes {
  double sent = 0, received = 0, raw_sent = 0, raw_received = 0;
};

/// Since the driver was loaded, in steps of 1 KiB; nothing where NVML or the GPU does not say.
std::optional<LinkBytes> read_links();

/// A share of what went over the links between two readings.
std::optional<LinkBytes> part_of_links(const std::optional<LinkBytes>& before,
                                       const std::optional<LinkBytes>& after, double part);

}  // namespace shoal::bench::gpu
