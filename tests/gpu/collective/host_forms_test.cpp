// SPDX-License-Identifier: Apache-2.0
// Collectives of the host over heaps in GPU memory.
#include <gtest/gtest.h>

#include <vector>

#include "checks/collective/device_heap.hpp"
#include "gpu/device/world.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda_collective.hpp"

namespace shoal::test {
namespace {

TEST(GpuHostForms, HaveTheResultsOfTheHost) {
  SHOAL_NEEDS_GPU();
  for (const Pe pes : {1, 2, 4})
    run_gpu_pes(pes, [](World& world, const TestStream&) {
      const Team team = world.team();
      const device::Team view = cuda::device_team(team);
      const auto epoch = [&] {
        std::uint64_t value = 0;
        check_cuda(cudaMemcpy(&value, view.epoch, sizeof value, cudaMemcpyDeviceToHost));
        return value & ((std::uint64_t{1} << device::Team::kEpochBits) - 1);
      };
      const std::uint64_t before = epoch();
      const int calls = check_collectives_on_device_heap(world);
      // Each kernel is an operation of its team on the GPU, so they did not go through the host.
      EXPECT_GT(calls, 0);
      EXPECT_GT(epoch(), before);
      barrier(team);
    });
}

// A host that calls one collective after the other, alongside kernels of the same team.
TEST(GpuHostForms, TakeTurnsWithCollectivesOnStreams) {
  SHOAL_NEEDS_GPU();
  run_gpu_pes(2, [](World& world, const TestStream& stream) {
    constexpr std::size_t kCount = 3000;
    const auto values = world.heap().allocate<float>(kCount),
               sums = world.heap().allocate<float>(kCount);
    const cuda::StreamCollectives on(world.team(), stream);
    for (int round = 1; round <= 50; ++round) {
      world.put(values.on(world.my_pe()), std::vector<float>(kCount, static_cast<float>(round)));
      on.reduce(ReduceOp::sum, sums.span(), values.span());
      stream.synchronize();
      reduce(world.team(), DataType::float32, ReduceOp::sum, values.data(), sums.data(), kCount);
      std::vector<float> seen(kCount);
      world.get(std::span(seen), values.on(world.my_pe()));
      ASSERT_EQ(seen, std::vector<float>(kCount, 4.0F * static_cast<float>(round)));
      barrier(world.team());
    }
  });
}

}  // namespace
}  // namespace shoal::test
