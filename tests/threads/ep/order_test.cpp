// SPDX-License-Identifier: Apache-2.0
// Calls out of order: receives in the wrong order, ranks that differ, ranks that were masked,
// closed worlds; low-latency operations that are dropped before their receive, and routings of
// other origin; messages about a failed group, which name the rank that failed first.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#include "checks/ep/normal.hpp"
#include "ep/host/rows/worker_pool.hpp"
#include "ep/plan/routing.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks) {
  return {
      .ranks = ranks, .experts = 2 * ranks, .top_k = 3, .hidden = 64, .max_tokens = 10, .seed = 4};
}

template <typename Call>
Code code_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return Code{};
}

TEST(EpOrder, LowLatencyReceivesFollowTheSends) {
  const EpCase c = small(3);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::LowLatencyDispatchOptions plain{.quantize = ep::Quantize::none};
    auto first = group.low_latency_dispatch(in.x, in.topk_idx, plain);
    auto second = group.low_latency_dispatch(in.x, in.topk_idx, plain);
    EXPECT_EQ(code_of([&] { second.receive(); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { group.low_latency_dispatch(in.x, in.topk_idx, plain); }),
              Code::invalid_argument);
    const auto a = first.receive(), b = second.receive();
    auto back_a = group.low_latency_combine(a.x, in.topk_idx, in.weights, a.handle);
    auto back_b = group.low_latency_combine(b.x, in.topk_idx, in.weights, b.handle);
    EXPECT_EQ(code_of([&] { back_b.receive(); }), Code::invalid_argument);
    EXPECT_EQ(code_of([&] { group.low_latency_combine(a.x, in.topk_idx, in.weights, a.handle); }),
              Code::invalid_argument);
    back_a.receive();
    back_b.receive();
    check_low_latency(group, c, ep::Reduction::exact, true);
  });
}

// At once: a wait that ended by its deadline would be a timeout.
void run_different_modes(std::int64_t node_size) {
  const EpCase c = small(2);  // a third rank could come when the group has been given up
  Settings settings = ep_settings();
  settings.node_size = node_size;
  for (const bool combine : {false, true})
    for (const bool mask_failed : {false, true})
      run_threads(c.ranks, settings, [&](World& world) {
        ep::GroupOptions options = options_for(c);
        options.mask_failed = mask_failed;
        ep::Group group(world.team(), options);
        const Inputs in(c, world.my_pe());
        const auto low_latency = [&] {
          return group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none})
              .receive();
        };
        check_low_latency(group, c, ep::Reduction::exact, true);
        ep::LowLatencyReceived got;
        if (combine) got = low_latency();
        const auto call = [&] {
          if (world.my_pe() == 0)
            (void)group.dispatch(in.x, group.route(in.topk_idx));
          else if (combine)
            group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle).receive();
          else
            (void)low_latency();
        };
        expect_error(Code::mismatch,
                     world.my_pe() == 0 ? "PE 1 is in an operation of low-latency mode"
                                        : "PE 0 is in an operation of normal mode",
                     call);
      });
}

TEST(EpOrder, RanksInDifferentModesAllGetAMismatch) {
  run_different_modes(0);
}

TEST(EpOrder, RanksOfTwoNodesInDifferentModesAllGetAMismatch) {
  run_different_modes(1);
}

TEST(EpOrder, RanksWithDifferentOptionsAllGetAMismatch) {
  const EpCase c = small(3);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const auto quantize = world.my_pe() == 1 ? ep::Quantize::none : ep::Quantize::fp8;
    auto pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = quantize});
    EXPECT_EQ(code_of([&] { pending.receive(); }), Code::mismatch);

    const float scale = world.my_pe() == 1 ? 2.0F : 3.0F;
    auto scaled = group.low_latency_dispatch(
        in.x, in.topk_idx,
        {.quantize = ep::Quantize::nvfp4,
         .global_scale = ConstTensorView(&scale, DataType::float32, {1})});
    expect_error(Code::mismatch,
                 "PE 0 passed quantize nvfp4 and global scale 3, PE 1 passed quantize nvfp4 and "
                 "global scale 2",
                 [&] { scaled.receive(); });

    const auto got =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    // Every message describes the form of PE 2.
    const auto expect_mismatch = [&](const ep::LowLatencyCombineOptions& usual,
                                     const ep::LowLatencyCombineOptions& odd, const char* part) {
      auto back = group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle,
                                            world.my_pe() == 2 ? odd : usual);
      expect_error(Code::mismatch, part, [&] { back.receive(); });
    };
    for (const bool defer : {true, false}) {
      expect_mismatch({.defer_receive = defer}, {.log_fmt = true, .defer_receive = defer},
                      "log_fmt rows that are rounded once per PE (per_rank)");
      expect_mismatch({.log_fmt = true, .defer_receive = defer},
                      {.log_fmt = true, .reduction = ep::Reduction::exact, .defer_receive = defer},
                      "log_fmt rows that are rounded once (exact)");
      expect_mismatch({.log_fmt = true, .defer_receive = defer},
                      {.quantize = ep::Quantize::fp8, .defer_receive = defer},
                      "fp8 rows that are rounded once per PE (per_rank)");
      expect_mismatch({.quantize = ep::Quantize::fp8, .defer_receive = defer},
                      {.quantize = ep::Quantize::mxfp8, .defer_receive = defer},
                      "mxfp8 rows that are rounded once per PE (per_rank)");
    }
    for (int i = 0; i < 3; ++i) check_low_latency(group, c, ep::Reduction::per_rank, i % 2 == 0);
  });
}

TEST(EpOrder, AGroupOutlivesItsWorldWithoutHarm) {
  const EpCase c = small(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    const Inputs in(c, world.my_pe());
    ep::PendingDispatch pending;
    {
      ep::Group group(world.team(), options_for(c));
      pending = group.low_latency_dispatch(in.x, in.topk_idx);
      sync(world.team());
      world.close();
      EXPECT_EQ(code_of([&] { (void)pending.ready(); }), Code::closed);
      EXPECT_EQ(code_of([&] { pending.receive(); }), Code::closed);
      EXPECT_EQ(code_of([&] { group.next_combine_buffer(); }), Code::closed);
    }
  });
}

TEST(EpOrder, ARankThatWasMaskedGetsAnErrorAndReadsNothingStale) {
  const EpCase c = small(3);
  constexpr std::int32_t kLate = 1;
  std::atomic<int> masked{0};
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.mask_failed = true;
    options.timeout = std::chrono::milliseconds(600);
    ep::Group group(world.team(), options);
    check_low_latency(group, c, ep::Reduction::exact,
                      false);  // leaves rows of earlier epochs in every buffer
    check_low_latency(group, c, ep::Reduction::exact, false);
    const std::int32_t me = world.my_pe();
    const Inputs in(c, me);
    if (me == kLate) EXPECT_TRUE(wait_for([&] { return masked == c.ranks - 1; }));
    std::vector<int> mask(c.ranks, me == kLate ? 1 : 0);
    mask[kLate] = me == kLate ? 0 : 1;
    for (int i = 0; i < 3; ++i) {
      const auto got =
          group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
      if (i == 0) ++masked;
      Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
      for (std::int32_t e = 0; e < c.local_experts(); ++e)
        for (std::int64_t j = 0; j < got.counts.as<std::int32_t>()[e] * c.hidden; ++j) {
          const std::int64_t at = e * got.x.shape[1] * c.hidden + j;
          y.as<std::uint16_t>()[at] = bf16_of(expert_factor(me * c.local_experts() + e) *
                                              float_of_bf16(got.x.as<std::uint16_t>()[at]));
        }
      const Tensor out = group
                             .low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                                  {.reduction = ep::Reduction::exact})
                             .receive();
      // In the first round the rows of the others may have arrived before the late rank was masked,
      // or not.
      if (i == 0 && me == kLate) continue;
      const auto wanted = expected_low_latency(c, me, ep::Reduction::exact, mask);
      expect_same("result", out.data, wanted.data(), wanted.size() * 2, 2);
    }
    EXPECT_EQ(group.masked(), mask);
    sync(world.team());
  });
}

TEST(EpOrder, ADeadlineHoldsAlsoWhenTheWorldHasFailedElsewhere) {
  const EpCase c = small(3);
  std::vector<int> seen;
  std::atomic<bool> ended{false};
  Settings settings = ep_settings();
  settings.timeout = std::chrono::hours(1);
  try {
    run_threads(c.ranks, settings, [&](World& world) {
      ep::GroupOptions options = options_for(c);
      options.mask_failed = true;
      options.timeout = std::chrono::milliseconds(300);
      ep::Group group(world.team(), options);
      if (world.my_pe() == 2) {
        state_of(world).health().fail_world("failed on purpose");
      } else if (world.my_pe() == 1) {
        // The PE is alive but does not call.
        EXPECT_TRUE(wait_for([&] { return ended.load(); }));
      } else {
        const Inputs in(c, 0);
        group.low_latency_dispatch(in.x, in.topk_idx).receive();
        seen = group.masked();
        ended = true;
      }
    });
  } catch (const Error&) {
    // The world failed on purpose.
  }
  EXPECT_EQ(seen, (std::vector<int>{0, 1, 1}));
}

TEST(EpOrder, AnEventThatFailedFailsWhatWaitsForIt) {
  const EpCase c = small(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, 0);
    std::promise<void> event;
    auto dispatched =
        group.dispatch_async(in.x, group.route(in.topk_idx), {}, event.get_future().share());
    event.set_exception(std::make_exception_ptr(std::runtime_error("the caller's own failure")));
    EXPECT_THROW(dispatched.get(), std::runtime_error);
    check_normal(group, c);
  });
}

TEST(EpOrder, WorkersRethrowErrorsOfARange) {
  ep::host::WorkerPool pool(3);
  for (int round = 0; round < 3; ++round) {
    EXPECT_THROW(pool.for_ranges(30,
                                 [](std::int64_t first, std::int64_t) {
                                   if (first > 0) throw std::runtime_error("range");
                                 }),
                 std::runtime_error);
    std::atomic<std::int64_t> covered{0};
    pool.for_ranges(100, [&](std::int64_t first, std::int64_t last) { covered += last - first; });
    EXPECT_EQ(covered, 100);
  }
}

EpCase larger(std::int32_t ranks) {
  return {
      .ranks = ranks, .experts = ranks * 3, .top_k = 4, .hidden = 96, .max_tokens = 24, .seed = 11};
}

TEST(EpDropped, DispatchesLeaveTheModeUsable) {
  const EpCase c = larger(3);
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
  const EpCase c = larger(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    Tensor counts = Tensor::empty(DataType::int32, {group.local_experts()});
    std::fill_n(counts.as<std::int32_t>(), group.local_experts(), 0);
    {
      const auto dropped =
          group.low_latency_dispatch(in.x, in.topk_idx, {.tokens_per_expert = counts});
    }
    for (int i = 0; i < 3; ++i) check_low_latency(group, c, ep::Reduction::exact, false);
    for (std::int64_t e = 0; e < group.local_experts(); ++e)
      EXPECT_EQ(counts.as<std::int32_t>()[e], 0);
    sync(world.team());
  });
}

static_assert(!std::is_copy_constructible_v<ep::PendingDispatch> &&
              std::is_nothrow_move_assignable_v<ep::PendingDispatch>);
static_assert(!std::is_copy_constructible_v<ep::PendingCombine> &&
              std::is_nothrow_move_assignable_v<ep::PendingCombine>);

TEST(EpDropped, AssigningDropsAndMovingDoesNot) {
  const EpCase c = larger(2);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    auto pending = group.low_latency_dispatch(in.x, in.topk_idx);
    pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
    ep::PendingDispatch moved = std::move(pending);
    expect_error(Code::invalid_argument, "has been received, or is empty",
                 [&] { (void)pending.receive(); });  // NOLINT(bugprone-use-after-move)
    const ep::LowLatencyReceived got = moved.receive();
    auto back = group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle);
    ep::PendingCombine sums = std::move(back);
    EXPECT_EQ(sums.receive().shape[0], in.x.shape[0]);
    check_low_latency(group, c, ep::Reduction::exact, false);
    sync(world.team());
  });
}

TEST(EpDropped, CombinesLeaveTheModeUsable) {
  const EpCase c = larger(2);
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
  const EpCase c = larger(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, 0);
    ep::Routing routing = group.route(in.topk_idx);
    auto foreign = std::make_shared<ep::detail::RoutingState>();  // as a CUDA group makes it
    foreign->backend = ep::detail::BackendKind::cuda;
    foreign->shape = state_of(routing)->shape;
    foreign->tokens = state_of(routing)->tokens;
    foreign->topk_idx = routing.topk_idx;
    const Tensor topk_idx = routing.topk_idx;
    routing = detail::Access::make<ep::Routing>(foreign);
    routing.topk_idx = topk_idx;
    try {
      group.dispatch(in.x, routing);
      FAIL() << "the routing lies in GPU memory";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      expect_parts(error.what(), {"CUDA backend"});
    }
    check_normal(group, c);
  });
}

TEST(EpRoutingOrigin, ModifiedFieldDoesNotDecideWhatIsSent) {
  const EpCase c = larger(1);
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

// PE 0 waits for PE 1, which does not call dispatch. PE 2 calls it later.
TEST(EpFirstCause, ALaterCallNamesTheMissingPe) {
  const EpCase c{.ranks = 3, .experts = 6, .top_k = 2, .hidden = 64, .max_tokens = 8, .seed = 1};
  std::atomic<bool> failed{false}, seen{false};
  const auto wait_until = [](const std::atomic<bool>& flag) {
    EXPECT_TRUE(wait_for([&] { return flag.load(); }));
  };
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(100);
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    switch (world.my_pe()) {
      case 0:
        expect_parts(error_of([&] { group.dispatch(in.x, routing); }), {"from PE 1"});
        failed = true;
        break;
      case 1:
        wait_until(seen);
        break;
      default:
        wait_until(failed);
        expect_parts(error_of([&] { group.dispatch(in.x, routing); }),
                     {"PE 0 has given this group up because of PE 1"});
        seen = true;
    }
  });
}

}  // namespace
}  // namespace shoal::test
