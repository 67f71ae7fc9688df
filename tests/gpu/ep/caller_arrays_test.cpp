// SPDX-License-Identifier: Apache-2.0
// The arrays that callers pass to route, unpack, dispatch and combine in normal mode of groups in
// GPU memory, by the checks of groups on the host (tests/threads/ep/caller_arrays_test.cpp).
#include "checks/ep/caller_arrays.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "checks/ep/gpu_normal.hpp"

namespace shoal::test {
namespace {

using Check = void (*)(ep::Group&, const EpCase&, const TensorMover&);

void run_case(const EpCase& c, const std::vector<Check>& checks) {
  SCOPED_TRACE(c.describe());
  Settings settings = gpu_settings();
  settings.node_size = c.ranks / c.nodes;
  run_threads(c.ranks, settings, [&](World& world) {
    GpuGroup group(world, caller_array_options(c));
    for (const Check check : checks) check(group.group, c, mover(group));
  });
}

class EpGpuCallerArrays : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuCallerArrays, ::testing::Values(1, 2, 3, 5));

TEST_P(EpGpuCallerArrays, SmallRoute) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_route_arrays});
}

TEST_P(EpGpuCallerArrays, SmallUnpack) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_unpack});
}

TEST_P(EpGpuCallerArrays, SmallAllWeights) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_all_weights});
}

TEST_P(EpGpuCallerArrays, SmallCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_combine_arrays});
}

// Several pieces of staged rows for each rank, and several segments and chunks of a row.
TEST_P(EpGpuCallerArrays, LongCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(GetParam(), 53);
  c.hidden = 2056;
  c.max_tokens = 100;
  c.full = true;
  run_case(c, {check_combine_arrays});
}

// Rows pass through host memory.
TEST(EpGpuCallerArraysOfNodes, EveryCall) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (EpCase c : caller_array_cases(4)) {
    c.nodes = 2;
    run_case(c, {check_route_arrays, check_unpack, check_all_weights, check_combine_arrays});
  }
}

TEST(EpGpuCallerArraysRefused, SmallNamedAndWithoutEffect) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(2, 43);
  while (std::min(c.tokens(0), c.tokens(1)) < 2) ++c.seed;
  run_case(c, {check_refused_arrays, check_route_arrays, check_unpack, check_all_weights,
               check_combine_arrays});
}

TEST(EpGpuCallerArraysRefused, SmallRowsOutsideTheExpertOutput) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(2, 43);
  while (std::min(c.tokens(0), c.tokens(1)) < 2) ++c.seed;
  run_case(c, {check_row_outside, check_combine_arrays});
}

/// Expert output for no row, although the rank received some: its rows are sums of nothing.
TEST(EpGpuCallerArraysOfNothing, SmallSumsOfNoRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_case(small_case(2, 47), {check_combine_without_rows});
}

}  // namespace
}  // namespace shoal::test
