// SPDX-License-Identifier: Apache-2.0
// Low-latency mode on GPUs: statistics, masked ranks, timeouts, bad arguments, disagreement,
// warm-up.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;
using Round = GpuLowLatencyRound;

TEST(EpGpuLowLatencyMode, SmallStatisticsAddUp) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 61);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const std::vector<std::int64_t> zeros(
        static_cast<std::size_t>(std::max(c.ranks, c.local_experts())), 0);
    const std::vector<std::int32_t> none(static_cast<std::size_t>(c.local_experts()), 0);
    const Tensor counts =
        group.tensors.upload(ConstTensorView(none.data(), DataType::int32, {c.local_experts()}));
    const Tensor waited =
        group.tensors.upload(ConstTensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Tensor waited_back =
        group.tensors.upload(ConstTensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Round round(group, c, {});
    const auto pair = [&] {
      const auto got = group.group
                           .low_latency_dispatch(round.x(), round.topk(),
                                                 {.tokens_per_expert = counts, .wait_ns = waited})
                           .receive();
      if (group.me == 1) {
        group.tensors.settle();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      group.group
          .low_latency_combine(group.group.next_combine_buffer(), round.topk(), round.weights(),
                               got.handle, {.zero_copy = true, .wait_ns = waited_back})
          .receive();
    };
    sync(group.world.team());
    if (group.me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; i < 3; ++i) pair();
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    const Tensor got_counts = group.tensors.download(counts),
                 got_waited = group.tensors.download(waited),
                 got_back = group.tensors.download(waited_back);
    for (std::int32_t e = 0; e < c.local_experts(); ++e)
      EXPECT_EQ(got_counts.as<std::int32_t>()[e], 3 * wanted.tokens_per_expert[e]);
    const auto topk_idx = c.topk(0);
    const bool has_combine_rows = std::any_of(topk_idx.begin(), topk_idx.end(),
                                              [&](std::int64_t e) { return e >= 3 && e < 6; });
    if (group.me == 0) {
      EXPECT_GT(got_waited.as<std::int64_t>()[1], 10'000'000) << "PE 1 was 30 ms late";
      EXPECT_LT(got_waited.as<std::int64_t>()[1], 20'000'000'000);
      EXPECT_EQ(got_waited.as<std::int64_t>()[0], 0) << "no rank waits for itself";
      if (has_combine_rows) EXPECT_LT(got_back.as<std::int64_t>()[1], 20'000'000'000);
    }
    sync(group.world.team());
  });
}

TEST(EpGpuLowLatencyMode, ARankThatStopsIsMaskedAndTheOthersContinue) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kGone = 2;
  constexpr std::chrono::milliseconds kTimeout(1000);
  const EpCase c = wide_case(4, 67);
  const auto stops = [&](Reduction reduction, bool defer, bool unsummed) {
    run_low_latency_group(
        c,
        [&](GpuGroup& group) {
          Round(group, c, {.reduction = reduction, .defer_receive = defer}).run();
          group.group.synchronize();
          sync(group.world.team());
          if (group.me == kGone) {
            sync(group.world.team());
            return;
          }
          std::vector<int> mask(c.ranks, 0);
          mask[kGone] = 1;
          Round round(group, c,
                      {.reduction = reduction,
                       .early_weights = reduction == Reduction::exact,
                       .masked = mask,
                       .defer_receive = defer,
                       .gives_rows = unsummed});
          for (int i = 0; i < 4; ++i) {
            const auto start = std::chrono::steady_clock::now();
            round.run();
            group.group.synchronize();
            const auto elapsed = std::chrono::steady_clock::now() - start;
            if (i > 0)
              EXPECT_LT(elapsed, kTimeout * 3 / 4) << "no rank waits again for a masked rank";
          }
          EXPECT_EQ(group.group.masked(), mask);
          EXPECT_THROW(group.group.set_mask(group.me, true), Error);
          group.group.clear_masks();
          EXPECT_EQ(group.group.masked(), std::vector<int>(c.ranks, 0));
          sync(group.world.team());
        },
        [&](ep::GroupOptions& options) {
          options.mask_failed = true;
          options.timeout = kTimeout;
        });
  };
  for (const bool defer : kDeferrals) {
    for (const Reduction reduction : kReductions) stops(reduction, defer, false);
    stops(Reduction::automatic, defer, true);
  }
}

TEST(EpGpuLowLatencyMode, ALiveRankIsMaskedAndReturns) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kOut = 2;
  const EpCase c = wide_case(4, 71);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        // All ranks agree that the group splits into {kOut} and the others. Each part continues
        // independently.
        const std::vector<int> mask = mask_of_split(kOut, group.me, c.ranks);
        for (const Reduction reduction : kReductions) {
          Round full(group, c, {.reduction = reduction});
          Round part(group, c, {.reduction = reduction, .zero_copy = true, .masked = mask});
          for (int turn = 0; turn < 2; ++turn) {
            for (int i = 0; i < 3; ++i) full.run();
            group.group.synchronize();
            sync(group.world.team());
            for (std::int32_t rank = 0; rank < c.ranks; ++rank)
              if (mask[rank] != 0) group.group.set_mask(rank, true);
            EXPECT_EQ(group.group.masked(), mask);
            for (int i = 0; i < 5; ++i) part.run();
            group.group.synchronize();
            sync(group.world.team());
            group.group.clear_masks();
            EXPECT_EQ(group.group.masked(), std::vector<int>(c.ranks, 0));
            sync(group.world.team());
          }
          for (int i = 0; i < 3; ++i) full.run();
        }
      },
      [](ep::GroupOptions& options) { options.mask_failed = true; });
}

TEST(EpGpuLowLatencyMode, ARankThatIsMaskedGetsAnError) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Only the other ranks mask it. Their notices end its waits long before the timeout.
  constexpr std::int32_t kOut = 1;
  const EpCase c = wide_case(3, 73);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        Round(group, c, {}).run();
        group.group.synchronize();
        sync(group.world.team());
        const std::vector<int> mask = mask_of_split(kOut, group.me, c.ranks);
        if (group.me != kOut) group.group.set_mask(kOut, true);
        sync(group.world.team());
        Round round(group, c, {.masked = mask});
        for (int i = 0; i < 3; ++i) round.run();
        group.group.synchronize();
        EXPECT_EQ(group.group.masked(), mask);
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = std::chrono::hours(1);
      });
}

class EpGpuLowLatencyTimeout : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuLowLatencyTimeout, ::testing::ValuesIn(kDeferrals),
                         [](const auto& tested) {
                           return tested.param ? "deferred" : "immediate";
                         });

TEST_P(EpGpuLowLatencyTimeout, WithoutMasksItNamesTheRankAndClosesTheGroup) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 79);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        if (group.me != 1) {
          const Round round(group, c, {});
          expect_error(Code::timeout,
                       {"low_latency_dispatch (epoch 1) timed out after 300 ms",
                        "waiting for rows from PE 1", "expected epoch 1, seen 0", "phase receive",
                        "GroupOptions.timeout"},
                       [&] {
                         group.group
                             .low_latency_dispatch(round.x(), round.topk(),
                                                   {.defer_receive = GetParam()})
                             .receive();
                         group.group.synchronize();
                       });
          expect_error(Code::closed, "timed out",
                       [&] { group.group.low_latency_dispatch(round.x(), round.topk()); });
        }
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(300); });
}

// At once: a wait that ended by its deadline would be a timeout.
void expect_mismatch_of_modes(const EpCase& c, std::int32_t odd, bool odd_is_normal, bool combine,
                              const GpuLowLatencyCall& call) {
  SCOPED_TRACE(call.describe() + (combine ? " combine" : "") + (odd_is_normal ? " normal" : ""));
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        Round round(group, c, call);
        round.run();
        std::optional<ep::LowLatencyReceived> got;
        if (combine) {
          got = round.send().receive();
          round.check(*got);
          round.write_expert_output();
        }
        group.group.synchronize();
        sync(group.world.team());
        const bool normal = (group.me == odd) == odd_is_normal;
        expect_error(Code::mismatch,
                     normal ? "is in an operation of low-latency mode, which this PE has not called"
                            : "is in an operation of normal mode, which this PE has not called",
                     [&] {
                       if (normal)
                         (void)group.group.dispatch(round.x(), group.group.route(round.topk()));
                       else if (combine)
                         round.combine(*got).receive();
                       else
                         (void)round.send().receive();
                       group.group.synchronize();
                     });
        sync(group.world.team());
      },
      [&](ep::GroupOptions& options) {
        options.max_tokens = options_for(c).max_tokens;
        options.timeout = std::chrono::minutes(1);
      });
}

TEST(EpGpuLowLatencyMode, SmallRanksInDifferentModesAllGetAMismatch) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 101);
  for (const bool odd_is_normal : {false, true}) {
    for (const Reduction reduction : kReductions)
      for (const bool defer : kDeferrals)
        expect_mismatch_of_modes(c, 1, odd_is_normal, true,
                                 {.reduction = reduction, .defer_receive = defer});
    for (const bool defer : kDeferrals)
      expect_mismatch_of_modes(c, 1, odd_is_normal, false, {.defer_receive = defer});
    expect_mismatch_of_modes(c, 1, odd_is_normal, true, {.log_fmt = true});
  }
}

TEST(EpGpuLowLatencyMode, SmallBadIndicesAreNamedAndTheGroupStaysUsable) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 83);
  run_low_latency_group(c, [&](GpuGroup& group) {
    struct Bad {
      std::int64_t topk_slot, value;
      const char* text;
    };
    const std::int64_t experts = c.experts;
    const Bad bads[] = {{1, experts, "topk_idx[2, 1] is 9"},
                        {0, -2, "topk_idx[2, 0] is -2"},
                        {3, std::int64_t{1} << 40, "topk_idx[2, 3] is 1099511627776"},
                        {2, 4, "topk_idx[2] names expert 4 twice"}};
    for (const bool defer : kDeferrals)
      for (const Bad& bad : bads) {
        std::vector<std::int64_t> topk_idx(4 * static_cast<std::size_t>(c.top_k));
        for (std::size_t i = 0; i < topk_idx.size(); ++i)
          topk_idx[i] = static_cast<std::int64_t>(i % 4) * 2 + 1;
        if (bad.value == 4) topk_idx[2 * 4 + 1] = 4;
        if (group.me == 1) topk_idx[2 * 4 + static_cast<std::size_t>(bad.topk_slot)] = bad.value;
        const PlainInputs in(group.tensors, c, topk_idx);
        const auto got =
            group.group
                .low_latency_dispatch(in.x, in.topk,
                                      {.quantize = Quantize::none, .defer_receive = defer})
                .receive();
        group.group
            .low_latency_combine(got.x, in.topk, in.weights, got.handle, {.defer_receive = defer})
            .receive();
        if (group.me == 1)
          expect_error(Code::invalid_argument, bad.text, [&] { group.group.synchronize(); });
        else
          group.group.synchronize();
        group.group.synchronize();  // reported once
      }
    for (std::uint64_t i = 0; i < 3; ++i)
      Round(group, reseeded(c, i), {.quantize = Quantize::fp8}).run();
    group.group.synchronize();
  });
}

TEST(EpGpuLowLatencyMode, SmallDifferentOptionsAreAMismatch) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 89);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const bool odd = group.me == 2;
    const auto code = [&]() -> std::optional<Code> {
      try {
        group.group.synchronize();
      } catch (const Error& error) {
        return error.code();
      }
      return std::nullopt;
    };
    Round round(group, c, {});
    group.group
        .low_latency_dispatch(round.x(), round.topk(),
                              {.quantize = odd ? Quantize::fp8 : Quantize::none})
        .receive();
    EXPECT_EQ(code(), Code::mismatch);
    for (int i = 0; i < 4; ++i) {  // uses both halves in turn; each must recover
      group.group
          .low_latency_dispatch(
              round.x(), round.topk(),
              {.quantize = odd ? Quantize::fp8 : Quantize::none, .defer_receive = false})
          .receive();
      EXPECT_EQ(code(), Code::mismatch);
    }
    if (c.hidden % 64 == 0) {  // the rows arrive all the same
      const float scale = odd ? 2.0F : 3.0F;
      const Tensor global = group.tensors.upload(ConstTensorView(&scale, DataType::float32, {1}));
      group.group
          .low_latency_dispatch(round.x(), round.topk(),
                                {.quantize = Quantize::nvfp4, .global_scale = global})
          .receive();
      EXPECT_EQ(code(), Code::mismatch);
    }
    ep::LowLatencyDispatchOptions with_weights{.quantize = Quantize::none};
    if (odd) with_weights.weights = round.weights();
    const auto mixed =
        group.group.low_latency_dispatch(round.x(), round.topk(), with_weights).receive();
    EXPECT_EQ(code(), Code::mismatch);
    // Every rank has tokens for every expert, so that every rank waits for the combine rows of all.
    std::vector<std::int64_t> topk_idx(4 * static_cast<std::size_t>(c.top_k));
    for (std::size_t i = 0; i < topk_idx.size(); ++i)
      topk_idx[i] = static_cast<std::int64_t>((i % 4) * 3 % 9 + i / 4 % 3);
    for (std::size_t t = 0; t < 4; ++t) topk_idx[t * 4 + 3] = -1;
    const PlainInputs in(group.tensors, c, topk_idx);
    struct Odd {
      ep::LowLatencyCombineOptions options;
      const char* form;  ///< of the odd rank, which every message names
    };
    const Odd odds[] = {{{.log_fmt = odd}, "sends log_fmt "},
                        {{.quantize = odd ? Quantize::fp8 : Quantize::none}, "sends fp8 "},
                        {{.quantize = odd ? Quantize::mxfp8 : Quantize::fp8}, "sends mxfp8 "},
                        {{.reduction = odd ? Reduction::exact : Reduction::per_rank}, "(exact)"}};
    for (const auto& [options, form] : odds) {
      const auto got =
          group.group.low_latency_dispatch(in.x, in.topk, {.quantize = Quantize::none}).receive();
      group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle, options).receive();
      expect_error(Code::mismatch, form, [&] { group.group.synchronize(); });
    }
    for (std::uint64_t i = 0; i < 3; ++i) Round(group, reseeded(c, i), {}).run();
    EXPECT_EQ(code(), std::nullopt);
  });
}

TEST(EpGpuLowLatencyMode, SmallGlobalScalesAreReadWhenRowsAreSent) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(3, 103);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const Round round(group, c, {});
    const auto scale = [](float value) {
      Tensor host = Tensor::empty(DataType::float32, {1});
      *host.as<float>() = value;
      return host;
    };
    const Tensor global = group.tensors.upload(scale(3));
    auto pending = group.group.low_latency_dispatch(
        round.x(), round.topk(), {.quantize = Quantize::nvfp4, .global_scale = global});
    group.tensors.settle();
    group.tensors.write(global, scale(group.me == 1 ? 7.0F : 5.0F));
    (void)pending.receive();
    group.group.synchronize();
    for (const float bad : {-1.0F, std::numeric_limits<float>::infinity()}) {
      group.tensors.write(global, scale(bad));
      (void)group.group
          .low_latency_dispatch(round.x(), round.topk(),
                                {.quantize = Quantize::nvfp4, .global_scale = global})
          .receive();
      expect_error(Code::invalid_argument, "allowed: positive and finite",
                   [&] { group.group.synchronize(); });
    }
    Round(group, c, {.quantize = Quantize::nvfp4}).run();
    group.group.synchronize();
  });
}

TEST(EpGpuLowLatencyMode, WarmUpAndGroupsOneAfterAnother) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 97);
  run_threads(c.ranks, low_latency_settings(c.ranks), [&](World& world) {
    for (int i = 0; i < 4; ++i) {
      ep::GroupOptions options = options_for(c);
      options.max_tokens = 0;
      options.preinitialize = i % 2 == 1;
      GpuGroup group(world, options);
      Round(group, c, {.quantize = Quantize::fp8, .zero_copy = i < 2}).run();
      Round(group, c, {.reduction = Reduction::exact}).run();
      if (i == 3) group.group.warmup();
      EXPECT_EQ(group.group.statistics().low_latency_dispatches, 2U);
      EXPECT_EQ(group.group.statistics().low_latency_combines, 2U);
    }
  });
}

}  // namespace
}  // namespace shoal::test
