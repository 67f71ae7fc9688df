// SPDX-License-Identifier: Apache-2.0
// world_gpu.hpp: shared by the tests on real GPUs.
#pragma once

#include <string>

#include "checks/world/operations.hpp"
#include "memory/device.hpp"

namespace shoal::test {

/// The reason why tests on a GPU cannot run here; empty if they can.
inline std::string why_no_gpu() {
  return memory::describe_gpus().unavailable;
}

/// A heap in GPU memory on all GPUs; PEs share GPUs if there are more PEs.
inline Settings gpu_world_settings(std::size_t size = std::size_t{8} << 20) {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = size;
  settings.max_teams = 40;
  return settings;
}

}  // namespace shoal::test
