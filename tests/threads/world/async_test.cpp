// SPDX-License-Identifier: Apache-2.0
// Worlds that open in the background, with heaps on the host and in GPU memory.

#include <gtest/gtest.h>

#include <thread>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

/// Opens a world in the background and runs `body` on each PE, on threads that did not open it.
void open_and_run(const Settings& settings, void (*body)(World&)) {
  constexpr Pe kPes = 3;
  auto bootstraps = thread_bootstraps(kPes, settings);
  // One thread starts all of them; no start waits for another one.
  std::vector<std::future<World>> opening;
  for (auto& bootstrap : bootstraps)
    opening.push_back(
        World::open_async({settings, std::shared_ptr<Bootstrap>(std::move(bootstrap))}));
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < kPes; ++pe)
    threads.emplace_back([&, pe] {
      World world = opening[static_cast<std::size_t>(pe)].get();
      EXPECT_EQ(world.my_pe(), pe);
      body(world);
      world.close();
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(WorldInTheBackground, BelongsToWhoTakesIt) {
  open_and_run(world_settings(), check_rma);
}

#ifdef SHOAL_WITH_CUDA
// With heaps in GPU memory, on a driver without a GPU: the thread that takes the world has no GPU
// context yet.
TEST(WorldInTheBackground, HasItsHeapInGpuMemory) {
  for (const char* const handle : {"automatic", "ipc"}) {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_world_settings();
    settings.cuda_handle = handle;
    open_and_run(settings, [](World& world) {
      EXPECT_TRUE(in_gpu_memory(world));
      check_everything(world);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(WorldInTheBackground, ThrowsWhatGpusSay) {
  {
    const FakeCuda fake({.gpus = 1, .failing_function = "stream_create"});
    auto bootstraps = thread_bootstraps(1, gpu_world_settings());
    auto opening = World::open_async(
        {gpu_world_settings(), std::shared_ptr<Bootstrap>(std::move(bootstraps[0]))});
    expect_error(Code::system, "cannot create a stream", [&] { opening.get(); });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}
#endif

TEST(WorldInTheBackground, ThrowsWhatOpenThrows) {
  auto bootstraps = thread_bootstraps(1, world_settings());
  Settings settings = world_settings();
  settings.max_teams = 1;
  auto opening =
      World::open_async({settings, std::shared_ptr<Bootstrap>(std::move(bootstraps[0]))});
  expect_error(Code::invalid_argument, "SHOAL_MAX_TEAMS", [&] { opening.get(); });
}

}  // namespace
}  // namespace shoal::test
