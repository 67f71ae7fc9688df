// SPDX-License-Identifier: Apache-2.0
// Worlds of processes whose heap is in GPU memory, with a fake driver: handles cross processes, and
// host memory stands in for the GPU's.
// @traits slow

#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <memory>
#include <thread>

#include "checks/world/operations.hpp"
#include "checks/world/share.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/process/cuda_heap.hpp"
#include "support/process/process.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

void run(const Settings& settings, void (*body)(World&)) {
  World world = World::open({settings, nullptr});
  body(world);
  world.close();
}

SHOAL_PE_BODY(everything) {
  const FakeCuda fake({.gpus = 2});
  run(pe.settings, check_everything);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

SHOAL_PE_BODY(growth) {
  const FakeCuda fake({.gpus = 2});
  run(pe.settings, check_growth);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

SHOAL_PE_BODY(sharing) {
  const FakeCuda fake({.gpus = 2});
  run(pe.settings, check_sharing);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// Memory without a handle, and a process that cannot import: all PEs fail and stay usable.
SHOAL_PE_BODY(sharing_with_failures) {
  FakeCudaOptions options;
  if (pe.settings.pe == 2) {
    options.failing_function = "mem_import";
    options.failing_call = 4;  // two for the heap, then the second piece of the first buffer
  }
  const FakeCuda fake(options);
  run(pe.settings, [](World& world) {
    const ForeignMemory closed(world, 1000, ForeignMemory::Kind::mapped_without_handle);
    expect_error(Code::unsupported, "without an exportable handle",
                 [&] { world.heap().share_buffer(closed.data(), 1000); });
    const ForeignMemory open(world, std::size_t{4} << 20,
                             ForeignMemory::Kind::mapped_in_two_pieces);
    expect_error(Code::system, "cannot import the buffer",
                 [&] { world.heap().share_buffer(open.data(), std::size_t{4} << 20); });
    const SharedBuffer shared = world.heap().share_buffer(open.data(), std::size_t{4} << 20);
    for (Pe pe_of = 0; pe_of < world.n_pes(); ++pe_of) EXPECT_NE(shared.on(pe_of), nullptr);
    world.heap().unshare_buffer(shared);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// One process has no memory left for the second step, once.
SHOAL_PE_BODY(growth_with_a_failure) {
  FakeCudaOptions options;
  if (pe.settings.pe == 1) {
    options.failing_function = pe.argument;
    options.failing_call =
        pe.argument == "mem_import" ? 2 : 1;  // the first ones belong to the start
    options.failure = CUDA_ERROR_OUT_OF_MEMORY;
  }
  const FakeCuda fake(options);
  run(pe.settings, [](World& world) {
    try {
      world.heap().malloc(std::size_t{100} << 20);
      ADD_FAILURE() << "this malloc was to fail";
    } catch (const Error& error) {
      expect_parts(error.what(), {"out of memory"});
    }
    check_growth(world);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// Threads and processes in one world: PEs 0, 1 and 2, 3 share a process each.
SHOAL_PE_BODY(two_threads_each) {
  const FakeCuda fake({.gpus = 4});
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      Settings settings = pe.settings;
      settings.pe = 2 * pe.settings.pe + i;
      settings.n_pes = 4;
      run(settings, pe.argument == "growth"    ? check_growth
                    : pe.argument == "sharing" ? check_sharing
                                               : check_everything);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(FakeCuda::leaks(), "");
}

class CudaHeapOfProcesses : public testing::TestWithParam<const char*> {};

TEST_P(CudaHeapOfProcesses, DoesEverything) {
  expect_success(run_pes(3, "everything", {.env = cuda_heap_environment(GetParam())}));
}
TEST_P(CudaHeapOfProcesses, DoesEverythingWithThreads) {
  expect_success(run_pes(2, "two_threads_each", {.env = cuda_heap_environment(GetParam())}));
}
TEST_P(CudaHeapOfProcesses, SharesBuffersOfAnyAllocator) {
  expect_success(run_pes(3, "sharing", {.env = cuda_heap_environment(GetParam())}));
  expect_success(run_pes(2, "two_threads_each",
                         {.env = cuda_heap_environment(GetParam()), .argument = "sharing"}));
}
INSTANTIATE_TEST_SUITE_P(Handles, CudaHeapOfProcesses, testing::Values("fd", "fabric", "ipc"),
                         [](const auto& handle) { return std::string(handle.param); });

TEST(CudaHeapGrowthOfProcesses, ExchangesNewMemory) {
  expect_success(run_pes(3, "growth", {.env = cuda_heap_environment("fd", "512M")}));
  expect_success(run_pes(3, "growth", {.env = cuda_heap_environment("fabric", "512M")}));
  expect_success(run_pes(2, "two_threads_each",
                         {.env = cuda_heap_environment("fd", "512M"), .argument = "growth"}));
}

TEST(SharedBuffersOfProcesses, FailOnAllPesAndCanBeRepeated) {
  expect_success(run_pes(3, "sharing_with_failures", {.env = cuda_heap_environment("fd")}));
}

TEST(CudaHeapGrowthOfProcesses, FailsOnAllPesAndCanBeRepeated) {
  for (const char* const function : {"mem_create", "mem_export", "mem_import"})
    expect_success(run_pes(3, "growth_with_a_failure",
                           {.env = cuda_heap_environment("fd", "1G"), .argument = function}));
}

}  // namespace
}  // namespace shoal::test

#else

TEST(CudaHeapOfProcesses, IsNotInThisBuild) {
  GTEST_SKIP() << "this build has no CUDA";
}

#endif
