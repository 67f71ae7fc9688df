// SPDX-License-Identifier: Apache-2.0
// launch_collective: launches as many blocks as fit, all at once, on a stream of the highest
// priority and on the PE's own GPU.
#include <cooperative_groups.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/device.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

__global__ void count_blocks(int* counter) {
  if (threadIdx.x == 0) atomicAdd(counter, 1);
}

TEST(LaunchCollective, FillsTheGpuAndRefusesMore) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    const auto counter = world.heap().allocate<int>(1);
    const int fitting = device::resident_blocks(world, count_blocks, 256, 0);
    EXPECT_GE(fitting, 1);
    device::launch_collective(world, stream, {.grid = 0, .block = 256}, count_blocks,
                              counter.data());
    stream.synchronize();
    EXPECT_EQ(fetch(world, counter)[0], fitting);
    const auto launch = [&](unsigned grid, unsigned block, std::size_t shared) {
      device::launch_collective(world, stream,
                                {.grid = grid, .block = block, .shared_bytes = shared},
                                count_blocks, counter.data());
    };
    expect_error(Code::invalid_argument, "at once fit 1 to " + std::to_string(fitting),
                 [&] { launch(static_cast<unsigned>(fitting) + 1, 256, 0); });
    expect_error(Code::invalid_argument, "this kernel allows 1 to", [&] { launch(1, 2048, 0); });
    expect_error(Code::system, "dynamic shared memory",
                 [&] { launch(1, 32, std::size_t{1} << 30); });
    launch(1, 32, 0);  // the refused launch left no error
    stream.synchronize();
    EXPECT_EQ(fetch(world, counter)[0], fitting + 1);
    barrier(world.team());
  });
}

/// All blocks meet, which ends only if all of them run at once. `counts`: 0: blocks that arrived;
/// 1: blocks that timed out after ten seconds; 2: blocks of a grid that was not launched
/// cooperatively.
__global__ void meet(unsigned* counts) {
  constexpr std::uint64_t kLongest = 10'000'000'000;  // nanoseconds
  if (threadIdx.x != 0) return;
  if (!cooperative_groups::this_grid().is_valid()) atomicAdd(counts + 2, 1U);
  const unsigned before = atomicAdd(counts, 1U);
  const unsigned all = (before / gridDim.x + 1) * gridDim.x;  // launches do not overlap
  const std::uint64_t start = ptx::globaltimer();
  while (atomicAdd(counts, 0U) < all)
    if (ptx::globaltimer() - start > kLongest) {
      atomicAdd(counts + 1, 1U);
      return;
    }
}

/// Launches `meet` on the largest allowed number of blocks, several times, once by a graph.
void check_meeting(World& world, const TestStream& stream) {
  const auto counts = world.heap().allocate<unsigned>(3);
  const auto fitting = static_cast<unsigned>(device::resident_blocks(world, meet, 128, 0));
  const auto launch = [&] {
    device::launch_collective(world, stream, {.grid = fitting, .block = 128}, meet, counts.data());
  };
  barrier(world.team());
  for (int i = 0; i < 3; ++i) launch();
  const Graph graph(stream, launch);
  for (int i = 0; i < 2; ++i) graph.replay();
  stream.synchronize();
  EXPECT_EQ(fetch(world, counts), (std::vector<unsigned>{5 * fitting, 0, 0}));
  barrier(world.team());
}

TEST(LaunchCollective, RunsAllBlocksAtOnceSmall) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(1, check_meeting);
}
TEST(LaunchCollective, RunsAllBlocksOfSeveralPesAtOnce) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, check_meeting);
}

/// words: 0: the host opens; 1: set when it has; 2: the value that `look` read of it.
__global__ void hold(volatile int* words) {
  constexpr std::uint64_t kLongest = 10'000'000'000;  // nanoseconds
  const std::uint64_t start = ptx::globaltimer();
  while (words[0] == 0 && ptx::globaltimer() - start < kLongest) __nanosleep(1000);
  words[1] = words[0] + 1;
}
__global__ void look(volatile int* words) {
  words[2] = words[1];
}

// The kernel runs after the work on the PE's stream of the highest priority. Later work on the
// caller's stream runs after the kernel.
TEST(LaunchCollective, GoesThroughTheStreamOfTheHighestPriority) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(1,
              [](World& world, const TestStream& stream) {
                const cuda::LaunchContext context = cuda::launch_context(world);
                int least = 0, greatest = 0, priority = 0, of_callers = 0;
                check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
                check_cuda(cudaStreamGetPriority(context.priority, &priority));
                check_cuda(cudaStreamGetPriority(stream, &of_callers));
                EXPECT_EQ(priority, greatest) << "the least is " << least;
                EXPECT_NE(context.priority, static_cast<cudaStream_t>(stream));
                if (least != greatest)
                  EXPECT_GT(of_callers, priority) << "a lower number is a higher priority";

                void* pinned = nullptr;
                check_cuda(cudaHostAlloc(&pinned, 3 * sizeof(int),
                                         cudaHostAllocPortable | cudaHostAllocMapped));
                auto* const words = static_cast<volatile int*>(pinned);
                for (int i = 0; i < 3; ++i) words[i] = 0;
                device::resident_blocks(world, hold, 1, 0);  // both are loaded before one waits
                device::resident_blocks(world, look, 1, 0);
                hold<<<1, 1, 0, context.priority>>>(words);
                check_cuda(cudaGetLastError());
                device::launch_collective(world, stream, {.grid = 1, .block = 1}, look, words);
                std::this_thread::sleep_for(std::chrono::milliseconds(
                    20));  // in which a kernel that did not wait would look
                EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady)
                    << "the caller's stream waits for the kernel";
                words[0] = 1;
                stream.synchronize();
                EXPECT_EQ(words[2], 2)
                    << "the kernel did not wait for what was on the stream of the highest priority";
                check_cuda(cudaFreeHost(pinned));
              });
}

__global__ void meet_team(const __grid_constant__ device::World world,
                          const __grid_constant__ device::Team team) {
  barrier(device::Block{}, world, team);
}

// Uses the PE's GPU whichever device is current in the calling thread, and restores that device.
TEST(LaunchCollective, FindsItsGpuWhileAnotherOneIsCurrent) {
  SHOAL_NEEDS_GPU();
  int gpus = 0;
  check_cuda(cudaGetDeviceCount(&gpus));
  if (gpus < 2) GTEST_SKIP() << "this machine shows " << gpus << " GPU; two are needed";
  run_gpu_pes(2, [&](World& world, const TestStream& stream) {
    const int mine = cuda::launch_context(world).device, other = (mine + 1) % gpus;
    const auto counter = world.heap().allocate<int>(1);
    barrier(world.team());
    check_cuda(cudaSetDevice(other));
    const int fitting = device::resident_blocks(world, count_blocks, 256, 0);
    device::launch_collective(world, stream, {.grid = 0, .block = 256}, count_blocks,
                              counter.data());
    device::launch_collective(world, stream, {.grid = 1, .block = 32}, meet_team,
                              cuda::device_world(world), cuda::device_team(world.team()));
    int current = -1;
    check_cuda(cudaGetDevice(&current));
    EXPECT_EQ(current, other);
    check_cuda(cudaSetDevice(mine));
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(fetch(world, counter)[0], fitting);
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
