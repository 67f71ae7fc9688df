// SPDX-License-Identifier: Apache-2.0
// The arrays that callers pass to route, unpack, dispatch and combine in normal mode, with PEs as
// threads.
#include "checks/ep/caller_arrays.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

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

/// Arrays of the host at addresses that are no multiples of 16 bytes.
class Shifted {
 public:
  /// A copy of `tensor`.
  TensorView copy(const TensorView& tensor) {
    TensorView view = tensor;
    const std::size_t offset = 2 + 2 * (memory_.size() % 7);
    view.data = memory_.emplace_back(tensor.bytes() + 16).data() + offset;
    if (tensor.bytes() > 0) std::memcpy(view.data, tensor.data, tensor.bytes());
    return view;
  }

 private:
  std::vector<std::vector<std::byte>> memory_;
};

TEST(EpCallerArraysAnywhere, RowsOfNormalMode) {
  const EpCase c = small_case(3, 53);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    Shifted shifted;
    const ep::Dispatched wanted = group.dispatch(in.x, routing, {.weights = in.weights});
    const TensorView x = shifted.copy(in.x);
    const ep::Dispatched got = group.dispatch(x, routing, {.weights = in.weights});
    const ep::Dispatched again = group.dispatch(x, wanted.handle);
    ASSERT_EQ(got.rows, wanted.rows);
    expect_same("rows", got.x.data, wanted.x.data, wanted.x.bytes(), 2);
    expect_same("rows", again.x.data, wanted.x.data, wanted.x.bytes(), 2);

    const Tensor y = expert_output_of(c, world.my_pe(), wanted);
    const ep::Combined sum = group.combine(y, wanted.handle, {.bias = {in.x, in.x}});
    const TensorView bias = shifted.copy(in.x), out = shifted.copy(in.x);
    const ep::Combined sum_of_shifted =
        group.combine(shifted.copy(y), wanted.handle, {.bias = {bias, in.x}, .out = out});
    EXPECT_EQ(sum_of_shifted.x.data, out.data);
    expect_same("sums", out.data, sum.x.data, sum.x.bytes(), 2);
    // Each array alone.
    for (const int one : {0, 1, 2}) {
      const TensorView room = shifted.copy(in.x);
      const ep::Combined part =
          group.combine(one == 0 ? shifted.copy(y) : TensorView(y), wanted.handle,
                        {.bias = {in.x, one == 1 ? bias : TensorView(in.x)},
                         .out = one == 2 ? room : TensorView()});
      expect_same("sums", part.x.data, sum.x.data, sum.x.bytes(), 2);
    }
  });
}

TEST(EpCallerArraysAnywhere, RowsOfLowLatency) {
  const EpCase c = small_case(3, 59);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    Shifted shifted;
    const auto pair = [&](const TensorView& x, const auto& y_of, const TensorView& out) {
      const ep::LowLatencyReceived got =
          group.low_latency_dispatch(x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
      check_low_latency_received(c, world.my_pe(), got);
      return group
          .low_latency_combine(y_of(got.x), in.topk_idx, in.weights, got.handle, {.out = out})
          .receive();
    };
    const Tensor wanted = pair(in.x, [](const TensorView& rows) { return rows; }, {});
    const TensorView out = shifted.copy(in.x);
    const Tensor got =
        pair(shifted.copy(in.x), [&](const TensorView& rows) { return shifted.copy(rows); }, out);
    EXPECT_EQ(got.data, out.data);
    expect_same("sums", out.data, wanted.data, wanted.bytes(), 2);
  });
}

TEST(EpCallerArraysRefused, UnusedRowsOfAnotherResult) {
  const EpCase c = small_case(2, 61);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
    got.x.shape[0] += 1;
    expect_error(Code::invalid_argument, "clear_unused is set and x has",
                 [&] { group.unpack(got, {.clear_unused = true}); });
  });
}

}  // namespace
}  // namespace shoal::test
