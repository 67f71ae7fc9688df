// SPDX-License-Identifier: Apache-2.0
// Low-latency mode on GPUs, order of calls: deferred receives, open operations, skew between PEs.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;
using Round = GpuLowLatencyRound;

/// A send phase waits for no rank: it ends while rank 0 has called nothing, in both halves.
void expect_sends_do_not_wait(const GpuLowLatencyCall& call, bool masks) {
  const EpCase c = wide_case(4, 29);
  SCOPED_TRACE(call.describe() + (masks ? " masks" : ""));
  const auto body = [&](GpuGroup& group) {
    World& world = group.world;
    Round round(group, c, call);
    const auto becomes_ready = [](const auto& pending) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!pending.ready())
        if (std::chrono::steady_clock::now() > deadline) return false;
      return true;
    };
    for (int i = 0; i < 3; ++i) {
      ep::PendingDispatch pending;
      if (group.me != 0) {
        // The others cannot be ready before PE 0 has sent, but their send has returned.
        pending = round.send();
        group.tensors.settle();  // its kernel has ended
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
      round.write_expert_output();
      ep::PendingCombine pending_combine;
      if (group.me != 0) {
        pending_combine = round.combine(got);
        group.tensors.settle();
        const auto topk_idx = c.topk(group.me);
        const bool needs_0 = std::any_of(topk_idx.begin(), topk_idx.end(),
                                         [&](std::int64_t e) { return e >= 0 && e < 3; });
        if (needs_0) EXPECT_FALSE(pending_combine.ready());
      }
      sync(world.team());
      if (group.me == 0) pending_combine = round.combine(got);
      sync(world.team());
      EXPECT_TRUE(becomes_ready(pending_combine));
      round.check(pending_combine.receive());
      EXPECT_THROW(pending_combine.receive(), Error);
      EXPECT_THROW(pending_combine.ready(), Error);
      round.poison(got);
    }
  };
  run_low_latency_group(c, body, [&](ep::GroupOptions& options) { options.mask_failed = masks; });
}

TEST(EpGpuLowLatencyMode, SmallReceiveIsDeferred) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const bool masks : {false, true})
    for (const Reduction reduction : kReductions)
      for (const bool early : {false, true})
        expect_sends_do_not_wait({.reduction = reduction, .early_weights = early}, masks);
  for (const bool masks : {false, true})
    for (const bool early : {false, true})
      expect_sends_do_not_wait({.log_fmt = true, .early_weights = early}, masks);
}

/// The memory of a result serves the next one unless a tensor of its rows is held.
TEST(EpGpuLowLatencyMode, SmallResultsThatAreHeldKeepTheirRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(2, 33);
  for (const bool defer : kDeferrals)
    for (const Quantize quantize : {Quantize::none, Quantize::fp8})
      run_low_latency_group(c, [&](GpuGroup& group) {
        const GpuLowLatencyCall call{.quantize = quantize, .defer_receive = defer};
        Round first(group, c, call), second(group, reseeded(c, 5), call);
        // Released at once: BF16 has the same place again, and FP8 two places in turn.
        const void* const before = first.send().receive().x.data;
        EXPECT_EQ(first.send().receive().x.data == before, quantize == Quantize::none);
        ep::PendingDispatch pending = first.send();
        ASSERT_NE(pending.result(), nullptr);
        const void* const place = pending.result()->x.data;
        ep::LowLatencyReceived held = pending.receive();
        EXPECT_EQ(held.x.data, place);
        EXPECT_EQ(pending.result(), nullptr);
        const ep::LowLatencyReceived next = second.send().receive();
        EXPECT_NE(next.x.data, place);
        first.check(held);
        second.check(next);
        first.poison(held);
        held = {};
        EXPECT_EQ(first.send().receive().x.data, place);
        second.check(next);
      });
}

/// Ranks need not agree on defer_receive: those that defer send a row for each expert output, the
/// others sums.
TEST(EpGpuLowLatencyMode, SmallOnlySomeRanksDefer) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 31);
  for (const bool masks : {false, true})
    run_low_latency_group(
        c,
        [&](GpuGroup& group) {
          for (int i = 0; i < 12; ++i) {
            std::vector<int> defers(static_cast<std::size_t>(c.ranks));
            for (std::int32_t rank = 0; rank < c.ranks; ++rank)
              defers[rank] = (rank + i / 4) % 2 == 0 ? 1 : 0;
            GpuLowLatencyCall call{.log_fmt = i % 2 == 1, .defer_receive = defers[group.me] != 0};
            call.unsummed = defers;
            if (masks && test_nodes(c.ranks) > 1) call.unsummed.assign(defers.size(), 1);
            Round(group, reseeded(c, static_cast<std::uint64_t>(i)), call).run();
          }
        },
        [&](ep::GroupOptions& options) { options.mask_failed = masks; });
}

// defer_receive = false.
TEST(EpGpuLowLatencyMode, SmallReceiveIsQueuedWithItsSend) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 30);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const std::vector<std::int32_t> zeros(static_cast<std::size_t>(c.local_experts()), 0);
    const Tensor counts =
        group.tensors.upload(ConstTensorView(zeros.data(), DataType::int32, {c.local_experts()}));
    Round round(group, c, {.reduction = Reduction::exact, .out = true, .defer_receive = false});
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    for (std::int32_t i = 1; i <= 3; ++i) {
      ep::PendingDispatch pending = group.group.low_latency_dispatch(
          round.x(), round.topk(),
          {.quantize = Quantize::none, .tokens_per_expert = counts, .defer_receive = false});
      group.tensors.settle();
      const Tensor received = group.tensors.download(counts);  // no rank has called receive
      for (std::int32_t e = 0; e < c.local_experts(); ++e)
        EXPECT_EQ(received.as<std::int32_t>()[e], i * wanted.tokens_per_expert[e]);
      const ep::LowLatencyReceived got = pending.receive();
      EXPECT_THROW(pending.receive(), Error);
      round.check(got);
      round.write_expert_output();
      round.poison_out();
      ep::PendingCombine pending_combine = round.combine(got);
      group.tensors.settle();
      round.check(round.out());  // no rank has called receive
      round.check(pending_combine.receive());
      EXPECT_THROW(pending_combine.receive(), Error);
      round.poison(got);
    }
  });
}

// The two halves never mix.
TEST(EpGpuLowLatencyMode, SmallTwoOperationsOpenAtOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 31);
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
        a.write_expert_output();
        b.write_expert_output();
        ep::PendingCombine back_a = a.combine(got_a), back_b = b.combine(got_b);
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
  const EpCase c = wide_case(3, 37);
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (const bool defer : kDeferrals) {
      const GpuLowLatencyCall call{.reduction = Reduction::per_rank, .defer_receive = defer};
      Round first(group, c, call), second(group, reseeded(c, 1), call);
      const ep::LowLatencyReceived got = first.send().receive();
      first.check(got);
      first.write_expert_output();
      for (int i = 0; i < 5; ++i) second.check(second.send().receive());
      // The handle outlives the rows.
      first.check(first.combine(got).receive());
      first.check(first.combine(got).receive());
    }
  });
}

TEST(EpGpuLowLatencyMode, InterleavedWithNormalMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 41);
  EpCase normal = c;  // rounds sums once per node
  normal.nodes = test_nodes(c.ranks);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        for (std::uint64_t i = 0; i < 5; ++i) {
          GpuRound(group, reseeded(normal, i), {}).run();
          for (const bool defer : kDeferrals)
            Round(group, reseeded(c, i), {.quantize = Quantize::fp8, .defer_receive = defer}).run();
        }
      },
      [&](ep::GroupOptions& options) { options.max_tokens = c.max_tokens; });
}

TEST(EpGpuLowLatencyMode, OwnStreamsAndEvents) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 43);
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
      round.write_expert_output();
      round.check(round.combine(got).receive());
      group.group.synchronize();
    }
    (void)cudaEventDestroy(done);
  });
}

TEST(EpGpuLowLatencyMode, ManySkewedRounds) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = wide_case(4, 47);
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

// Nothing waits on the host between operations.
TEST(EpGpuLowLatencyMode, FreeRunningChainKeepsItsResults) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(4, 53);
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (const bool early : {true, false})
      for (const bool defer : kDeferrals) {
        Round round(group, c, {.early_weights = early, .out = true, .defer_receive = defer});
        const ep::LowLatencyReceived got = round.send().receive();
        round.check(got);
        round.write_expert_output();
        round.poison_out();
        for (int i = 0; i < 200; ++i) {
          const ep::LowLatencyReceived again = round.send().receive();
          const Tensor out = round.combine(again).receive();
          if (i == 199) round.check(out);
          if (i == 199) round.check(again);
        }
      }
  });
}

// Graphs.

class EpGpuLowLatencyCapture : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuLowLatencyCapture, ::testing::ValuesIn(kDeferrals),
                         [](const auto& tested) {
                           return tested.param ? "deferred" : "immediate";
                         });

TEST_P(EpGpuLowLatencyCapture, CapturedAndReplayed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const bool defer = GetParam();
  for (const Quantize quantize : {Quantize::none, Quantize::fp8_ue8m0})
    for (const auto& [reduction, unsummed] :
         {std::pair{Reduction::per_rank, false}, std::pair{Reduction::exact, false},
          std::pair{Reduction::automatic, true}}) {
      const EpCase c = wide_case(3, 59);
      run_low_latency_group(c, [&](GpuGroup& group) {
        CUstream_st* const stream = group.tensors.new_stream();
        Round round(group, c,
                    {.quantize = quantize,
                     .reduction = reduction,
                     .early_weights = reduction == Reduction::exact,
                     .out = true,
                     .launch = {.stream = stream},
                     .padded = true,
                     .defer_receive = defer,
                     .gives_rows = unsummed});
        // A first round allocates the memory and provides the expert output.
        {
          const ep::LowLatencyReceived got = round.send().receive();
          round.check(got);
          round.write_expert_output();
          round.check(round.combine(got).receive());
        }
        // Kernels of other PEs must not overlap with the capture of this thread's launches.
        sync(group.world.team());
        ep::LowLatencyReceived got;
        Tensor out;
        const Graph graph(stream, [&] {
          got = round.send().receive();
          out = round.combine(got).receive();
        });
        sync(group.world.team());
        for (std::uint64_t i = 0; i < 5; ++i) {
          if (i == 3)
            Round(group, reseeded(c, 1000), {.quantize = quantize, .defer_receive = defer})
                .run();  // outside the graph
          EpCase now = c;
          now.seed += 10 * i;
          round.change(now);
          round.poison(got);
          // Expert outputs depend on the received rows, so each graph runs twice: the first replay
          // yields the rows, the second one the result.
          graph.replay();
          round.check(got);
          round.write_expert_output();
          round.poison_out();
          graph.replay();
          round.check(out);
        }
        group.tensors.settle();
      });
    }
}

}  // namespace
}  // namespace shoal::test
