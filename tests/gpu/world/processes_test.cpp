// SPDX-License-Identifier: Apache-2.0
// Worlds whose PEs are processes with heaps in GPU memory: handles by file descriptor, fabric and
// CUDA IPC.

#include <gtest/gtest.h>

#include "shoal/collective.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/process/cuda_heap.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

// Processes on one GPU are time-sliced, about a millisecond each.
constexpr Milliseconds kLimit{240'000};

SHOAL_PE_BODY(everything) {
  World world = World::open({pe.settings, nullptr});
  check_everything(world);
  world.close();
}

SHOAL_PE_BODY(growth) {
  World world = World::open({pe.settings, nullptr});
  check_growth(world);
  world.close();
}

class ProcessesOnGpu : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
    memory::DeviceRequest request;
    request.probe_fabric = true;
    const auto device = memory::open_device(request);
    if (GetParam() == std::string("fabric") && device->description().has_fabric == 0)
      GTEST_SKIP() << "this machine passes no fabric handles";
    if (GetParam() == std::string("fd") && device->description().has_fd == 0)
      GTEST_SKIP() << "this GPU's memory cannot be passed as file descriptors";
  }
};

TEST_P(ProcessesOnGpu, DoEverything) {
  expect_success(
      run_pes(4, "everything", {.env = cuda_heap_environment(GetParam()), .limit = kLimit}));
}
TEST_P(ProcessesOnGpu, ExchangeNewMemory) {
  expect_success(
      run_pes(4, "growth", {.env = cuda_heap_environment(GetParam(), "512M"), .limit = kLimit}));
}

INSTANTIATE_TEST_SUITE_P(Handles, ProcessesOnGpu, testing::Values("fd", "fabric", "ipc"),
                         [](const auto& handle) { return std::string(handle.param); });

}  // namespace
}  // namespace shoal::test
