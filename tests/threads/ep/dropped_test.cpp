// SPDX-License-Identifier: Apache-2.0
// Low-latency operations that are dropped before their receive, and routings of other origin.
#include <gtest/gtest.h>

#include "checks/ep/normal.hpp"
#include "ep/plan/routing.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks) {
  return {
      .ranks = ranks, .experts = ranks * 3, .top_k = 4, .hidden = 96, .max_tokens = 24, .seed = 11};
}

TEST(EpDropped, DispatchesLeaveTheModeUsable) {
  const EpCase c = small(3);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    // PE 0 drops one, two and three in a row; the others receive all.
    for (int count = 1; count <= 3; ++count) {
      for (int i = 0; i < count; ++i) {
        auto pending = group.low_latency_dispatch(in.x, in.topk_idx);
        if (world.my_pe() != 0) pending.receive();
      }
      check_low_latency(group, c, ep::Reduction::exact, false);
      check_low_latency(group, c, ep::Reduction::exact, false);
    }
    sync(world.team());
  });
}

TEST(EpDropped, EveryRankMayDropAndStatisticsAreNotWritten) {
  const EpCase c = small(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    Tensor counts = Tensor::empty(DataType::int32, {group.local_experts()});
    std::fill_n(counts.as<std::int32_t>(), group.local_experts(), 0);
    {
      const auto dropped = group.low_latency_dispatch(in.x, in.topk_idx, {.expert_counts = counts});
    }
    for (int i = 0; i < 3; ++i) check_low_latency(group, c, ep::Reduction::exact, false);
    for (std::int64_t e = 0; e < group.local_experts(); ++e)
      EXPECT_EQ(counts.as<std::int32_t>()[e], 0);
    sync(world.team());
  });
}

TEST(EpDropped, CombinesLeaveTheModeUsable) {
  const EpCase c = small(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const Tensor weights = Tensor::empty(DataType::float32, {in.x.shape[0], c.top_k});
    std::fill_n(weights.as<float>(), weights.size(), 1.0F);
    for (int count = 1; count <= 3; ++count) {
      for (int i = 0; i < count; ++i) {
        const auto got =
            group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none})
                .receive();
        auto pending = group.low_latency_combine(got.x, in.topk_idx, weights, got.handle);
        if (world.my_pe() != 0) pending.receive();
      }
      check_low_latency(group, c, ep::Reduction::exact, false);
    }
    sync(world.team());
  });
}

TEST(EpRoutingOrigin, RoutingOfAnotherBackendIsRejected) {
  const EpCase c = small(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, 0);
    ep::Routing routing = group.route(in.topk_idx);
    auto foreign = std::make_shared<ep::detail::RoutingState>();  // as a CUDA group makes it
    foreign->backend = ep::detail::BackendKind::cuda;
    foreign->shape = routing.state->shape;
    foreign->tokens = routing.state->tokens;
    foreign->topk_idx = routing.topk_idx;
    routing.state = foreign;
    try {
      group.dispatch(in.x, routing);
      FAIL() << "the routing lies in GPU memory";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("CUDA backend"), std::string::npos) << error.what();
    }
    check_normal(group, c);
  });
}

TEST(EpRoutingOrigin, ModifiedFieldDoesNotDecideWhatIsSent) {
  const EpCase c = small(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, 0);
    ep::Routing routing = group.route(in.topk_idx);
    const std::int64_t tokens = in.x.shape[0];
    ASSERT_GT(tokens, 1);
    routing.topk_idx.shape[0] = 1;
    Tensor one = Tensor::empty(in.x.dtype, {1, in.x.shape[1]});
    EXPECT_THROW(group.dispatch(one, routing), Error) << "rows that x does not have were sent";
    EXPECT_EQ(group.dispatch(in.x, routing).rows,
              static_cast<std::int64_t>(expected_dispatch(c, 0).source_token.size()));
    check_normal(group, c);
  });
}

}  // namespace
}  // namespace shoal::test
