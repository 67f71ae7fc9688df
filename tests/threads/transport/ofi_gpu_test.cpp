// SPDX-License-Identifier: Apache-2.0
// Heaps of GPUs over libfabric, with a fake CUDA driver: where the provider reaches their memory,
// data travel by RDMA without copies through host memory. Providers over TCP reach pinned host
// memory alone.
// @traits polls, uninstrumented
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include "checks/world/gpu_heap.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/ofi.hpp"

namespace shoal::test {
namespace {

Settings gpu_settings(const std::string& handle) {
  Settings settings = with_gpu_heap(ofi_settings(), "ofi,staged");
  settings.cuda_handle = handle;
  return settings;
}

void expect_data(World& world, const std::string& how) {
  test::expect_data(world, how, "ofi");
}

TEST(OfiGpu, DoesEveryOperation) {
  SHOAL_SKIP_WITHOUT_OFI();
  for (const char* const provider : {"tcp;ofi_rxm", "automatic"}) {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_settings("pinned");
    settings.ofi_provider = provider;
    run_threads(2, settings, [](World& world) {
      expect_data(world, "by RDMA (host memory)");
      check_everything(world);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(OfiGpu, CopiesNothing) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("pinned"), check_copies_nothing);
}

TEST(OfiGpu, ShowsDataBeforeItsSignal) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("pinned"), check_data_before_signal);
}

TEST(OfiGpu, RegistersTheStepsOfAGrowingHeap) {
  SHOAL_SKIP_WITHOUT_OFI();
  {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_settings("pinned");
    settings.symmetric_size = 3 * kHeapStep;
    run_threads(2, settings, [](World& world) {
      const auto low = world.heap().allocate<std::byte>(kHeapStep - 300'000);
      exchange(world, 250'000);  // across the end of the first step
      expect_data(world, "by RDMA (host memory)");
      barrier(world.team());
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(OfiGpu, PassesThroughHostMemoryWhereTheProviderHasNoAccess) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("automatic"), [](World& world) {
    const std::string found = world.describe_transport(1 - world.my_pe());
    expect_parts(found, {"; data through host memory: provider tcp;ofi_rxm does not access GPU "
                         "memory on ",
                         "(FI_HMEM); control ofi"});
    exchange(world, 100'000);
  });
  Settings off = gpu_settings("pinned");
  off.ofi_gpu_memory = "off";
  run_threads(2, off, [](World& world) {
    expect_data(world, "through host memory: SHOAL_OFI_GPU_MEMORY is off");
    exchange(world, 100'000);
  });
}

TEST(OfiGpu, NamesTheReasonWhereTheSettingAsksForAccess) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  Settings settings = gpu_settings("automatic");
  settings.ofi_gpu_memory = "hmem";
  expect_error(Code::unsupported,
               "SHOAL_OFI_GPU_MEMORY is hmem, but provider tcp;ofi_rxm does not access GPU memory",
               [&] { run_threads(2, settings, [](World&) {}); });
}

}  // namespace
}  // namespace shoal::test

#endif
