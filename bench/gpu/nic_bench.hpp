// SPDX-License-Identifier: Apache-2.0
// nic_bench.hpp: the part of shoal-bench-gpu that measures the NIC that is a kernel.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shoal::bench::gpu {

struct NicBenchOptions {
  int here = 0, there = 0;  ///< GPUs
  int sms = 4;              ///< of each NIC
  double rate = 50;         ///< bytes per nanosecond
  int delay_ns = 0;         ///< one way
  std::vector<std::string> orders = {"strict", "adaptive", "unordered"};
  std::vector<int> queue_pairs = {1, 8};
  std::vector<std::uint32_t> bytes = {8, 256, 4096, 16384, 65536, 262144, 1048576};
  bool unthrottled = true;  ///< also measures without a throttle
  std::string json_path;
};

/// Throws Error.
void run_nic(const NicBenchOptions& options);

}  // namespace shoal::bench::gpu
