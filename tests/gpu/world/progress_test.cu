// SPDX-License-Identifier: Apache-2.0
// Operations of the host progress while kernels of other PEs on the same GPU wait for their
// results: no call may synchronize the whole GPU.

#include <gtest/gtest.h>

#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "shoal/device/ptx.cuh"
#include "support/cuda/world_gpu.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

/// Waits until `*flag` is `value`, for at most ten seconds. Sets `*waited` to 1 on success, else to
/// 2.
__global__ void wait_for(const std::uint64_t* flag, std::uint64_t value, int* waited) {
  const std::uint64_t start = ptx::globaltimer();
  std::uint64_t seen = 0;
  do {
    seen = ptx::ld_acquire_sys(flag);
  } while (seen != value && ptx::globaltimer() - start < 10'000'000'000ULL);
  *waited = seen == value ? 1 : 2;
}

TEST(WorldProgress, GoesOnWhileKernelsWait) {
  if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  Settings settings = gpu_world_settings(std::size_t{512} << 20);
  settings.device = 0;
  run_threads(4, settings, [](World& world) {
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    const auto waited = world.heap().allocate<int>(1);
    const auto box = world.heap().allocate<int>(100'000);
    const auto counter = world.heap().allocate<std::uint64_t>(1);
    state_of(world).memory().cuda()->activate();
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    wait_for<<<1, 1, 0, stream>>>(flag.data(), 7, waited.data());
    ASSERT_EQ(cudaGetLastError(), cudaSuccess);
    barrier(world.team());  // now a kernel of every PE waits, or will

    const Pe right = (world.my_pe() + 1) % world.n_pes();
    const std::vector<int> out(100'000, world.my_pe());
    std::vector<int> in(100'000);
    world.put(box.on(right), out);
    world.get(std::span(in), box.on(right));
    EXPECT_EQ(in, out);
    world.put_strided(box.on(right), 4, out.data(), 2, 1000);
    world.atomic_fetch_add(counter.on(0)[0], 1);
    void* const grown = world.heap().calloc(std::size_t{100} << 20, 1);  // maps more memory
    EXPECT_NE(grown, nullptr);
    barrier(world.team());
    EXPECT_EQ(world.get_value(counter.on(0)[0]), static_cast<std::uint64_t>(world.n_pes()));
    EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady) << "the kernel still waits";

    barrier(world.team());
    world.signal_set(flag.on(right), 7);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(local(world, waited, 0), 1) << "the kernel gave up";
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
