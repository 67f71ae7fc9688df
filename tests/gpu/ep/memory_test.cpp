// SPDX-License-Identifier: Apache-2.0
// The memory of a group as the driver sees it, against ep::size_hint.
#include <gtest/gtest.h>

#include <cuda_runtime.h>

#include <numeric>

#include "base/align.hpp"
#include "checks/ep/gpu_normal.hpp"
#include "shoal/collective.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::int32_t kRanks = 2, kTopK = 8;
constexpr std::int64_t kTokens = 4096, kFew = 128, kHidden = 7168;

/// Bytes in use on all GPUs.
std::int64_t bytes_in_use() {
  int current = 0;
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  std::int64_t used = 0;
  for (int gpu = 0; gpu < gpu_count(); ++gpu) {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaSetDevice(gpu), cudaSuccess);
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    used += static_cast<std::int64_t>(total - free);
  }
  EXPECT_EQ(cudaSetDevice(current), cudaSuccess);
  return used;
}

/// bytes_in_use on PE 0, while no PE allocates.
std::int64_t agreed_bytes_in_use(World& world) {
  barrier(world.team());
  const std::int64_t used = world.my_pe() == 0 ? bytes_in_use() : 0;
  barrier(world.team());
  return used;
}

/// A pair of each mode with results in memory of the caller. A rank holds its result of normal mode
/// while it combines rows outside the heap.
struct Chain {
  DeviceTensors tensors;
  Tensor topk, x, y, sums, few_topk, few_x, few_y, few_sums, weights;

  explicit Chain(World& world) : tensors(world) {
    std::vector<std::int64_t> slots(kTokens * kTopK);
    std::iota(slots.begin(), slots.end(), 0);
    for (std::int64_t& slot : slots) slot = slot * 37 % 256;
    topk = tensors.upload(TensorView(slots.data(), DataType::int64, {kTokens, kTopK}));
    few_topk = tensors.upload(TensorView(slots.data(), DataType::int64, {kFew, kTopK}));
    x = tensors.empty(DataType::bfloat16, {kTokens, kHidden});
    y = tensors.empty(DataType::bfloat16, {kRanks * kTokens, kHidden});
    sums = tensors.empty(DataType::bfloat16, {kTokens, kHidden});
    few_x = tensors.empty(DataType::bfloat16, {kFew, kHidden});
    few_y = tensors.empty(DataType::bfloat16, {256 / kRanks, kRanks * kFew, kHidden});
    few_sums = tensors.empty(DataType::bfloat16, {kFew, kHidden});
    weights = tensors.empty(DataType::float32, {kFew, kTopK});
    tensors.settle();
  }

  void run(ep::Group& group) {
    tensors.follow(group.stream());
    const ep::Dispatched got = group.dispatch(x, group.route(topk));
    TensorView output = y;
    output.shape[0] = got.x.shape[0];
    group.combine(output, got.handle, {.out = sums});
    const auto received = group.low_latency_dispatch(few_x, few_topk, {}).receive();
    group.low_latency_combine(few_y, few_topk, weights, received.handle, {.out = few_sums})
        .receive();
    group.synchronize();
    tensors.unfollow(group.stream());
  }
};

TEST(EpGpuMemory, TheDriverCountsWhatSizeHintSays) {
  SHOAL_SKIP_WITHOUT_GPU();
  const ep::GroupOptions options{.max_tokens = kTokens,
                                 .hidden = kHidden,
                                 .top_k = kTopK,
                                 .experts = 256,
                                 .live_results = 1,
                                 .low_latency_max_tokens = kFew};
  const ep::SizeHint hint = ep::size_hint(options, kRanks, DeviceKind::cuda);
  const auto wanted = static_cast<std::int64_t>(
      kRanks * (align_up(hint.total(), 2 * kMiB) + align_up(hint.results, 32 * kMiB)));
  // Each rank's pool of small arrays and what else lies in its heap; code (docs/guide/gpus.md).
  constexpr std::int64_t kBesides = kRanks * (32 + 8) * kMiB + 64 * kMiB;
  const std::int64_t before = bytes_in_use();  // contexts included
  run_threads(kRanks, gpu_settings(hint.total() / kMiB + 64), [&](World& world) {
    const std::int64_t opened = agreed_bytes_in_use(world);
    Chain chain(world);
    const std::int64_t with_tensors = agreed_bytes_in_use(world);
    ep::Group group(world.team(), options);
    chain.run(group);
    const std::int64_t after = agreed_bytes_in_use(world);
    const std::int64_t taken = (after - with_tensors) + (opened - before);
    if (world.my_pe() == 0) {
      EXPECT_GE(taken, wanted - wanted / 50);
      EXPECT_LE(taken, wanted + wanted / 50 + kBesides);
    }
    group.close();
  });
}

}  // namespace
}  // namespace shoal::test
