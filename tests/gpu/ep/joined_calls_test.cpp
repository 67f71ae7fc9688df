// SPDX-License-Identifier: Apache-2.0
// Low-latency calls of one launch in place of two (ep/cuda/low_latency/joined.hpp), which only
// ranks with a GPU of their own make.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <array>

#include "checks/ep/gpu_low_latency.hpp"

namespace shoal::test {
namespace {

using Round = GpuLowLatencyRound;

class EpGpuJoinedCalls : public testing::Test {
 protected:
  void SetUp() override {
    SHOAL_SKIP_WITHOUT_GPU();
    if (gpu_count() < 2) GTEST_SKIP() << "needs two GPUs";
  }
};

EpCase sized_case(std::int64_t max_tokens, std::uint64_t seed, std::int64_t hidden = 512) {
  return {.ranks = 2,
          .experts = 6,
          .top_k = 4,
          .hidden = hidden,
          .max_tokens = max_tokens,
          .seed = seed};
}

// A rank with many tokens makes two launches where the other one, with few, makes one.
TEST_F(EpGpuJoinedCalls, RanksNeedNotChooseAlike) {
  constexpr std::int64_t kMost = 130;
  const EpCase c = sized_case(kMost, 1);
  run_low_latency_group(c, [&](GpuGroup& group) {
    int unlike = 0;
    for (std::uint64_t seed = 1; seed <= 40; ++seed) {
      const EpCase now = sized_case(kMost, seed);
      unlike += (now.tokens(0) > 65) != (now.tokens(1) > 65) ? 1 : 0;
      Round(group, now, {.early_weights = seed % 2 == 0, .defer_receive = false}).run();
    }
    EXPECT_GT(unlike, 0);
    EpCase idle = sized_case(kMost, 3);
    idle.load = Load::some_idle;  // rank 0 has no tokens
    Round(group, idle, {.defer_receive = false}).run();
  });
}

// Ranks start with different groups. A kernel that fills the GPU and waits for other ranks would
// keep that of the second group away. With two ranks half of its blocks end early, so four show
// more.
TEST_F(EpGpuJoinedCalls, GroupsOnTwoStreamsStartInAnyOrder) {
  // A dispatch of one launch would have a block on every SM.
  constexpr std::int64_t kMost = 64, kHidden = 7168;
  const auto case_of = [](std::uint64_t seed) {
    EpCase c = sized_case(kMost, seed, kHidden);
    c.ranks = gpu_count() >= 4 ? 4 : 2;
    c.experts = c.ranks * 3;
    return c;
  };
  const EpCase c = case_of(1);
  ep::GroupOptions options = options_for(c);
  options.max_tokens = 0;
  run_threads(c.ranks, low_latency_settings(c.ranks, 256), [&](World& world) {
    GpuGroup first(world, options), second(world, options);
    const bool first_begins = world.my_pe() % 2 == 0;
    std::array<cudaStream_t, 2> streams{};
    for (cudaStream_t& stream : streams)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
    // The first calls allocate memory, which may wait for kernels.
    for (GpuGroup* const group : {&first, &second})
      Round(*group, c, {.defer_receive = false}).run();
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      const auto round_of = [&](GpuGroup& group, std::size_t stream) {
        return Round(group, case_of(seed),
                     {.launch = {.stream = streams[stream]}, .defer_receive = false});
      };
      Round a = round_of(first, 0), b = round_of(second, 1);
      ep::PendingDispatch rows_a, rows_b;
      if (first_begins) rows_a = a.send();
      rows_b = b.send();
      if (!first_begins) rows_a = a.send();
      const ep::LowLatencyReceived got_a = rows_a.receive(), got_b = rows_b.receive();
      const auto settle = [&] {
        for (cudaStream_t stream : streams) ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      };
      settle();
      a.check(got_a);
      b.check(got_b);
      a.write_expert_output();
      b.write_expert_output();
      first.tensors.settle();
      second.tensors.settle();
      ep::PendingCombine sums_a, sums_b;
      if (first_begins) sums_a = a.combine(got_a);
      sums_b = b.combine(got_b);
      if (!first_begins) sums_a = a.combine(got_a);
      const Tensor of_a = sums_a.receive(), of_b = sums_b.receive();
      settle();
      a.check(of_a);
      b.check(of_b);
    }
    for (cudaStream_t stream : streams) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  });
}

}  // namespace
}  // namespace shoal::test
