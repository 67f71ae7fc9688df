// SPDX-License-Identifier: Apache-2.0
// Low-latency mode on GPUs, order and failure: deferred receives, open operations, skew, graphs,
// masks, bad arguments (E3, E5, A4, A9).
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

EpCase small(std::int32_t ranks, std::uint64_t seed = 1) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 4,
          .hidden = 384,
          .max_tokens = 24,
          .seed = seed};
}

EpCase reseeded(EpCase c, std::uint64_t by) {
  c.seed += by;
  return c;
}

constexpr Reduction kReductions[] = {Reduction::per_rank, Reduction::exact};
constexpr bool kDeferrals[] = {
    true, false};  // LowLatencyDispatchOptions.defer_receive, and that of the combine

TEST(EpGpuLowLatencyMode, SmallReceiveIsDeferred) {  // A9
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 29);
  run_low_latency_group(c, [&](GpuGroup& group) {
    World& world = group.world;
    Round round(group, c, {.reduction = Reduction::exact});
    const auto becomes_ready = [](const auto& pending) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!pending.ready())
        if (std::chrono::steady_clock::now() > deadline) return false;
      return true;
    };
    for (int i = 0; i < 3; ++i) {
      ep::PendingDispatch pending;
      if (group.me != 0) {  // the others cannot be ready before PE 0 has sent; their send has
                            // returned all the same
        pending = round.send();
        group.tensors.settle();  // and its kernel has ended
        EXPECT_FALSE(pending.ready());
      }
      sync(world.team());
      if (group.me == 0) pending = round.send();
      sync(world.team());
      EXPECT_TRUE(becomes_ready(pending)) << "all have sent";
      const ep::LowLatencyReceived got = pending.receive();
      EXPECT_THROW(pending.receive(), Error);
      EXPECT_THROW(pending.ready(), Error);
      round.check(got);
      round.write_answers();
      ep::PendingCombine answers;
      if (group.me != 0) {
        answers = round.answer(got);
        group.tensors.settle();
        const auto lanes = c.topk(group.me);
        const bool needs_0 = std::any_of(lanes.begin(), lanes.end(),
                                         [&](std::int64_t e) { return e >= 0 && e < 3; });
        if (needs_0) EXPECT_FALSE(answers.ready());
      }
      sync(world.team());
      if (group.me == 0) answers = round.answer(got);
      sync(world.team());
      EXPECT_TRUE(becomes_ready(answers));
      round.check(answers.receive());
      EXPECT_THROW(answers.receive(), Error);
      EXPECT_THROW(answers.ready(), Error);
      round.poison(got);
    }
  });
}

TEST(EpGpuLowLatencyMode, SmallReceiveIsQueuedWithItsSend) {  // defer_receive = false
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 30);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(c.local_experts()), 0);
    const Tensor counts =
        group.tensors.upload(TensorView(zeros.data(), DataType::int32, {c.local_experts()}));
    Round round(group, c, {.reduction = Reduction::exact, .out = true, .defer_receive = false});
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    for (std::int32_t i = 1; i <= 3; ++i) {
      ep::PendingDispatch pending = group.group.low_latency_dispatch(
          round.x(), round.topk(),
          {.quantize = Quantize::none, .expert_counts = counts, .defer_receive = false});
      group.tensors.settle();
      const Tensor received = group.tensors.download(counts);  // nobody has called receive
      for (std::int32_t e = 0; e < c.local_experts(); ++e)
        EXPECT_EQ(received.as<std::int32_t>()[e], i * wanted.tokens_per_expert[e]);
      const ep::LowLatencyReceived got = pending.receive();
      EXPECT_THROW(pending.receive(), Error);
      round.check(got);
      round.write_answers();
      round.poison_out();
      ep::PendingCombine answers = round.answer(got);
      group.tensors.settle();
      round.check(round.out());  // likewise
      round.check(answers.receive());
      EXPECT_THROW(answers.receive(), Error);
      round.poison(got);
    }
  });
}

TEST(EpGpuLowLatencyMode, SmallTwoOperationsOpenAtOnce) {  // A4: the two halves never mix
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 31);
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (int form = 0; form < 8; ++form)
      for (int i = 0; i < 6; ++i) {
        const GpuLowLatencyCall call{
            .quantize = form % 4 < 2 ? Quantize::fp8 : Quantize::none,
            .reduction = form % 4 < 2 ? Reduction::per_rank : Reduction::exact,
            .early_weights = form % 2 == 0,
            .defer_receive = form < 4};
        const auto seed = static_cast<std::uint64_t>(i);
        Round a(group, reseeded(c, 2 * seed), call), b(group, reseeded(c, 2 * seed + 1), call);
        ep::PendingDispatch first = a.send(), second = b.send();
        expect_error(Code::invalid_argument, "receive", [&] { b.send(); });
        expect_error(Code::invalid_argument, "order", [&] { second.receive(); });
        const ep::LowLatencyReceived got_a = first.receive(), got_b = second.receive();
        a.check(got_a);
        b.check(got_b);
        a.write_answers();
        b.write_answers();
        ep::PendingCombine back_a = a.answer(got_a), back_b = b.answer(got_b);
        const Tensor out_a = back_a.receive(), out_b = back_b.receive();
        a.check(out_a);
        b.check(out_b);
        a.poison(got_a);
        b.poison(got_b);
      }
  });
}

TEST(EpGpuLowLatencyMode, SmallDispatchesWithoutCombineAndAnOldHandle) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 37);
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (const bool defer : kDeferrals) {
      const GpuLowLatencyCall call{.reduction = Reduction::per_rank, .defer_receive = defer};
      Round first(group, c, call), second(group, reseeded(c, 1), call);
      const ep::LowLatencyReceived got = first.send().receive();
      first.check(got);
      first.write_answers();
      for (int i = 0; i < 5; ++i) second.check(second.send().receive());
      // The handle outlives the rows.
      first.check(first.answer(got).receive());
      first.check(first.answer(got).receive());
    }
  });
}

TEST(EpGpuLowLatencyMode, InterleavedWithNormalMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 41);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        for (std::uint64_t i = 0; i < 5; ++i) {
          GpuRound(group, reseeded(c, i), {}).run();
          for (const bool defer : kDeferrals)
            Round(group, reseeded(c, i), {.quantize = Quantize::fp8, .defer_receive = defer}).run();
        }
      },
      [&](ep::GroupOptions& options) { options.max_tokens = c.max_tokens; });
}

TEST(EpGpuLowLatencyMode, OwnStreamsAndEvents) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 43);
  run_low_latency_group(c, [&](GpuGroup& group) {
    CUstream_st* const streams[2] = {group.tensors.new_stream(), group.tensors.new_stream()};
    cudaEvent_t done = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
    for (std::uint64_t i = 0; i < 12; ++i) {
      Round round(group, reseeded(c, i),
                  {.early_weights = i % 2 == 0,
                   .launch = {.stream = streams[i % 2], .done = done},
                   .defer_receive = i % 4 < 2});
      const ep::LowLatencyReceived got = round.send().receive();
      EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
      round.check(got);
      round.write_answers();
      round.check(round.answer(got).receive());
      group.group.synchronize();
    }
    (void)cudaEventDestroy(done);
  });
}

TEST(EpGpuLowLatencyMode, ManySkewedRounds) {  // A4
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small(4, 47);
  c.hidden = 128;
  c.max_tokens = 8;
  run_low_latency_group(c, [&](GpuGroup& group) {
    std::mt19937 random(static_cast<std::uint32_t>(group.me));
    Round a(group, c, {.early_weights = true}),
        b(group, reseeded(c, 1), {.quantize = Quantize::fp8_ue8m0});
    Round a_now(group, reseeded(c, 2), {.early_weights = true, .defer_receive = false});
    Round b_now(group, reseeded(c, 3), {.quantize = Quantize::fp8_ue8m0, .defer_receive = false});
    for (int i = 0; i < 120; ++i) {
      if (random() % 4 == 0)
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      (i % 2 == 0 ? (i % 3 == 0 ? a : b) : (i % 3 == 0 ? a_now : b_now)).run();
    }
  });
}

TEST(EpGpuLowLatencyMode,
     FreeRunningChainKeepsItsResults) {  // nothing waits on the host between operations
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 53);
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (const bool early : {true, false})
      for (const bool defer : kDeferrals) {
        Round round(group, c, {.early_weights = early, .out = true, .defer_receive = defer});
        const ep::LowLatencyReceived got = round.send().receive();
        round.check(got);
        round.write_answers();
        round.poison_out();
        for (int i = 0; i < 200; ++i) {
          const ep::LowLatencyReceived again = round.send().receive();
          const Tensor out = round.answer(again).receive();
          if (i == 199) round.check(out);
          if (i == 199) round.check(again);
        }
      }
  });
}

// Graphs (E5).

class EpGpuLowLatencyCapture : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuLowLatencyCapture, ::testing::ValuesIn(kDeferrals),
                         [](const auto& tested) {
                           return tested.param ? "deferred" : "immediate";
                         });

TEST_P(EpGpuLowLatencyCapture, CapturedAndReplayed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const bool defer = GetParam();
  for (const Quantize quantize : {Quantize::none, Quantize::fp8_ue8m0})
    for (const Reduction reduction : kReductions) {
      const EpCase c = small(3, 59);
      run_low_latency_group(c, [&](GpuGroup& group) {
        CUstream_st* const stream = group.tensors.new_stream();
        Round round(group, c,
                    {.quantize = quantize,
                     .reduction = reduction,
                     .early_weights = reduction == Reduction::exact,
                     .out = true,
                     .launch = {.stream = stream},
                     .padded = true,
                     .defer_receive = defer});
        // Once before, for the memory; it also says what experts answer.
        {
          const ep::LowLatencyReceived got = round.send().receive();
          round.check(got);
          round.write_answers();
          round.check(round.answer(got).receive());
        }
        sync(group.world.team());  // kernels of others must not run into the capture of this
                                   // thread's launches
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        const ep::LowLatencyReceived got = round.send().receive();
        const Tensor out = round.answer(got).receive();
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        for (std::uint64_t i = 0; i < 5; ++i) {
          if (i == 3)
            Round(group, reseeded(c, 1000), {.quantize = quantize, .defer_receive = defer})
                .run();  // beside the graph
          EpCase now = c;
          now.seed += 10 * i;
          round.change(now);
          round.poison(got);
          // Answers depend on what is received, which is known beforehand only by running twice:
          // the first replay gives the rows, the second the result.
          ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
          round.check(got);
          round.write_answers();
          round.poison_out();
          ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
          round.check(out);
        }
        group.tensors.settle();
        (void)cudaGraphExecDestroy(replay);
        (void)cudaGraphDestroy(graph);
      });
    }
}

// Statistics, masks, errors.

TEST(EpGpuLowLatencyMode, SmallStatisticsAddUp) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 61);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const std::vector<std::int64_t> zeros(
        static_cast<std::size_t>(std::max(c.ranks, c.local_experts())), 0);
    const std::vector<std::int32_t> none(static_cast<std::size_t>(c.local_experts()), 0);
    const Tensor counts =
        group.tensors.upload(TensorView(none.data(), DataType::int32, {c.local_experts()}));
    const Tensor waited =
        group.tensors.upload(TensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Tensor waited_back =
        group.tensors.upload(TensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Round round(group, c, {});
    const auto pair = [&] {
      const auto got = group.group
                           .low_latency_dispatch(round.x(), round.topk(),
                                                 {.expert_counts = counts, .wait_ns = waited})
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
    const auto lanes = c.topk(0);
    const bool answers =
        std::any_of(lanes.begin(), lanes.end(), [&](std::int64_t e) { return e >= 3 && e < 6; });
    if (group.me == 0) {
      EXPECT_GT(got_waited.as<std::int64_t>()[1], 10'000'000) << "PE 1 came 30 ms late";
      EXPECT_LT(got_waited.as<std::int64_t>()[1], 20'000'000'000);
      EXPECT_EQ(got_waited.as<std::int64_t>()[0], 0) << "nobody waits for itself";
      if (answers) EXPECT_LT(got_back.as<std::int64_t>()[1], 20'000'000'000);
    }
    sync(group.world.team());
  });
}

TEST(EpGpuLowLatencyMode, AMemberThatStopsIsMaskedAndTheOthersGoOn) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kGone = 2;
  constexpr std::chrono::milliseconds kTimeout(1000);
  const EpCase c = small(4, 67);
  const auto stops = [&](Reduction reduction, bool defer) {
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
                       .defer_receive = defer});
          for (int i = 0; i < 4; ++i) {
            const auto start = std::chrono::steady_clock::now();
            round.run();
            group.group.synchronize();
            const auto elapsed = std::chrono::steady_clock::now() - start;
            if (i > 0)
              EXPECT_LT(elapsed, kTimeout * 3 / 4) << "a masked member is not waited for again";
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
  for (const Reduction reduction : kReductions)
    for (const bool defer : kDeferrals) stops(reduction, defer);
}

TEST(EpGpuLowLatencyMode, ALiveMemberIsLeftOutAndComesBack) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kOut = 2;
  const EpCase c = small(4, 71);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        // All members agree that the group falls into {kOut} and the others; each part goes on by
        // itself.
        std::vector<int> mask(c.ranks, group.me == kOut ? 1 : 0);
        mask[kOut] = group.me == kOut ? 0 : 1;
        for (const Reduction reduction : kReductions) {
          Round full(group, c, {.reduction = reduction});
          Round part(group, c, {.reduction = reduction, .zero_copy = true, .masked = mask});
          for (int turn = 0; turn < 2; ++turn) {
            for (int i = 0; i < 3; ++i) full.run();
            group.group.synchronize();
            sync(group.world.team());
            for (std::int32_t member = 0; member < c.ranks; ++member)
              if (mask[member] != 0) group.group.set_mask(member, true);
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

TEST(EpGpuLowLatencyMode, AMemberThatIsLeftOutFindsOut) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Only the others mask it: their notices tell it, long before its waits would end.
  constexpr std::int32_t kOut = 1;
  const EpCase c = small(3, 73);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        Round(group, c, {}).run();
        group.group.synchronize();
        sync(group.world.team());
        std::vector<int> mask(c.ranks, group.me == kOut ? 1 : 0);
        mask[kOut] = group.me == kOut ? 0 : 1;
        if (group.me != kOut) group.group.set_mask(kOut, true);
        sync(group.world.team());
        const auto start = std::chrono::steady_clock::now();
        Round round(group, c, {.masked = mask});
        for (int i = 0; i < 3; ++i) round.run();
        group.group.synchronize();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
        EXPECT_EQ(group.group.masked(), mask);
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = std::chrono::seconds(10);
      });
}

class EpGpuLowLatencyTimeout : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuLowLatencyTimeout, ::testing::ValuesIn(kDeferrals),
                         [](const auto& tested) {
                           return tested.param ? "deferred" : "immediate";
                         });

TEST_P(EpGpuLowLatencyTimeout, WithoutMasksItNamesTheMemberAndClosesTheGroup) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 79);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        if (group.me != 1) {
          const Round round(group, c, {});
          try {
            group.group.low_latency_dispatch(round.x(), round.topk(), {.defer_receive = GetParam()})
                .receive();
            group.group.synchronize();
            ADD_FAILURE() << "did not time out";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::timeout);
            expect_parts(error.what(), {"low_latency_dispatch (epoch 1) timed out after 300 ms",
                                        "waiting for rows from PE 1", "expected epoch 1, seen 0",
                                        "phase receive", "GroupOptions.timeout"});
          }
          expect_error(Code::closed, "timed out",
                       [&] { group.group.low_latency_dispatch(round.x(), round.topk()); });
        }
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(300); });
}

TEST(EpGpuLowLatencyMode, SmallBadIndicesAreNamedAndTheGroupStaysUsable) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 83);
  run_low_latency_group(c, [&](GpuGroup& group) {
    struct Bad {
      std::int64_t lane, value;
      const char* text;
    };
    const std::int64_t experts = c.experts;
    const Bad bads[] = {{1, experts, "topk_idx[2, 1] is 9"},
                        {0, -2, "topk_idx[2, 0] is -2"},
                        {3, std::int64_t{1} << 40, "topk_idx[2, 3] is 1099511627776"},
                        {2, 4, "topk_idx[2] names expert 4 twice"}};
    for (const bool defer : kDeferrals)
      for (const Bad& bad : bads) {
        std::vector<std::int64_t> lanes(4 * static_cast<std::size_t>(c.top_k));
        for (std::size_t i = 0; i < lanes.size(); ++i)
          lanes[i] = static_cast<std::int64_t>(i % 4) * 2 + 1;
        if (bad.value == 4) lanes[2 * 4 + 1] = 4;
        if (group.me == 1) lanes[2 * 4 + static_cast<std::size_t>(bad.lane)] = bad.value;
        const PlainInputs in(group.tensors, c, lanes);
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
        group.group.synchronize();  // told once
      }
    for (std::uint64_t i = 0; i < 3; ++i)
      Round(group, reseeded(c, i), {.quantize = Quantize::fp8}).run();
    group.group.synchronize();
  });
}

TEST(EpGpuLowLatencyMode, SmallDifferentOptionsAreAMismatch) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 89);
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
    for (int i = 0; i < 4;
         ++i) {  // one after another in both halves, each of which has to be put right
      group.group
          .low_latency_dispatch(
              round.x(), round.topk(),
              {.quantize = odd ? Quantize::fp8 : Quantize::none, .defer_receive = false})
          .receive();
      EXPECT_EQ(code(), Code::mismatch);
    }
    ep::LowLatencyDispatchOptions with_weights{.quantize = Quantize::none};
    if (odd) with_weights.weights = round.weights();
    const auto mixed =
        group.group.low_latency_dispatch(round.x(), round.topk(), with_weights).receive();
    EXPECT_EQ(code(), Code::mismatch);
    // Where nobody waits for an answer nobody can miss it, so every member has tokens for every
    // expert.
    std::vector<std::int64_t> lanes(4 * static_cast<std::size_t>(c.top_k));
    for (std::size_t i = 0; i < lanes.size(); ++i)
      lanes[i] = static_cast<std::int64_t>((i % 4) * 3 % 9 + i / 4 % 3);
    for (std::size_t t = 0; t < 4; ++t) lanes[t * 4 + 3] = -1;
    const PlainInputs in(group.tensors, c, lanes);
    const ep::LowLatencyCombineOptions odds[] = {
        {.log_fmt = odd}, {.reduction = odd ? Reduction::exact : Reduction::per_rank}};
    for (const auto& options : odds) {
      const auto got =
          group.group.low_latency_dispatch(in.x, in.topk, {.quantize = Quantize::none}).receive();
      group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle, options).receive();
      EXPECT_EQ(code(), Code::mismatch);
    }
    for (std::uint64_t i = 0; i < 3; ++i) Round(group, reseeded(c, i), {}).run();
    EXPECT_EQ(code(), std::nullopt);
  });
}

TEST(EpGpuLowLatencyMode, WarmUpAndGroupsOneAfterAnother) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 97);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
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
