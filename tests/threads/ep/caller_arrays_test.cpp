// SPDX-License-Identifier: Apache-2.0
// The arrays that callers pass to route, unpack, dispatch and combine in normal mode, with PEs as
// threads.
#include "checks/ep/caller_arrays.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

using Check = void (*)(ep::Group&, const EpCase&, const TensorMover&);

void run_case(const EpCase& c, const std::vector<Check>& checks) {
  SCOPED_TRACE(c.describe());
  Settings settings = ep_settings();
  settings.node_size = c.ranks / c.nodes;
  run_threads(c.ranks, settings, [&](World& world) {
    ep::Group group(world.team(), caller_array_options(c));
    for (const Check check : checks) check(group, c, host_tensors());
    group.close();
  });
}

class EpCallerArrays : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpCallerArrays, ::testing::Values(1, 2, 3, 5));

TEST_P(EpCallerArrays, Route) {
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_route_arrays});
}

TEST_P(EpCallerArrays, Unpack) {
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_unpack});
}

TEST_P(EpCallerArrays, AllWeights) {
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_all_weights});
}

TEST_P(EpCallerArrays, Combine) {
  for (const EpCase& c : caller_array_cases(GetParam())) run_case(c, {check_combine_arrays});
}

TEST(EpCallerArraysOfNodes, EveryCall) {
  for (EpCase c : caller_array_cases(4)) {
    c.nodes = 2;
    run_case(c, {check_route_arrays, check_unpack, check_all_weights, check_combine_arrays});
  }
}

TEST(EpCallerArraysRefused, NamedAndWithoutEffect) {
  EpCase c = small_case(2, 43);
  while (std::min(c.tokens(0), c.tokens(1)) < 2) ++c.seed;
  run_case(c, {check_refused_arrays, check_route_arrays, check_unpack, check_all_weights,
               check_combine_arrays});
}

/// Expert output for no row, although the rank received some: its rows are sums of nothing.
TEST(EpCallerArraysOfNothing, SumsOfNoRows) {
  run_case(small_case(2, 47), {check_combine_without_rows});
}

}  // namespace
}  // namespace shoal::test
