// SPDX-License-Identifier: Apache-2.0
// Group::expand on GPUs, bit by bit against a naive loop.
#include <gtest/gtest.h>

#include "checks/ep/expand.hpp"
#include "checks/ep/gpu_normal.hpp"

namespace shoal::test {
namespace {

void with_group(std::int32_t ranks, std::int32_t top_k, std::int32_t experts,
                const std::function<void(ep::Group&, const TensorMover&)>& body) {
  run_threads(ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world,
                   {.max_tokens = 64, .hidden = 64, .top_k = top_k, .experts = experts * ranks});
    body(group.group, mover(group));
  });
}

TEST(EpGpuExpand, RowsWeightsAndScalesSmall) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t ranks : {1, 2})
    with_group(ranks, 4, 8, [](ep::Group& group, const TensorMover& tensors) {
      check_small_expands(group, tensors);
    });
}

TEST(EpGpuExpand, NumbersOfAnotherLayout) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(1, 4, 8, check_foreign_numbers);
}

/// More slots than a warp numbers at once, many experts, rows of several steps.
TEST(EpGpuExpand, ManyRowsAndExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(1, 8, 256, [](ep::Group& group, const TensorMover& tensors) {
    check_expand(group, {.rows = 9000, .alignment = 16, .scales = 2, .columns_first = true},
                 tensors);
    check_expand(group, {.rows = 700, .columns = 7168, .alignment = 64, .zero_padding = true},
                 tensors);
    check_expand(group, {.rows = 300, .unused = 5000, .columns = 1032, .spare = 900, .seed = 4},
                 tensors);
  });
  for (const std::int32_t top_k : {32, 100})
    with_group(1, top_k, 110, [](ep::Group& group, const TensorMover& tensors) {
      check_expand(group, {.rows = 5000, .columns = 8, .elsewhere = 0.1}, tensors);
    });
}

}  // namespace
}  // namespace shoal::test
