// SPDX-License-Identifier: Apache-2.0
// Shared buffers of any allocator on real GPUs: memory of cudaMalloc and mapped memory, with PEs as
// threads and as processes.

#include <gtest/gtest.h>

#include "checks/world/share.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

SHOAL_PE_BODY(sharing) {
  World world = World::open({pe.settings, nullptr});
  check_sharing(world);
  world.close();
}

class SharedBuffersOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

TEST_F(SharedBuffersOnGpu, AmongThreadsOfOneGpu) {
  Settings settings = gpu_world_settings();
  settings.device = 0;
  run_threads(4, settings, check_sharing);
}

TEST_F(SharedBuffersOnGpu, AmongThreads) {
  run_threads(8, gpu_world_settings(), check_sharing);
}

TEST_F(SharedBuffersOnGpu, AmongProcesses) {
  expect_success(run_pes(4, "sharing",
                         {.env = {{"SHOAL_HEAP", "cuda"},
                                  {"SHOAL_SYMMETRIC_SIZE", "8M"},
                                  {"SHOAL_MAX_TEAMS", "40"},
                                  {"SHOAL_TIMEOUT_MS", "20000"}}}));
}

}  // namespace
}  // namespace shoal::test
