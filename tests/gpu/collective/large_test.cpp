// SPDX-License-Identifier: Apache-2.0
// Large collectives on streams: broadcasts that are read by their receivers, and all of them by
// NCCL, which needs a GPU for each PE and its library.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collective/nccl/library.hpp"
#include "gpu/device/world.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/cuda/graph.hpp"

namespace shoal::test {
namespace {

using cuda::StreamCollectives;
using Words = std::vector<std::int32_t>;

Words made_up(std::size_t pe, std::size_t count) {
  Words words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::int32_t>(pe * 7919 + i * 31);
  return words;
}

class Buffers {
 public:
  Buffers(World& world, const TestStream& stream, std::size_t count)
      : stream_(stream),
        count_(count),
        source_(world.heap().allocate<std::int32_t>(count)),
        target_(world.heap().allocate<std::int32_t>(count)) {}

  std::int32_t* source() const { return source_.data(); }
  std::int32_t* target() const { return target_.data(); }
  void set(const Words& words) const {
    check_cuda(cudaMemcpyAsync(source(), words.data(), words.size() * sizeof(std::int32_t),
                               cudaMemcpyHostToDevice, stream_));
    check_cuda(cudaMemsetAsync(target(), 0xEE, count_ * sizeof(std::int32_t), stream_));
    stream_.synchronize();
  }
  Words result(std::size_t count) const {
    stream_.synchronize();  // before a copy to pageable memory, which may hold locks while it waits
    Words words(count);
    check_cuda(cudaMemcpyAsync(words.data(), target(), count * sizeof(std::int32_t),
                               cudaMemcpyDeviceToHost, stream_));
    stream_.synchronize();
    return words;
  }

 private:
  const TestStream& stream_;
  std::size_t count_;
  SymmetricArray<std::int32_t> source_, target_;
};

TEST(LargeStreamCollectives, BroadcastsAreRead) {
  SHOAL_NEEDS_GPU();
  constexpr std::size_t kCount = (std::size_t{8} << 20) / sizeof(std::int32_t) + 5;
  Settings settings = cuda_settings();
  settings.symmetric_size = std::size_t{256} << 20;
  run_gpu_pes(
      3,
      [](World& world, const TestStream& stream) {
        const Buffers buffers(world, stream, kCount);
        const StreamCollectives on(world.team(), stream);
        for (Pe root = 0; root < world.n_pes(); ++root) {
          buffers.set(made_up(static_cast<std::size_t>(world.my_pe()), kCount));
          barrier(world.team());
          on.broadcast_bytes(buffers.target(), buffers.source(), kCount * sizeof(std::int32_t),
                             root);
          EXPECT_EQ(buffers.result(kCount), made_up(static_cast<std::size_t>(root), kCount));
          cuda::check_failures(world);
          barrier(world.team());
        }
      },
      settings);
}

TEST(LargeStreamCollectives, ByNccl) {
  SHOAL_NEEDS_GPU();
  int gpus = 0;
  ASSERT_EQ(cudaGetDeviceCount(&gpus), cudaSuccess);
  if (gpus < 2) GTEST_SKIP() << "needs two GPUs";
  Settings settings = cuda_settings();
  std::string why;
  if (collective::nccl::load(settings.nccl_library, why) == nullptr) GTEST_SKIP() << why;
  settings.symmetric_size = std::size_t{256} << 20;
  settings.collective_nccl = "all";
  settings.collective_nccl_from = 1024;
  run_gpu_pes(
      2,
      [](World& world, const TestStream& stream) {
        constexpr std::size_t kCount = 4096, kBytes = kCount * sizeof(std::int32_t);
        const Buffers buffers(world, stream, 2 * kCount);
        const StreamCollectives on(world.team(), stream);
        const auto me = static_cast<std::size_t>(world.my_pe());
        const Words zero = made_up(0, 2 * kCount), one = made_up(1, 2 * kCount);
        buffers.set(me == 0 ? zero : one);
        barrier(world.team());
        const auto half = [&](const Words& of, std::size_t which) {
          return Words(of.begin() + static_cast<std::ptrdiff_t>(which * kCount),
                       of.begin() + static_cast<std::ptrdiff_t>((which + 1) * kCount));
        };
        const auto joined = [](Words first, const Words& second) {
          first.insert(first.end(), second.begin(), second.end());
          return first;
        };
        Words sums = zero;
        for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += one[i];
        on.broadcast_bytes(buffers.target(), buffers.source(), kBytes, 1);
        EXPECT_EQ(buffers.result(kCount), half(one, 0));
        on.all_gather_bytes(buffers.target(), buffers.source(), kBytes);
        EXPECT_EQ(buffers.result(2 * kCount), joined(half(zero, 0), half(one, 0)));
        on.all_to_all_bytes(buffers.target(), buffers.source(), kBytes);
        EXPECT_EQ(buffers.result(2 * kCount), joined(half(zero, me), half(one, me)));
        on.reduce(cuda::ElementType::int32, ReduceOp::sum, buffers.target(), buffers.source(),
                  kCount);
        EXPECT_EQ(buffers.result(kCount), half(sums, 0));
        on.reduce_scatter(cuda::ElementType::int32, ReduceOp::sum, buffers.target(),
                          buffers.source(), kCount);
        EXPECT_EQ(buffers.result(kCount), half(sums, me));
        const Graph graph(stream, [&] {
          on.reduce(cuda::ElementType::int32, ReduceOp::sum, buffers.target(), buffers.source(),
                    2 * kCount);
        });
        sync(world.team());  // the driver may wait for kernels while it makes a graph
        graph.replay();
        EXPECT_EQ(buffers.result(2 * kCount), sums);
        barrier(world.team());
      },
      settings);
}

}  // namespace
}  // namespace shoal::test
