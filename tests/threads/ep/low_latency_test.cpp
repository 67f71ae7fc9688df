// SPDX-License-Identifier: Apache-2.0
// Low-latency mode with PEs as threads, bit by bit against the naive reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "checks/ep/normal.hpp"
#include "checks/world/waits.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks, std::uint64_t seed = 1) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 4,
          .hidden = 384,
          .max_tokens = 12,
          .seed = seed};
}

void run_case(const EpCase& c, const std::function<void(World&, ep::Group&)>& body,
              const std::function<void(ep::GroupOptions&)>& change = {}) {
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    if (change) change(options);
    ep::Group group(world.team(), options);
    body(world, group);
  });
}

class EpLowLatency : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpLowLatency, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpLowLatency, MatchesTheReferenceInEveryReduction) {
  const EpCase c = small(GetParam());
  run_case(c, [&](World&, ep::Group& group) {
    for (const auto reduction :
         {ep::Reduction::automatic, ep::Reduction::per_rank, ep::Reduction::exact})
      for (const bool zero_copy : {false, true}) check_low_latency(group, c, reduction, zero_copy);
  });
}

TEST_P(EpLowLatency, UnsummedRowsAreThoseOfTheExperts) {
  for (const std::int64_t hidden : {384, 1040}) {
    EpCase c = small(GetParam(), 5);
    c.hidden = hidden;
    c.mixed_magnitudes = true;
    c.none_expert = c.experts;
    run_case(c, [&](World&, ep::Group& group) { check_low_latency_unsummed(group, c); });
  }
}

TEST_P(EpLowLatency, Float8FormsMatchNumeric) {
  const EpCase c = small(GetParam(), 2);
  run_case(c, [&](World&, ep::Group& group) { check_low_latency_formats(group, c); });
}

TEST(EpLowLatencyMode, MultiplesOf128AndOf512) {
  for (const std::int64_t hidden : {128, 640, 2688, 2944}) {
    EpCase c = small(3, 6);
    c.hidden = hidden;
    run_case(c, [&](World&, ep::Group& group) {
      check_low_latency(group, c, ep::Reduction::per_rank, false);
      check_low_latency_formats(group, c);
    });
  }
}

TEST_P(EpLowLatency, NoTokensIdleRanksAndOneHotExpert) {
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small(GetParam(), 3);
    c.load = load;
    run_case(c, [&](World&, ep::Group& group) {
      for (int i = 0; i < 4; ++i) check_low_latency(group, c, ep::Reduction::per_rank, i % 2 == 0);
    });
  }
}

TEST(EpLowLatencyMode, LogFmtReturnsWithinItsError) {
  for (const std::int64_t hidden : {1024, 512, 640}) {
    EpCase c = small(3, 4);
    c.hidden = hidden;
    run_case(c, [&](World& world, ep::Group& group) {
      const Inputs in(c, world.my_pe());
      // Magnitudes below 1, where the format applies.
      for (std::int64_t i = 0; i < in.x.size(); ++i)
        in.x.as<std::uint16_t>()[i] = bf16_of(float_of_bf16(in.x.as<std::uint16_t>()[i]) * 0.25F);
      const ep::LowLatencyReceived got =
          group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
      const ep::LowLatencyReceived& y = got;  // experts return their input
      const Tensor exact = group
                               .low_latency_combine(y.x, in.topk_idx, in.weights, got.handle,
                                                    {.reduction = ep::Reduction::exact})
                               .receive();
      const Tensor coded =
          group
              .low_latency_combine(y.x, in.topk_idx, in.weights, got.handle,
                                   {.log_fmt = true, .reduction = ep::Reduction::exact})
              .receive();
      const Tensor levels =
          group.low_latency_combine(y.x, in.topk_idx, in.weights, got.handle, {.log_fmt = true})
              .receive();
      bool differs = false;
      for (std::int64_t i = 0; i < exact.size(); ++i) {
        const float a = float_of_bf16(exact.as<std::uint16_t>()[i]),
                    b = float_of_bf16(coded.as<std::uint16_t>()[i]);
        // 510 steps over at most 32 octaves: half a step is 2^(32/1020) - 1 = 2.2 %; bfloat16 adds
        // 2^-8.
        ASSERT_NEAR(a, b, std::fabs(a) * 0.026F + 1e-6F);
        ASSERT_NEAR(a, float_of_bf16(levels.as<std::uint16_t>()[i]), std::fabs(a) * 0.03F + 1e-6F);
        differs |= a != b;
      }
      if (exact.size() > 1000) EXPECT_TRUE(differs) << "no value was encoded";
    });
  }
}

// The caller works between send and receive. A send waits for no rank: it ends while PE 0 has
// called nothing.
class EpLowLatencyDeferred : public testing::TestWithParam<ep::Reduction> {};
INSTANTIATE_TEST_SUITE_P(Reductions, EpLowLatencyDeferred,
                         testing::Values(ep::Reduction::per_rank, ep::Reduction::exact));

TEST_P(EpLowLatencyDeferred, HoldsNothingAndSendsWithoutWaiting) {
  const EpCase c = small(4, 5);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    ep::PendingDispatch pending;
    if (world.my_pe() == 0) {
      // The others cannot be ready to receive before PE 0 has sent, but their send has returned.
      sync(world.team());
      pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
    } else {
      pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
      EXPECT_FALSE(pending.ready());
      sync(world.team());
    }
    sync(world.team());
    EXPECT_TRUE(pending.ready()) << "all have sent";
    const ep::LowLatencyReceived got = pending.receive();
    EXPECT_THROW(pending.receive(), Error);
    EXPECT_THROW(pending.ready(), Error);
    check_low_latency_received(c, world.my_pe(), got);

    const TensorView y = group.next_combine_buffer();
    write_low_latency_expert_output(c, world.my_pe(), got, y);
    const auto combine = [&] {
      return group.low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                       {.zero_copy = true, .reduction = GetParam()});
    };
    ep::PendingCombine pending_combine;
    if (world.my_pe() != 0) pending_combine = combine();
    if (world.my_pe() != 0) EXPECT_FALSE(pending_combine.ready());
    sync(world.team());
    if (world.my_pe() == 0) pending_combine = combine();
    sync(world.team());
    EXPECT_TRUE(pending_combine.ready());
    const Tensor out = pending_combine.receive();
    const auto wanted = expected_low_latency(c, world.my_pe(), GetParam());
    expect_same("combined", out.data, wanted.data(), wanted.size() * 2, 2);
    EXPECT_THROW(pending_combine.receive(), Error);
    // The view was for that combine; the next one is sent from elsewhere.
    expect_error(Code::invalid_argument,
                 "with zero_copy y must be the view that next_combine_buffer returned", combine);
    EXPECT_THROW(pending_combine.ready(), Error);
  });
}

// The two halves never mix.
TEST(EpLowLatencyMode, TwoResultsLiveAtOnce) {
  const EpCase a = small(4, 6);
  EpCase b = a;
  b.seed = 7;
  run_case(a, [&](World& world, ep::Group& group) {
    const Inputs in_a(a, world.my_pe()), in_b(b, world.my_pe());
    ep::PendingDispatch first =
        group.low_latency_dispatch(in_a.x, in_a.topk_idx, {.quantize = ep::Quantize::none});
    ep::PendingDispatch second =
        group.low_latency_dispatch(in_b.x, in_b.topk_idx, {.quantize = ep::Quantize::none});
    const ep::LowLatencyReceived got_a = first.receive(), got_b = second.receive();
    check_low_latency_received(a, world.my_pe(),
                               got_a);  // the second dispatch has not changed the first result
    check_low_latency_received(b, world.my_pe(), got_b);
    ep::PendingCombine back_a = group.low_latency_combine(
        got_a.x, in_a.topk_idx, in_a.weights, got_a.handle, {.reduction = ep::Reduction::exact});
    ep::PendingCombine back_b = group.low_latency_combine(
        got_b.x, in_b.topk_idx, in_b.weights, got_b.handle, {.reduction = ep::Reduction::exact});
    const Tensor out_a = back_a.receive(), out_b = back_b.receive();
    const auto check = [&](const EpCase& c, const Inputs& in, const Tensor& out) {
      for (std::int64_t t = 0; t < c.tokens(world.my_pe()); ++t) {
        float weight = 0;
        const auto topk_idx = c.topk(world.my_pe());
        for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
          float sum = 0;
          for (std::int32_t k = 0; k < c.top_k; ++k) {
            weight = in.weights.as<float>()[t * c.top_k + k];
            if (topk_idx[t * c.top_k + k] >= 0)
              sum += weight * float_of_bf16(c.value(world.my_pe(), t, ch));
          }
          ASSERT_EQ(out.as<std::uint16_t>()[t * c.hidden + ch], bf16_of(sum));
        }
      }
    };
    check(a, in_a, out_a);
    check(b, in_b, out_b);
  });
}

TEST(EpLowLatencyMode, StatisticsAddUp) {
  const EpCase c = small(3, 8);
  std::atomic<int> sent{0};
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    Tensor counts = Tensor::empty(DataType::int32, {c.local_experts()}),
           waited = Tensor::empty(DataType::int64, {c.ranks});
    std::memset(counts.data, 0, counts.bytes());
    std::memset(waited.data, 0, waited.bytes());
    if (world.my_pe() == 1) {
      while (sent != c.ranks - 1) std::this_thread::yield();
      await_block(wait_point_of(world, 0));
    }
    for (int i = 0; i < 3; ++i) {
      auto pending = group.low_latency_dispatch(in.x, in.topk_idx,
                                                {.tokens_per_expert = counts, .wait_ns = waited});
      ++sent;
      const auto got = pending.receive();
      group
          .low_latency_combine(group.next_combine_buffer(), in.topk_idx, in.weights, got.handle,
                               {.zero_copy = true})
          .receive();
    }
    const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
    for (std::int32_t e = 0; e < c.local_experts(); ++e)
      EXPECT_EQ(counts.as<std::int32_t>()[e], 3 * wanted.tokens_per_expert[e]);
    if (world.my_pe() == 0) EXPECT_GT(waited.as<std::int64_t>()[1], 0) << "PE 1 was late";
    sync(world.team());
  });
}

TEST(EpLowLatencyMode, NormalAndLowLatencyInterleave) {
  const EpCase c = small(4, 10);
  run_case(c, [&](World&, ep::Group& group) {
    for (int i = 0; i < 10; ++i) {
      check_normal(group, c);
      check_low_latency(group, c, ep::Reduction::per_rank, false);
    }
  });
}

TEST(EpLowLatencyMode, WithoutMasksATimeoutNamesTheRankAndClosesTheGroup) {
  const EpCase c = small(3, 14);
  run_case(
      c,
      [&](World& world, ep::Group& group) {
        if (world.my_pe() != 1) {
          const Inputs in(c, world.my_pe());
          expect_error(Code::timeout,
                       {"low_latency_dispatch (epoch 1) timed out after 200 ms",
                        "waiting for rows from PE 1", "expected epoch 1, seen 0", "phase receive",
                        "GroupOptions.timeout"},
                       [&] { group.low_latency_dispatch(in.x, in.topk_idx).receive(); });
          expect_error(Code::closed, "", [&] { group.low_latency_dispatch(in.x, in.topk_idx); });
        }
        sync(world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(200); });
}

}  // namespace
}  // namespace shoal::test
