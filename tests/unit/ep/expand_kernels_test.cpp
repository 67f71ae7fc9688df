// SPDX-License-Identifier: Apache-2.0
// The kernels of unpack and expand on a fake GPU: expand against a naive loop, tiles of unpack
// against the copy of the host.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <cstring>

#include "checks/ep/expand.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/cuda/normal/normal.hpp"
#include "shoal/world.hpp"

namespace shoal::ep::cuda {
namespace {

TEST(EpExpandKernel, RowsWeightsAndScales) {
  run_threads(1, {}, [](World& world) {
    for (const std::int32_t top_k : {4, 40}) {
      Group group(world.team(),
                  {.max_tokens = 64, .hidden = 64, .top_k = top_k, .experts = top_k + 4});
      test::check_small_expands(group, test::host_tensors(), [](const ExpandOptions& options) {
        launch_expand(expand_parameters(options), 3, false, nullptr);
      });
      group.close();
    }
  });
}

TEST(EpUnpackKernel, TilesOfScales) {
  for (const std::int64_t rows : {1, 128, 300})
    for (const std::int64_t words : {1, 2, 7}) {
      const std::int64_t tiles = (rows + 127) / 128, stride = words + 5;
      Tensor from = Tensor::empty(DataType::int32, {rows, stride}),
             to = Tensor::empty(DataType::uint8, {tiles, words, 512}),
             want = Tensor::empty(DataType::uint8, {tiles, words, 512});
      for (std::int64_t i = 0; i < from.size(); ++i)
        from.as<std::int32_t>()[i] = static_cast<std::int32_t>(i + 1);
      from.shape[1] = words;
      std::memset(to.data, 0x5a, to.bytes());
      std::memset(want.data, 0x5a, want.bytes());
      detail::copy_array({from, want});
      launch_unpack({}, {{from, to}}, false, false, nullptr);
      EXPECT_EQ(std::memcmp(to.data, want.data, to.bytes()), 0) << rows << " rows of " << words;
      EXPECT_EQ(want.as<std::int32_t>()[test::word_of_tiles(rows - 1, words - 1, words)],
                (rows - 1) * stride + words);
    }
}

}  // namespace
}  // namespace shoal::ep::cuda
