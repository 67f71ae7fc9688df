// SPDX-License-Identifier: Apache-2.0
// nic_bench.hpp: the part of shoal-bench-gpu that measures the NIC that is a kernel.
#pragma once

#include <string>

namespace shoal::bench::gpu {

struct NicBenchOptions {
  int here = 0, there = 0;  ///< GPUs
  int sms = 4;              ///< of each NIC
  double rate = 50;         ///< bytes per nanosecond
  int delay_ns = 0;         ///< one way
  std::string json_path;
};

/// Throws Error.
void run_nic(const NicBenchOptions& options);

}  // namespace shoal::bench::gpu
