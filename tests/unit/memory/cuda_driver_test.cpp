// SPDX-License-Identifier: Apache-2.0
// The table of driver functions, the GPU of a PE, and the choices that follow from descriptions of
// GPUs.
// @traits one_thread
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstdlib>

#include "memory/cuda/driver.hpp"
#include "memory/device_heap.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using memory::DeviceDescription;
using memory::DeviceRequest;
using memory::HandleKind;

TEST(CudaDriver, SaysWhyThereIsNone) {
  std::string why;
  if (memory::cuda::find_driver(&why) != nullptr) GTEST_SKIP() << "this machine has a CUDA driver";
  expect_parts(why, {"CUDA driver"});
  expect_error(Code::unsupported, why.c_str(), [] { memory::cuda::driver(); });
  expect_error(Code::unsupported, "SHOAL_HEAP is cuda", [] { memory::open_device({}); });
  EXPECT_EQ(memory::describe_gpus().unavailable, why);
}

TEST(CudaDriver, NamesErrors) {
  const FakeCuda fake;
  expect_error(Code::exhausted, "no room: CUDA_ERROR_OUT_OF_MEMORY: out of memory", [] {
    memory::cuda::check(memory::cuda::driver(), CUDA_ERROR_OUT_OF_MEMORY, "no room");
  });
  expect_error(Code::system, "it: CUDA_ERROR_FAKE",
               [] { memory::cuda::check(memory::cuda::driver(), CUDA_ERROR_UNKNOWN, "it"); });
  expect_error(Code::system, "; Setting: SHOAL_HEAP.", [] {
    memory::cuda::check(memory::cuda::driver(), CUDA_ERROR_UNKNOWN, "it", "SHOAL_HEAP");
  });
  memory::cuda::check(memory::cuda::driver(), CUDA_SUCCESS, "nothing");
}

TEST(CudaDevice, IsChosenByIndexOrBySetting) {
  const FakeCuda fake({.gpus = 3});
  for (const int index : {0, 1, 2, 3, 7})
    EXPECT_EQ(memory::open_device({.index = index})->device, index % 3);
  const auto device = memory::open_device({.ordinal = 1, .index = 2});
  EXPECT_EQ(device->device, 1);
  EXPECT_EQ(device->multiprocessors, 132);
  EXPECT_EQ(device->compute_capability, 90);
  EXPECT_EQ(device->granularity, std::size_t{2} << 20);
  expect_error(Code::invalid_argument, "SHOAL_DEVICE is 3; allowed: -1 to 2",
               [] { memory::open_device({.ordinal = 3}); });
}

TEST(CudaDevice, NeedsAGpu) {
  const FakeCuda fake({.gpus = 0});
  expect_error(Code::unsupported, "reports no GPU", [] { memory::open_device({}); });
  expect_parts(memory::describe_gpus().unavailable, {"no GPU"});
}

TEST(CudaDevice, ReleasesWhatItTookWhenItFails) {
  for (const char* const function :
       {"retain_context", "device_uuid", "granularity", "stream_create", "set_current"}) {
    const FakeCuda fake(
        {.failing_function = function, .failing_call = 0, .failure = CUDA_ERROR_UNKNOWN});
    if (std::string(function) == "retain_context")
      continue;  // kept for the process: not called again
    expect_error(Code::system, "CUDA_ERROR_FAKE", [] { memory::open_device({.ordinal = 0}); });
    EXPECT_EQ(FakeCuda::leaks(), "") << function;
  }
}

TEST(CudaDevice, WaitsUntilItsDeadline) {
  const FakeCuda fake(
      {.failing_function = "stream_query", .failures = 1 << 30, .failure = CUDA_ERROR_NOT_READY});
  const auto device = memory::open_device({.timeout = std::chrono::milliseconds(30)});
  expect_error(Code::timeout, "SHOAL_TIMEOUT_MS", [&] { device->synchronize("put"); });
}

TEST(CudaDevice, ReportsWhatItsStreamReports) {
  const FakeCuda fake({.failing_function = "stream_query", .failing_call = 1});  // 0: a new stream
  const auto device = memory::open_device({});
  expect_error(Code::system, "put failed on GPU 0: CUDA_ERROR_FAKE",
               [&] { device->synchronize("put"); });
}

TEST(GpuReport, ShowsWhoReachesWhom) {
  const FakeCuda fake({.gpus = 3, .peer_access = [](int a, int b) { return a + b != 3; }});
  const memory::GpuReport report = memory::describe_gpus();
  ASSERT_EQ(report.gpus.size(), 3u);
  EXPECT_EQ(report.unavailable, "");
  EXPECT_EQ(report.driver_version, 13000);
  EXPECT_EQ(report.gpus[1].peers, (std::vector<std::string>{"yes", "self", "no"}));
  EXPECT_EQ(report.gpus[2].pci, "0000:02:00.0");
  EXPECT_TRUE(report.gpus[0].has_fabric);
  EXPECT_FALSE(report.gpus[0].multicast);
}

// Each capability is reported as the driver gives it, independently of the others.
TEST(GpuReport, ShowsMulticastAndStreamMemoryOperations) {
  for (const bool multicast : {false, true})
    for (const bool stream_memory_ops : {false, true}) {
      const FakeCuda fake(
          {.gpus = 2, .multicast = multicast, .stream_memory_ops = stream_memory_ops});
      const memory::GpuReport report = memory::describe_gpus();
      ASSERT_EQ(report.gpus.size(), 2u);
      for (const memory::GpuInfo& gpu : report.gpus) {
        EXPECT_EQ(gpu.multicast, multicast);
        EXPECT_EQ(gpu.stream_memory_ops, stream_memory_ops);
        EXPECT_EQ(gpu.multiprocessors, 132);
      }
    }
}

// If the driver fails to report a property, the report leaves it out and has the others.
TEST(GpuReport, IsCompleteIfTheDriverFailsToReportAProperty) {
  const FakeCuda fake({.gpus = 1,
                       .multicast = true,
                       .failing_function = "device_attribute",
                       .failures = 1000,
                       .failure = CUDA_ERROR_INVALID_VALUE});
  const memory::GpuReport report = memory::describe_gpus();
  ASSERT_EQ(report.gpus.size(), 1u);
  EXPECT_FALSE(report.gpus[0].multicast);
  EXPECT_EQ(report.gpus[0].multiprocessors, 0);
  EXPECT_EQ(report.gpus[0].peers, std::vector<std::string>{"self"});
}

std::vector<DeviceDescription> devices(std::size_t n) {
  DeviceDescription all;
  all.has_vmm = all.has_fd = all.has_fabric = 1;
  all.granularity = std::size_t{2} << 20;
  return std::vector<DeviceDescription>(n, all);
}

TEST(HandleChoice, PrefersDescriptorsInsideAHost) {
  const std::vector<std::int32_t> one{0, 0, 0}, two{0, 0, 1};
  auto some = devices(3);
  EXPECT_EQ(memory::choose_handle("automatic", some, one), HandleKind::fd);
  EXPECT_EQ(memory::choose_handle("automatic", some, two), HandleKind::fabric);
  EXPECT_EQ(memory::choose_handle("fd", some, two), HandleKind::fd);
  EXPECT_EQ(memory::choose_handle("fabric", some, one), HandleKind::fabric);
  EXPECT_EQ(memory::choose_handle("ipc", some, one), HandleKind::ipc);
  some[1].has_fabric = 0;
  EXPECT_EQ(memory::choose_handle("automatic", some, two), HandleKind::fd);
  expect_error(Code::unsupported, "SHOAL_CUDA_HANDLE is fabric, but the GPU of PE 1",
               [&] { memory::choose_handle("fabric", some, one); });
  some[2].has_fd = 0;
  EXPECT_EQ(memory::choose_handle("automatic", some, one), HandleKind::ipc);
  expect_error(Code::unsupported, "SHOAL_CUDA_HANDLE is fd, but the GPU of PE 2",
               [&] { memory::choose_handle("fd", some, one); });
}

TEST(HeapSize, SuitsEveryGpu) {
  auto some = devices(2);
  EXPECT_EQ(memory::device_heap_bytes(1, some), std::size_t{2} << 20);
  some[1].granularity = std::size_t{32} << 20;
  EXPECT_EQ(memory::device_heap_bytes((std::size_t{32} << 20) + 1, some), std::size_t{64} << 20);
}

}  // namespace
}  // namespace shoal::test

#else

TEST(CudaDriver, IsNotInThisBuild) {
  GTEST_SKIP() << "this build has no CUDA";
}

#endif
