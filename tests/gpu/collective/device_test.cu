// SPDX-License-Identifier: Apache-2.0
// Collectives in kernels, by thread, warp and block; together with those of streams.
#include "gpu/device/world.hpp"
#include "shoal/cuda_collective.hpp"
#include "shoal/device.hpp"

namespace shoal::test {
namespace {

using device::Block;
using device::Thread;
using device::Warp;

/// Runs one of each collective on `count` values, a power of two times their PE's number plus one.
template <typename S>
__global__ void __launch_bounds__(512)
    all_kinds(const __grid_constant__ device::World world,
              const __grid_constant__ device::Team team, std::uint32_t* values,
              std::uint32_t* results, std::size_t count, int* failures) {
  const S scope{};
  const auto n = static_cast<std::size_t>(team.size);
  bool ok = device::sync(scope, world, team);
  ok = device::reduce(scope, world, team, device::Sum{}, results, values, count) && ok;
  ok = device::broadcast(scope, world, team, results + count, values, count, team.size - 1) && ok;
  ok = device::all_gather(scope, world, team, results + 2 * count, values, count) && ok;
  ok = device::all_to_all(scope, world, team, results + (2 + n) * count, values, count) && ok;
  ok = device::reduce_scatter(scope, world, team, device::Max{}, results + (2 + 2 * n) * count,
                              values, count) &&
       ok;
  if (!ok) atomicAdd(failures, 1);
}

template <typename S>
void check_all_kinds(World& world, const TestStream& stream, unsigned threads, std::size_t count) {
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto me = static_cast<std::uint32_t>(world.my_pe());
  const auto values = world.heap().allocate<std::uint32_t>(n * count);
  const auto results = world.heap().allocate<std::uint32_t>((3 + 2 * n) * count);
  const auto failures = world.heap().allocate<int>(1);
  const auto value = [&](std::size_t pe, std::size_t i) {
    return static_cast<std::uint32_t>(1000 * pe + i);
  };
  std::vector<std::uint32_t> mine(n * count);
  for (std::size_t i = 0; i < mine.size(); ++i) mine[i] = value(me, i);
  fill(world, values, mine);
  barrier(world.team());
  device::resident_blocks(world, all_kinds<S>, threads, 0);  // loads the kernel
  barrier(world.team());
  for (int repeat = 0; repeat < 3; ++repeat) {
    all_kinds<S><<<1, threads, 0, stream>>>(cuda::device_world(world),
                                            cuda::device_team(world.team()), values.data(),
                                            results.data(), count, failures.data());
    check_cuda(cudaGetLastError());
    // In between, a collective of the stream on the same team.
    cuda::StreamCollectives(world.team(), stream).sync();
  }
  stream.synchronize();
  cuda::check_failures(world);
  EXPECT_EQ(fetch(world, failures)[0], 0);
  const auto got = fetch(world, results);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint32_t sum = 0;
    for (std::size_t pe = 0; pe < n; ++pe) sum += value(pe, i);
    ASSERT_EQ(got[i], sum) << "reduce, " << count;
    ASSERT_EQ(got[count + i], value(n - 1, i)) << "broadcast, " << count;
    for (std::size_t pe = 0; pe < n; ++pe) {
      ASSERT_EQ(got[(2 + pe) * count + i], value(pe, i)) << "all_gather, " << count;
      ASSERT_EQ(got[(2 + n + pe) * count + i], value(pe, me * count + i))
          << "all_to_all, " << count;
    }
    ASSERT_EQ(got[(2 + 2 * n) * count + i], value(n - 1, me * count + i)) << "scatter, " << count;
  }
  barrier(world.team());
}

// [mean]
__global__ void mean(const __grid_constant__ shoal::device::World world,
                     const __grid_constant__ shoal::device::Team team, float* values) {
  using namespace shoal::device;
  const bool ok = reduce(Block{}, world, team, Sum{}, values, values, 4096);
  if (!ok) return;  // check_failures says why
  for (unsigned i = threadIdx.x; i < 4096; i += blockDim.x) values[i] /= team.size;
}
// [mean]

TEST(DeviceCollectives, MeanOfTheGuide) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    const auto values = world.heap().allocate<float>(4096);
    fill(world, values, std::vector<float>(4096, 3.0F * static_cast<float>(world.my_pe())));
    barrier(world.team());
    device::resident_blocks(world, mean, 256, 0);  // loads the kernel
    barrier(world.team());
    mean<<<1, 256, 0, stream>>>(cuda::device_world(world), cuda::device_team(world.team()),
                                values.data());
    check_cuda(cudaGetLastError());
    stream.synchronize();
    cuda::check_failures(world);
    EXPECT_EQ(fetch(world, values), std::vector<float>(4096, 3.0F));
    barrier(world.team());
  });
}

TEST(DeviceCollectives, ByThread) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(3, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {1, 7, 5000}) check_all_kinds<Thread>(world, stream, 1, count);
  });
}
TEST(DeviceCollectives, ByWarp) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(4, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {1, 100, 20'000})
      check_all_kinds<Warp>(world, stream, 32, count);
  });
}
TEST(DeviceCollectives, ByBlock) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(8, [](World& world, const TestStream& stream) {
    for (const std::size_t count : {1, 1000, 50'000})
      check_all_kinds<Block>(world, stream, 480, count);
  });
}

}  // namespace
}  // namespace shoal::test
