// SPDX-License-Identifier: Apache-2.0
// Operations of both modes captured in CUDA graphs. The graph is replayed with other tokens in the
// same buffers, and each replay is checked like a call. low_latency_order_test.cpp has more graphs
// of low-latency mode, graph_pairs_test.cpp graphs of many calls.
//
// PEs share GPUs, so none replays before all have loaded their graphs (support/cuda/graph.hpp).
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/graph.hpp"
#include "support/cuda/taken_sms.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks, std::uint64_t seed) {
  return {.ranks = ranks,
          .experts = ranks * 4,
          .top_k = 5,
          .hidden = 264,
          .max_tokens = 40,
          .seed = seed};
}

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
               const std::function<void(ep::GroupOptions&)>& change = {}) {
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    options.max_scales = 3;
    if (change) change(options);
    GpuGroup group(world, options);
    group.group.warmup();
    body(group);
  });
}

GpuCall captured_call(const EpCase& c, cudaStream_t stream) {
  return {.scales = 3,
          .dispatch = {.worst_case_rows = c.ranks * c.max_tokens, .launch = {.stream = stream}},
          .biases = 1,
          .out = true,
          .combine_weights = false,
          .combine = {.stream = stream},
          .padded = true};
}

class EpGpuCapture : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuCapture, ::testing::Values(1, 2, 4, 8));

TEST_P(EpGpuCapture, RouteDispatchAndCombineWithNewTokensEachTime) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(GetParam(), 1);
  run_group(c, [&](GpuGroup& g) {
    for (const OutputPlace place : {OutputPlace::heap, OutputPlace::staged}) {
      CUstream_st* const stream = g.tensors.new_stream();
      GpuCall call = captured_call(c, stream);
      call.place = place;
      GpuRound round(g, c, call);
      ep::Routing routing = round.route();
      ep::Dispatched got =
          round.dispatch(routing);  // outside the graph, for the address of the expert output
      round.write_expert_output(got);
      round.check(round.combine(got));
      got = {};
      ep::Combined back;
      const Graph graph(stream, [&] {
        routing = round.route({.stream = stream});
        got = round.dispatch(routing);
        back = round.combine(got);
      });
      sync(g.world.team());
      for (std::uint64_t replay = 0; replay < 20; ++replay) {
        EpCase now = shape(GetParam(), 100 + replay);
        now.load = replay % 7 == 3 ? Load::none : replay % 7 == 5 ? Load::all_to_one : Load::random;
        g.tensors.settle();
        round.poison(got);
        round.change_case(now);
        round.write_expert_output(got);
        graph.replay();
        round.check(routing);
        round.check(got);
        round.check(back);
        // Calls between replays share signals and buffers with the graph.
        if (replay % 5 == 4) GpuRound(g, now, {.scales = 2}).run();
      }
      g.group.synchronize();
    }
  });
}

void replay_cached_dispatch_and_combine(std::int32_t ranks) {
  const EpCase c = shape(ranks, 2);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuCall call = captured_call(c, stream);
    call.dispatch.worst_case_rows = 0;
    call.place = OutputPlace::in_place;
    call.padded = false;
    GpuRound round(g, c, call);
    const ep::Dispatched first = round.dispatch(round.route());
    round.check(first);
    ep::Dispatched got;
    ep::Combined back;
    const Graph dispatch(stream, [&] { got = round.dispatch(first.handle); });
    // Its address is known; the values are written between the graphs.
    round.write_expert_output(got);
    const Graph combine(stream, [&] { back = round.combine(got); });
    sync(g.world.team());
    for (std::uint64_t replay = 0; replay < 20; ++replay) {
      round.poison(got);
      round.change_rows(200 + replay);
      dispatch.replay();
      round.check(got, true);
      round.write_expert_output(got);
      combine.replay();
      round.check(back);
    }
    g.group.synchronize();
  });
}

TEST_P(EpGpuCapture, CachedDispatchAndCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  replay_cached_dispatch_and_combine(GetParam());
}

TEST(EpGpuCaptureUnderLoad, CachedDispatchAndCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  const TakenSms taken(gpu_count());
  for (int i = 0; i < 5; ++i) replay_cached_dispatch_and_combine(4);
}

TEST(EpGpuCaptureLimits, SeveralReplaysQueuedAtOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(4, 3);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuCall call = captured_call(c, stream);
    call.place = OutputPlace::heap;
    GpuRound round(g, c, call);
    ep::Routing routing = round.route();
    ep::Dispatched got = round.dispatch(routing);
    round.write_expert_output(got);
    ep::Combined back;
    got = {};
    const Graph graph(stream, [&] {
      got = round.dispatch(routing);
      back = round.combine(got);
    });
    sync(g.world.team());
    for (int batch = 0; batch < 5; ++batch) {
      g.tensors.settle();
      round.poison(got);
      for (int i = 0; i < 50; ++i) graph.replay();  // the host does not wait between replays
      round.check(got);
      round.check(back);
    }
    g.group.synchronize();
  });
}

TEST(EpGpuCaptureLimits, WhatCannotBeCapturedIsRefusedAndTheCaptureContinues) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(2, 4);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    const ep::Launch on{.stream = stream};
    GpuRound exact(g, c, {.dispatch = {.launch = on}, .combine = on});
    const ep::Routing routing = exact.route();
    const ep::Dispatched held = exact.dispatch(routing);
    exact.check(held);
    exact.write_expert_output(held);
    const Tensor out = g.tensors.empty(DataType::bfloat16, {c.tokens(g.me), c.hidden});
    const Graph graph(stream, [&] {
      expect_error(Code::invalid_argument, "worst_case_rows", [&] { exact.dispatch(routing); });
      expect_error(Code::invalid_argument, "CombineOptions.out", [&] { exact.combine(held); });
      expect_error(Code::invalid_argument, "CombineOptions.out_weights", [&] {
        g.group.combine(exact.y(), held.handle,
                        {.weights = *held.topk_weights, .out = out, .launch = on});
      });
    });
    graph.replay();  // the graph is empty
    exact.check(exact.combine(held));
    g.group.synchronize();
  });
}

/// A collector of garbage, as Python's, may destroy a group at any time.
TEST(EpGpuCaptureLimits, AGroupMayEndDuringACapture) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(1, 6);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st *const stream = g.tensors.new_stream(), *const other_stream =
                                                            g.tensors.new_stream();
    GpuRound round(g, c, captured_call(c, stream));
    const ep::Routing routing = round.route();
    const Tensor indices = g.tensors.empty(DataType::int64, {c.tokens(g.me), c.top_k});
    for (const auto mode : {cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeGlobal}) {
      ep::Dispatched got;
      std::vector<std::unique_ptr<ep::Group>> others;
      for (CUstream_st* const last : {other_stream, stream}) {
        ASSERT_EQ(cudaMemsetAsync(indices.data, 0xff, indices.bytes(), last), cudaSuccess);
        auto& other =
            others.emplace_back(std::make_unique<ep::Group>(g.world.team(), options_for(c)));
        (void)other->route(indices, ep::Launch{.stream = last});
      }
      const Graph graph(
          stream,
          [&] {
            others.clear();
            got = round.dispatch(routing);
          },
          mode);
      g.tensors.settle();
      round.poison(got);
      graph.replay();
      round.check(got);
    }
    g.group.synchronize();
  });
}

TEST(EpGpuCaptureLimits, CopiesOfResultsAreRefusedAndTheCaptureContinues) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(2, 5);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuCall call = captured_call(c, stream);
    call.place = OutputPlace::heap;
    GpuRound round(g, c, call);
    ep::Routing routing = round.route();
    ep::Dispatched got = round.dispatch(routing);
    round.write_expert_output(got);
    round.check(round.combine(got));
    got = {};
    ep::DispatchOptions copied = round.dispatch_options();
    copied.copy_out = true;
    ep::Combined back;
    const Graph graph(stream, [&] {
      expect_error(Code::invalid_argument, "copy_out",
                   [&] { g.group.dispatch(round.x(), routing, copied); });
      got = round.dispatch(routing);
      back = round.combine(got);
    });
    sync(g.world.team());
    g.tensors.settle();
    round.poison(got);
    graph.replay();
    round.check(got);
    round.check(back);
    g.group.synchronize();
  });
}

TEST(EpGpuCaptureLimits, MoreDispatchesThanLayoutsThatAreKeptAhead) {
  SHOAL_SKIP_WITHOUT_GPU();
  // A group preallocates two layouts more than it may have results.
  constexpr int kCalls = 7, kLive = 3;
  const EpCase c = shape(3, 6);
  const auto body = [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    struct Call {
      std::unique_ptr<GpuRound> round;
      ep::Routing routing;
      ep::Dispatched got;
      ep::Combined back;
    };
    std::vector<Call> calls(kCalls);
    GpuCall call = captured_call(c, stream);
    call.place = OutputPlace::heap;
    for (int i = 0; i < kCalls; ++i) {
      EpCase now = c;
      now.seed += static_cast<std::uint64_t>(i);
      calls[i].round = std::make_unique<GpuRound>(g, now, call);
      const ep::Dispatched got = calls[i].round->dispatch(calls[i].round->route());
      calls[i].round->write_expert_output(got);
      calls[i].round->check(calls[i].round->combine(got));
    }
    const Graph graph(stream, [&] {
      for (Call& each : calls) {
        each.routing = each.round->route({.stream = stream});
        each.got = each.round->dispatch(each.routing);
        each.back = each.round->combine(each.got);
      }
    });
    sync(g.world.team());
    for (std::uint64_t replay = 0; replay < 3; ++replay) {
      g.tensors.settle();
      for (int i = 0; i < kCalls; ++i) {
        EpCase now = c;
        now.seed = 100 * (replay + 1) + static_cast<std::uint64_t>(i);
        calls[i].round->poison(calls[i].got);
        calls[i].round->change_case(now);
        calls[i].round->write_expert_output(calls[i].got);
      }
      graph.replay();
      for (Call& each : calls) {
        each.round->check(each.routing);
        each.round->check(each.got);
        each.round->check(each.back);
      }
      GpuRound(g, c, {}).run();  // outside the graph, with a layout of its own
    }
    g.group.synchronize();
  };
  run_group(c, body, [&](ep::GroupOptions& options) {
    options.live_results = kLive;
    // Room for ten results of half the size, or seven and one of the full size.
    options.max_tokens = 2 * c.max_tokens;
  });
}

// Low latency.

EpCase low_latency_shape(std::int32_t ranks, std::uint64_t seed) {
  EpCase c{.ranks = ranks,
           .experts = ranks * 3,
           .top_k = 4,
           .hidden = 640,
           .max_tokens = 20,
           .seed = seed};
  c.mixed_magnitudes = true;  // blocks inside and outside the range of LogFMT
  return c;
}

/// A low-latency round in a CUDA graph.
class LowLatencyGraph {
 public:
  LowLatencyGraph(GpuGroup& owner, const EpCase& c, const GpuLowLatencyCall& call)
      : round_(owner, c, call), zero_copy_(call.zero_copy) {
    // Allocates the memory before the capture.
    const ep::LowLatencyReceived first = round_.send().receive();
    round_.check(first);
    round_.write_expert_output();
    round_.check(round_.combine(first).receive());
    sync(owner.world.team());
    graph_ = std::make_unique<Graph>(static_cast<cudaStream_t>(call.launch.stream), [&] {
      got_ = round_.send().receive();
      if (zero_copy_) round_.choose_buffer();
      out_ = round_.combine(got_).receive();
    });
    sync(owner.world.team());
  }

  /// Replays twice, because the expert output depends on the received rows.
  void replay(const EpCase& now) {
    round_.change(now);
    round_.poison(got_);
    graph_->replay();
    round_.check(got_);
    round_.write_expert_output_again();
    round_.poison_out();
    graph_->replay();
    round_.check(out_);
  }
  void expect_masked(const std::vector<int>& masked) { round_.expect_masked(masked); }

 private:
  GpuLowLatencyRound round_;
  const bool zero_copy_;
  std::unique_ptr<Graph> graph_;
  ep::LowLatencyReceived got_;
  Tensor out_;
};

class EpGpuCaptureLowLatency : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuCaptureLowLatency, ::testing::Bool(),
                         [](const auto& tested) {
                           return tested.param ? "deferred" : "immediate";
                         });

TEST_P(EpGpuCaptureLowLatency, EncodedCombinesAndZeroCopy) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = low_latency_shape(3, 31);
  run_low_latency_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    for (const ep::Quantize quantize : {ep::Quantize::none, ep::Quantize::fp8})
      for (const ep::Reduction reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
        for (const int form : {0, 1, 2}) {
          GpuLowLatencyCall call{.quantize = quantize,
                                 .reduction = reduction,
                                 .log_fmt = form == 0,
                                 .combine_quantize = form == 1 ? quantize : ep::Quantize::none,
                                 .zero_copy = form == 2,
                                 .early_weights = quantize == ep::Quantize::fp8,
                                 .out = true,
                                 .launch = {.stream = stream},
                                 .padded = true,
                                 .defer_receive = GetParam()};
          LowLatencyGraph graph(g, c, call);
          call.launch = {};
          for (std::uint64_t i = 0; i < 4; ++i) {
            graph.replay(reseeded(c, 10 * i));
            // It shares slots, combine rows and both zero-copy buffers with the graph.
            if (i == 1) GpuLowLatencyRound(g, reseeded(c, 1000), call).run();
          }
          g.tensors.settle();
        }
  });
}

TEST_P(EpGpuCaptureLowLatency, ARankIsMaskedBetweenReplaysAndReturns) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kOut = 2;
  const EpCase c = low_latency_shape(4, 37);
  run_low_latency_group(
      c,
      [&](GpuGroup& g) {
        CUstream_st* const stream = g.tensors.new_stream();
        // All ranks agree that the group splits into {kOut} and the others. Each part replays
        // independently.
        const std::vector<int> mask = mask_of_split(kOut, g.me, c.ranks);
        std::uint64_t seed = 0;
        for (const ep::Reduction reduction : {ep::Reduction::per_rank, ep::Reduction::exact}) {
          LowLatencyGraph graph(g, c,
                                {.reduction = reduction,
                                 .zero_copy = reduction == ep::Reduction::exact,
                                 .early_weights = reduction == ep::Reduction::per_rank,
                                 .out = true,
                                 .launch = {.stream = stream},
                                 .padded = true,
                                 .defer_receive = GetParam()});
          for (int turn = 0; turn < 2; ++turn) {
            for (int i = 0; i < 2; ++i) graph.replay(reseeded(c, ++seed));
            g.group.synchronize();
            sync(g.world.team());
            for (std::int32_t rank = 0; rank < c.ranks; ++rank)
              if (mask[rank] != 0) g.group.set_mask(rank, true);
            graph.expect_masked(mask);
            for (int i = 0; i < 2; ++i) graph.replay(reseeded(c, ++seed));
            EXPECT_EQ(g.group.masked(), mask);
            g.group.synchronize();
            sync(g.world.team());
            g.group.clear_masks();
            graph.expect_masked({});
            sync(g.world.team());
          }
          graph.replay(reseeded(c, ++seed));
          g.tensors.settle();
        }
      },
      [](ep::GroupOptions& options) { options.mask_failed = true; });
}

TEST_P(EpGpuCaptureLowLatency, StatisticsAddUpOverReplays) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kLate = 1;
  constexpr std::int64_t kReplays = 3, kTokens = 6;
  constexpr std::chrono::milliseconds kDelay(40);
  const EpCase c{.ranks = 3, .experts = 9, .top_k = 4, .hidden = 128, .max_tokens = kTokens};
  std::vector<std::int64_t> topk_idx;  // the same on all ranks; each token has experts on all ranks
  for (std::int64_t token = 0; token < kTokens; ++token)
    for (std::int64_t topk_slot = 0; topk_slot < c.top_k; ++topk_slot)
      topk_idx.push_back((token + 2 * topk_slot) % c.experts);
  run_low_latency_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    const PlainInputs in(g.tensors, c, topk_idx);
    const std::vector<std::int64_t> zeros(static_cast<std::size_t>(c.ranks), 0);
    const std::vector<std::int32_t> none(static_cast<std::size_t>(c.local_experts()), 0);
    const ConstTensorView no_wait(zeros.data(), DataType::int64, {c.ranks});
    const ConstTensorView no_rows(none.data(), DataType::int32, {c.local_experts()});
    const Tensor waited = g.tensors.upload(no_wait), waited_back = g.tensors.upload(no_wait);
    const Tensor counts = g.tensors.upload(no_rows);
    const Tensor out = g.tensors.empty(DataType::bfloat16, {kTokens, c.hidden});
    const auto dispatch = [&] {
      return g.group
          .low_latency_dispatch(in.x, in.topk,
                                {.quantize = ep::Quantize::none,
                                 .tokens_per_expert = counts,
                                 .wait_ns = waited,
                                 .weights = in.weights,
                                 .defer_receive = GetParam(),
                                 .launch = {.stream = stream}})
          .receive();
    };
    const auto combine = [&](const ep::LowLatencyReceived& got) {
      g.group
          .low_latency_combine(got.x, in.topk, in.weights, got.handle,
                               {.out = out,
                                .wait_ns = waited_back,
                                .defer_receive = GetParam(),
                                .launch = {.stream = stream}})
          .receive();
    };
    combine(dispatch());  // allocates the memory before the capture
    g.tensors.write(waited, no_wait);
    g.tensors.write(waited_back, no_wait);
    g.tensors.write(counts, no_rows);
    ep::LowLatencyReceived got;
    const Graph there(stream, [&] { got = dispatch(); });
    const Graph back(stream, [&] { combine(got); });
    const auto begin = [&] {
      g.tensors.settle();
      sync(g.world.team());
      if (g.me == kLate) std::this_thread::sleep_for(kDelay);
    };
    for (std::int64_t i = 0; i < kReplays; ++i) {
      g.tensors.poison(out);
      begin();
      there.replay();
      begin();
      back.replay();
      const Tensor sums = g.tensors.download(out);  // rows and weights are ones
      for (std::int64_t at = 0; at < sums.size(); ++at)
        ASSERT_EQ(sums.as<std::uint16_t>()[at], bf16_of(static_cast<float>(c.top_k)))
            << at << " of PE " << g.me;
    }
    const Tensor rows = g.tensors.download(counts);
    for (std::int32_t e = 0; e < c.local_experts(); ++e) {
      const std::int64_t asked =
          std::count(topk_idx.begin(), topk_idx.end(), g.me * c.local_experts() + e);
      EXPECT_EQ(rows.as<std::int32_t>()[e], kReplays * c.ranks * asked)
          << "expert " << e << " of PE " << g.me;
    }
    for (const Tensor& of_operation : {waited, waited_back}) {
      const Tensor ns = g.tensors.download(of_operation);
      for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
        EXPECT_GE(ns.as<std::int64_t>()[rank], 0);
        EXPECT_LT(ns.as<std::int64_t>()[rank], 20'000'000'000);
      }
      if (g.me != kLate)
        EXPECT_GT(ns.as<std::int64_t>()[kLate],
                  kReplays * std::chrono::nanoseconds(kDelay).count() / 2);
    }
    sync(g.world.team());
  });
}

TEST_P(EpGpuCaptureLowLatency, WhatCannotBeCapturedIsRefusedAndTheCaptureContinues) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = low_latency_shape(2, 41);
  run_low_latency_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuLowLatencyRound round(g, c, {.launch = {.stream = stream}, .defer_receive = GetParam()});
    const ep::LowLatencyReceived got = round.send().receive();
    round.check(got);
    round.write_expert_output();
    const Graph graph(stream, [&] {
      expect_error(Code::invalid_argument, "LowLatencyCombineOptions.out",
                   [&] { round.combine(got); });
    });
    graph.replay();  // the graph is empty
    round.check(round.combine(got).receive());
    round.run();
    g.group.synchronize();
  });
}

TEST_P(EpGpuCaptureLowLatency, MoreLayersThanLayoutsThatAreKeptAhead) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr int kLayers = 12;
  const EpCase c = low_latency_shape(3, 43);
  run_low_latency_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    std::vector<std::unique_ptr<GpuLowLatencyRound>> rounds;
    for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
      rounds.push_back(std::make_unique<GpuLowLatencyRound>(
          g, reseeded(c, layer),
          GpuLowLatencyCall{
              .reduction = layer % 2 == 0 ? ep::Reduction::per_rank : ep::Reduction::exact,
              .early_weights = layer % 3 == 0,
              .out = true,
              .launch = {.stream = stream},
              .defer_receive = GetParam()}));
      const ep::LowLatencyReceived got = rounds.back()->send().receive();
      rounds.back()->check(got);
      rounds.back()->write_expert_output();  // the same ones in each replay
      rounds.back()->check(rounds.back()->combine(got).receive());
    }
    std::vector<ep::LowLatencyReceived> kept;
    std::vector<Tensor> outs;
    const Graph graph(stream, [&] {
      for (auto& round : rounds) {
        ep::LowLatencyReceived got = round->send().receive();
        outs.push_back(round->combine(got).receive());
        kept.push_back(std::move(got));
      }
    });
    sync(g.world.team());
    for (int replay = 0; replay < 3; ++replay) {
      for (auto& round : rounds) round->poison_out();
      graph.replay();
      for (int layer = 0; layer < kLayers; ++layer) rounds[layer]->check(outs[layer]);
      GpuLowLatencyRound(g, reseeded(c, 500), {.defer_receive = GetParam()})
          .run();  // outside the graph
    }
    g.group.synchronize();
  });
}

}  // namespace
}  // namespace shoal::test
