// Low-latency mode with PEs as threads (E3, A4, A9), bit by bit against the naive reference.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <thread>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/ep_checks.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks, std::uint64_t seed = 1) {
  EpCase c;
  c.ranks = ranks;
  c.experts = ranks * 3;
  c.top_k = 4;
  c.hidden = 384;
  c.max_tokens = 12;
  c.seed = seed;
  return c;
}

void run_case(const EpCase& c, const std::function<void(World&, ep::Group&)>& body,
              const std::function<void(ep::GroupOptions&)>& change = {}) {
  Settings settings;
  settings.symmetric_size = std::size_t{256} << 20;
  settings.timeout = std::chrono::seconds(20);
  run_threads(c.ranks, settings, [&](World& world) {
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
    for (const auto reduction : {ep::Reduction::automatic, ep::Reduction::per_rank, ep::Reduction::exact})
      for (const bool zero_copy : {false, true}) check_low_latency(group, c, reduction, zero_copy);
  });
}

TEST_P(EpLowLatency, Float8FormsMatchNumeric) {
  const EpCase c = small(GetParam(), 2);
  run_case(c, [&](World&, ep::Group& group) {
    for (const auto quantize : {ep::Quantize::fp8, ep::Quantize::fp8_power_of_two, ep::Quantize::fp8_ue8m0})
      check_low_latency_fp8(group, c, quantize);
  });
}

TEST_P(EpLowLatency, NoTokensIdleMembersAndOneHotExpert) {
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small(GetParam(), 3);
    c.load = load;
    run_case(c, [&](World&, ep::Group& group) {
      for (int i = 0; i < 4; ++i) check_low_latency(group, c, ep::Reduction::per_rank, i % 2 == 0);
    });
  }
}

TEST(EpLowLatencyMode, LogFmtComesBackWithinItsError) {
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
      const ep::LowLatencyReceived& y = got;  // experts that answer what they got
      const Tensor exact =
          group.low_latency_combine(y.x, in.topk_idx, in.weights, got.handle, {.reduction = ep::Reduction::exact})
              .receive();
      const Tensor coded = group
                               .low_latency_combine(y.x, in.topk_idx, in.weights, got.handle,
                                                    {.log_fmt = true, .reduction = ep::Reduction::exact})
                               .receive();
      const Tensor levels =
          group.low_latency_combine(y.x, in.topk_idx, in.weights, got.handle, {.log_fmt = true}).receive();
      bool differs = false;
      for (std::int64_t i = 0; i < exact.size(); ++i) {
        const float a = float_of_bf16(exact.as<std::uint16_t>()[i]), b = float_of_bf16(coded.as<std::uint16_t>()[i]);
        // 510 steps over at most 32 octaves: half a step is 2^(32/1020) - 1 = 2.2 %; bfloat16 adds 2^-8.
        ASSERT_NEAR(a, b, std::fabs(a) * 0.026F + 1e-6F);
        ASSERT_NEAR(a, float_of_bf16(levels.as<std::uint16_t>()[i]), std::fabs(a) * 0.03F + 1e-6F);
        differs |= a != b;
      }
      if (exact.size() > 1000) EXPECT_TRUE(differs) << "nothing was encoded";
    });
  }
}

TEST(EpLowLatencyMode,
     ReceiveIsDeferredAndHoldsNothing) {  // A9: send and receive are separate; work of the caller runs between
  const EpCase c = small(4, 5);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    ep::PendingDispatch pending;
    if (world.my_pe() == 0) {
      // The others cannot be ready to receive before PE 0 has sent; their send has returned all the same.
      sync(world.team());
      pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
    } else {
      pending = group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
      EXPECT_FALSE(pending.ready());
      sync(world.team());
    }
    const ep::LowLatencyReceived got = pending.receive();
    EXPECT_THROW(pending.receive(), Error);
    EXPECT_TRUE(got.handle.valid());
    sync(world.team());
  });
}

TEST(EpLowLatencyMode, TwoResultsLiveAtOnce) {  // A4: the two halves never mix
  const EpCase a = small(4, 6);
  EpCase b = a;
  b.seed = 7;
  run_case(a, [&](World& world, ep::Group& group) {
    const Inputs in_a(a, world.my_pe()), in_b(b, world.my_pe());
    ep::PendingDispatch first = group.low_latency_dispatch(in_a.x, in_a.topk_idx, {.quantize = ep::Quantize::none});
    ep::PendingDispatch second = group.low_latency_dispatch(in_b.x, in_b.topk_idx, {.quantize = ep::Quantize::none});
    const ep::LowLatencyReceived got_a = first.receive(), got_b = second.receive();
    ep::PendingCombine back_a = group.low_latency_combine(got_a.x, in_a.topk_idx, in_a.weights, got_a.handle,
                                                          {.reduction = ep::Reduction::exact});
    ep::PendingCombine back_b = group.low_latency_combine(got_b.x, in_b.topk_idx, in_b.weights, got_b.handle,
                                                          {.reduction = ep::Reduction::exact});
    const Tensor out_a = back_a.receive(), out_b = back_b.receive();
    const auto check = [&](const EpCase& c, const Inputs& in, const Tensor& out) {
      for (std::int64_t t = 0; t < c.tokens(world.my_pe()); ++t) {
        float weight = 0;
        const auto lanes = c.topk(world.my_pe());
        for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
          float sum = 0;
          for (std::int32_t k = 0; k < c.top_k; ++k) {
            weight = in.weights.as<float>()[t * c.top_k + k];
            if (lanes[t * c.top_k + k] >= 0) sum += weight * float_of_bf16(c.value(world.my_pe(), t, ch));
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
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    Tensor counts = Tensor::empty(DataType::int32, {c.local_experts()}),
           waited = Tensor::empty(DataType::int64, {c.ranks});
    std::memset(counts.data, 0, counts.bytes());
    std::memset(waited.data, 0, waited.bytes());
    if (world.my_pe() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; i < 3; ++i) {
      const auto got =
          group.low_latency_dispatch(in.x, in.topk_idx, {.expert_counts = counts, .wait_ns = waited}).receive();
      group.low_latency_combine(group.next_combine_buffer(), in.topk_idx, in.weights, got.handle, {.zero_copy = true})
          .receive();
    }
    const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
    for (std::int32_t e = 0; e < c.local_experts(); ++e)
      EXPECT_EQ(counts.as<std::int32_t>()[e], 3 * wanted.tokens_per_expert[e]);
    if (world.my_pe() == 0) EXPECT_GT(waited.as<std::int64_t>()[1], 10'000'000) << "PE 1 came 30 ms late";
    sync(world.team());
  });
}

TEST(EpLowLatencyMode, ManySkewedPairsGiveTheSameResults) {  // A4
  const EpCase c = small(4, 9);
  run_case(c, [&](World& world, ep::Group& group) {
    std::uint64_t state = world.my_pe() * 31 + 7;
    for (int i = 0; i < 250; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      if (state >> 61 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      check_low_latency(group, c, i % 2 ? ep::Reduction::exact : ep::Reduction::per_rank, i % 3 == 0);
    }
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

TEST(EpLowLatencyMode, AMemberThatStopsIsMaskedAndTheOthersGoOn) {  // E3: masks for failed PEs with time-outs
  const EpCase c = small(4, 12);
  constexpr std::int32_t kGone = 2;
  static constexpr std::chrono::milliseconds kTimeout(800);
  run_case(
      c,
      [&](World& world, ep::Group& group) {
        check_low_latency(group, c, ep::Reduction::exact, false);
        if (world.my_pe() == kGone) {
          sync(world.team());
          return;
        }
        const Inputs in(c, world.my_pe());
        std::vector<int> mask(c.ranks, 0);
        mask[kGone] = 1;
        for (int i = 0; i < 3; ++i) {
          const auto start = std::chrono::steady_clock::now();
          const ep::LowLatencyReceived got =
              group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
          Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
          for (std::int32_t e = 0; e < c.local_experts(); ++e)
            for (std::int64_t j = 0; j < got.counts.as<std::int32_t>()[e] * c.hidden; ++j) {
              const std::int64_t at = e * got.x.shape[1] * c.hidden + j;
              y.as<std::uint16_t>()[at] = bf16_of(expert_factor(world.my_pe() * c.local_experts() + e) *
                                                  float_of_bf16(got.x.as<std::uint16_t>()[at]));
            }
          const Tensor out =
              group.low_latency_combine(y, in.topk_idx, in.weights, got.handle, {.reduction = ep::Reduction::exact})
                  .receive();
          const auto wanted = expected_low_latency(c, world.my_pe(), ep::Reduction::exact, mask);
          expect_same("result without the masked member", out.data, wanted.data(), wanted.size() * 2, 2);
          const auto elapsed = std::chrono::steady_clock::now() - start;
          if (i > 0) EXPECT_LT(elapsed, kTimeout * 3 / 4) << "a masked member is not waited for again";
        }
        EXPECT_EQ(group.masked(), mask);
        EXPECT_THROW(group.set_mask(world.my_pe(), true), Error);
        group.clear_masks();
        EXPECT_EQ(group.masked(), std::vector<int>(c.ranks, 0));
        sync(world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = kTimeout;
      });
}

TEST(EpLowLatencyMode, WithoutMasksATimeoutNamesTheMemberAndClosesTheGroup) {
  const EpCase c = small(3, 14);
  run_case(
      c,
      [&](World& world, ep::Group& group) {
        if (world.my_pe() != 1) {
          const Inputs in(c, world.my_pe());
          try {
            group.low_latency_dispatch(in.x, in.topk_idx).receive();
            ADD_FAILURE() << "did not time out";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::timeout);
            const std::string text = error.what();
            for (const char* part :
                 {"low_latency_dispatch (epoch 1) timed out after 200 ms", "waiting for rows from PE 1",
                  "expected epoch 1, seen 0", "phase receive", "GroupOptions.timeout"})
              EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
          }
          try {
            group.low_latency_dispatch(in.x, in.topk_idx);
            ADD_FAILURE() << "a failed group went on";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::closed);
          }
        }
        sync(world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(200); });
}

}  // namespace
}  // namespace shoal::test
