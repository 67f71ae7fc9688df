// SPDX-License-Identifier: Apache-2.0
// CUDA graphs with any number of dispatches and combines of all kinds: what they use stays theirs
// as long as they exist, whatever the program releases, and nothing of a failed capture remains.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <tuple>
#include <vector>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "support/cuda/graph.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"

namespace shoal::test {
namespace {

constexpr std::int64_t kTokens = 8, kHidden = 128;

/// Two experts a rank; every token goes to all of up to four ranks.
EpCase shape(std::int32_t ranks) {
  return {.ranks = ranks,
          .experts = 2 * ranks,
          .top_k = std::min(2 * ranks, 4),
          .hidden = kHidden,
          .max_tokens = kTokens};
}

/// Time at which the program releases the routings, results and handles that it no longer needs.
enum class Release { after_replays, at_once, after_capture, after_capture_backwards };

/// A pair of a dispatch and its combine; encoded: a normal one whose combine sends rows in mxfp8,
/// which holds these numbers.
enum class Kind { normal, cached, expert_major, expanded, deferred, immediate, encoded };
constexpr int kKinds = 7;

/// Pairs of all kinds, one after another, with arrays of their own. The expert output is the
/// received rows, so that the sums are small whole numbers.
class Pairs {
 public:
  Pairs(GpuGroup& owner, int count)
      : g_(owner), c_(shape(owner.group.team().size())), pairs_(static_cast<std::size_t>(count)) {
    std::vector<std::int64_t> experts;
    const std::int64_t step = c_.experts / c_.top_k;
    for (std::int64_t token = 0; token < kTokens; ++token)
      for (std::int64_t slot = 0; slot < c_.top_k; ++slot)
        experts.push_back(slot * step + token % step);
    const PlainInputs inputs(g_.tensors, c_, experts);
    topk_ = inputs.topk;
    weights_ = inputs.weights;
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      Pair& pair = pairs_[i];
      pair.kind = static_cast<Kind>(i % kKinds);
      pair.x = g_.tensors.empty(DataType::bfloat16, {kTokens, kHidden});
      pair.out = g_.tensors.empty(DataType::bfloat16, {kTokens, kHidden});
      if (pair.kind != Kind::expanded) continue;
      pair.topk_idx = g_.tensors.empty(DataType::int64, {rows(), c_.top_k});
      pair.topk_rows = g_.tensors.empty(DataType::int32, {rows(), c_.top_k});
      pair.expanded = g_.tensors.empty(DataType::bfloat16, {slots(), kHidden});
    }
    change(0);
  }

  /// Writes other rows and poisons the sums.
  void change(int seed) {
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      Pair& pair = pairs_[i];
      pair.value = static_cast<float>(1 + (static_cast<int>(i) + 3 * seed + g_.me) % 16);
      Tensor host = Tensor::empty(DataType::bfloat16, {kTokens, kHidden});
      std::fill_n(host.as<std::uint16_t>(), host.size(), bf16_of(pair.value));
      g_.tensors.write(pair.x, host);
      g_.tensors.poison(pair.out);
    }
  }

  void queue(cudaStream_t stream, Release release) {
    launch_.stream = stream;
    for (Pair& pair : pairs_) {
      queue(pair);
      if (release == Release::at_once) forget();
    }
    if (release == Release::after_capture) forget();
    while (release == Release::after_capture_backwards && !kept_.empty()) kept_.pop_back();
  }
  void forget() { kept_.clear(); }

  void check() {
    g_.settle();
    for (std::size_t i = 0; i < pairs_.size(); ++i) {
      const Pair& pair = pairs_[i];
      const bool by_rank =
          pair.kind == Kind::normal || pair.kind == Kind::cached || pair.kind == Kind::encoded;
      const float copies = static_cast<float>(by_rank ? c_.ranks : c_.top_k);
      const Tensor got = g_.tensors.download(pair.out);
      for (std::int64_t at = 0; at < got.size(); ++at)
        expect(
            got.as<std::uint16_t>()[at] == bf16_of(pair.value * copies),
            fmt::format("pair {} of {} on PE {}: element {} is {:#x}, expected {} times {}", i,
                        pairs_.size(), g_.me, at, got.as<std::uint16_t>()[at], copies, pair.value));
    }
  }

 private:
  struct Pair {
    Kind kind{};
    float value = 0;
    Tensor x, out, topk_idx, topk_rows, expanded;
  };
  /// Results of a pair, which the program may release.
  struct Made {
    ep::Routing routing{};
    ep::detail::AnyDispatched received{};
    ep::LowLatencyReceived low_latency{};
  };

  std::int64_t rows() const { return c_.ranks * kTokens; }
  std::int64_t slots() const { return rows() * std::min(c_.top_k, 2); }

  ep::detail::AnyDispatched dispatch(const Pair& pair, Made& made) {
    made.routing = g_.group.route(topk_, launch_);
    const bool expert_major = pair.kind == Kind::expert_major;
    return ep::detail::dispatch(
        g_.group, pair.x, made.routing,
        {{.worst_case_rows = expert_major ? slots() : rows(), .launch = launch_}, expert_major});
  }

  void queue(Pair& pair) {
    Made made;
    if (pair.kind == Kind::deferred || pair.kind == Kind::immediate) {
      queue_low_latency(pair, made);
    } else {
      made.received = dispatch(pair, made);
      // The handle of this graph's own dispatch; its first result is released here.
      if (pair.kind == Kind::cached) {
        const ep::Handle handle = made.received.handle;
        made.received = {};
        made.received =
            ep::detail::dispatch(g_.group, pair.x, handle, {{.launch = launch_}, false});
      }
      ep::CombineOptions options{.out = pair.out, .launch = launch_};
      if (pair.kind == Kind::encoded) options.quantize = ep::Quantize::mxfp8;
      TensorView y = made.received.x;
      if (pair.kind == Kind::expanded) {
        ep::detail::unpack(g_.group, made.received, {.topk_idx = pair.topk_idx, .launch = launch_});
        g_.group.expand({.x = made.received.x,
                         .topk_idx = pair.topk_idx,
                         .rows = made.received.row_count,
                         .tokens_per_expert = made.received.expert_counts,
                         .expert_ends = made.received.expert_ends,
                         .topk_rows = pair.topk_rows,
                         .out = pair.expanded,
                         .launch = launch_});
        options.topk_rows = pair.topk_rows;
        y = pair.expanded;
      }
      g_.group.combine(y, made.received.handle, options);
    }
    kept_.push_back(std::move(made));
  }

  void queue_low_latency(Pair& pair, Made& made) {
    const bool defer = pair.kind == Kind::deferred;
    made.low_latency =
        g_.group
            .low_latency_dispatch(
                pair.x, topk_,
                {.quantize = ep::Quantize::none, .defer_receive = defer, .launch = launch_})
            .receive();
    g_.group
        .low_latency_combine(made.low_latency.x, topk_, weights_, made.low_latency.handle,
                             {.out = pair.out, .defer_receive = defer, .launch = launch_})
        .receive();
  }

  GpuGroup& g_;
  const EpCase c_;
  std::vector<Pair> pairs_;
  std::vector<Made> kept_;
  Tensor topk_, weights_;
  ep::Launch launch_{};
};

/// A result of a plain dispatch that is held over replays, and its combine after them.
class HeldOverReplays {
 public:
  explicit HeldOverReplays(GpuGroup& owner) : round_(owner, shape(owner.group.team().size()), {}) {
    got_ = round_.dispatch(round_.route());
    round_.check(got_);
    round_.write_expert_output(got_);
  }
  void check() {
    round_.check(got_);
    round_.check(round_.combine(got_));
  }

 private:
  GpuRound round_;
  ep::Dispatched got_;
};

/// combine_staging: without it, a group for one result has room for no other one.
void with_group(std::int32_t ranks, int live_results, const std::function<void(GpuGroup&)>& body,
                bool combine_staging = true) {
  run_threads(ranks, gpu_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(shape(ranks));
    options.live_results = live_results;
    options.combine_staging = combine_staging;
    GpuGroup group(world, options);
    body(group);
    group.settle();
  });
}

void replay_with_other_rows(GpuGroup& g, Pairs& pairs, const Graph& graph, cudaStream_t on,
                            int seed) {
  pairs.change(seed);
  graph.upload(on);
  sync(g.world.team());  // all have loaded their graphs
  graph.replay(on);
  pairs.check();
}

class EpGpuGraphPairs : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuGraphPairs, ::testing::Values(1, 2, 4));

TEST_P(EpGpuGraphPairs, AnyNumberInOneGraphWhoseCallsAreTheFirstOnes) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Release release : {Release::after_replays, Release::at_once, Release::after_capture,
                                Release::after_capture_backwards})
    for (const int count : {1, 4, 16, 61}) {
      const bool one_by_one = release == Release::at_once;
      with_group(GetParam(), one_by_one ? 4 : 2 * count + 2, [&](GpuGroup& g) {
        CUstream_st *const captured = g.tensors.new_stream(), *const other = g.tensors.new_stream();
        Pairs pairs(g, count);
        sync(g.world.team());
        const Graph graph(captured, [&] { pairs.queue(captured, release); });
        sync(g.world.team());  // the driver may wait for kernels while it makes a graph
        for (int seed = 1; seed < 4; ++seed) {
          HeldOverReplays plain(g);
          replay_with_other_rows(g, pairs, graph, seed == 2 ? other : captured, seed);
          plain.check();
        }
        pairs.forget();
      });
    }
}

TEST_P(EpGpuGraphPairs, SeveralGraphsOfOneGroup) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(GetParam(), 4, [&](GpuGroup& g) {
    constexpr int kGraphs = 5, kCount = 12;
    CUstream_st* const stream = g.tensors.new_stream();
    std::vector<std::unique_ptr<Pairs>> pairs;
    std::vector<std::unique_ptr<Graph>> graphs;
    for (int i = 0; i < kGraphs; ++i) {
      pairs.push_back(std::make_unique<Pairs>(g, kCount));
      sync(g.world.team());
      graphs.push_back(
          std::make_unique<Graph>(stream, [&] { pairs[i]->queue(stream, Release::at_once); }));
    }
    sync(g.world.team());
    int seed = 0;
    const auto replay_all = [&] {
      for (std::size_t i = 0; i < graphs.size(); ++i) {
        HeldOverReplays plain(g);
        replay_with_other_rows(g, *pairs[i], *graphs[i], stream, ++seed);
        plain.check();
      }
    };
    replay_all();
    // The memory of the graphs that end goes to later calls.
    graphs.erase(graphs.begin(), graphs.begin() + 2);
    pairs.erase(pairs.begin(), pairs.begin() + 2);
    for (int i = 0; i < 8; ++i) replay_all();
  });
}

enum class End { instantiated, discarded, failed };

class EpGpuGraphEnds : public ::testing::TestWithParam<std::tuple<std::int32_t, End>> {
 protected:
  static std::int32_t ranks() { return std::get<0>(GetParam()); }

  /// Captures pairs and, unless it is replayed, a send of each mode's kind that is never received;
  /// then ends the capture.
  static void capture_and_end(GpuGroup& g, Pairs& pairs) {
    const End end = std::get<1>(GetParam());
    CUstream_st* const stream = g.tensors.new_stream();
    sync(g.world.team());
    if (end == End::instantiated) {
      const Graph graph(stream, [&] { pairs.queue(stream, Release::at_once); });
      replay_with_other_rows(g, pairs, graph, stream, 1);
      return;
    }
    GpuLowLatencyRound unfinished(g, shape(ranks()), {.out = true, .launch = {.stream = stream}});
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    pairs.queue(stream, Release::at_once);
    (void)unfinished.send();
    if (end == End::failed) {
      EXPECT_NE(cudaStreamSynchronize(stream), cudaSuccess);  // which fails the capture
      (void)cudaGetLastError();
      expect_error(Code::invalid_argument, "the capture of this stream has failed",
                   [&] { pairs.queue(stream, Release::at_once); });
    }
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    EXPECT_EQ(ended == cudaSuccess, end == End::discarded) << cudaGetErrorString(ended);
    (void)cudaGetLastError();
    if (graph != nullptr) EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
};
INSTANTIATE_TEST_SUITE_P(RanksAndEnd, EpGpuGraphEnds,
                         ::testing::Combine(::testing::Values(1, 2),
                                            ::testing::Values(End::instantiated, End::discarded,
                                                              End::failed)));

TEST_P(EpGpuGraphEnds, TheRoomOfItsResultsReturns) {
  SHOAL_SKIP_WITHOUT_GPU();
  const auto body = [&](GpuGroup& g) {
    GpuRound round(g, shape(ranks()), {.place = OutputPlace::in_place});
    const ep::Routing routing = round.route();
    Pairs pairs(g, 1);
    capture_and_end(g, pairs);
    // CUDA reports a little later that a graph is gone. All ranks are refused as long as one has no
    // room.
    ep::Dispatched got;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (!got.handle.valid()) try {
        got = round.dispatch(routing);
      } catch (const Error& error) {
        if (error.code() != Code::exhausted || std::chrono::steady_clock::now() > deadline) throw;
      }
    round.check(got);
    round.write_expert_output(got);
    round.check(round.combine(got));
  };
  with_group(ranks(), 1, body, false);
}

TEST_P(EpGpuGraphEnds, LowLatencyCallsGoOnAsBefore) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(ranks(), 4, [&](GpuGroup& g) {
    const EpCase c = shape(ranks());
    GpuLowLatencyRound round(g, c, {});
    round.run();
    Pairs pairs(g, 6);
    capture_and_end(g, pairs);
    for (const bool defer : {false, true}) {
      round.defer_receive(defer);
      round.run();
    }
  });
}

// Group::dispatch may share memory with captured dispatches if its result is transient.
TEST_P(EpGpuGraphPairs, ATransientResultNeedsNoRoomNextToThoseOfGraphs) {
  SHOAL_SKIP_WITHOUT_GPU();
  const auto body = [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    const EpCase c = shape(GetParam());
    Pairs pairs(g, 1);
    sync(g.world.team());
    const Graph graph(stream, [&] { pairs.queue(stream, Release::at_once); });
    GpuRound held(g, c, {.place = OutputPlace::in_place}),
        transient(g, c, {.dispatch = {.transient = true}, .place = OutputPlace::in_place});
    const ep::Routing routing = held.route();
    expect_error(Code::exhausted, "no room", [&] { held.dispatch(routing); });
    for (int seed = 1; seed < 4; ++seed) {
      transient.run();
      replay_with_other_rows(g, pairs, graph, stream, seed);
    }
  };
  with_group(GetParam(), 1, body, false);
}

// GroupOptions.live_results 1: next to a held result there is room for a transient one, then for a
// copy of expert output; so there is in a graph, and next to one.
TEST_P(EpGpuGraphPairs, AGroupForOneResultCopiesExpertOutputNextToIt) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(GetParam(), 1, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    const EpCase c = shape(GetParam());
    GpuRound held(g, c, {}), transient(g, c, {.dispatch = {.transient = true}});
    {
      const ep::Dispatched got = held.dispatch(held.route());
      transient.check(transient.dispatch(transient.route()));
      held.write_expert_output(got);
      held.check(held.combine(got));
      held.check(got);
      sync(g.world.team());
    }
    Pairs pairs(g, kKinds);
    sync(g.world.team());
    const Graph graph(stream, [&] { pairs.queue(stream, Release::at_once); });
    sync(g.world.team());
    for (int seed = 1; seed < 4; ++seed) {
      replay_with_other_rows(g, pairs, graph, stream, seed);
      transient.run();
    }
  });
}

// In these modes calls of other threads fail a capture, so there is one PE.
TEST(EpGpuGraphModes, EveryCaptureModeAllowsFirstCalls) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const cudaStreamCaptureMode mode :
       {cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal,
        cudaStreamCaptureModeRelaxed})
    with_group(1, 4, [&](GpuGroup& g) {
      CUstream_st* const stream = g.tensors.new_stream();
      Pairs pairs(g, 61);
      const Graph graph(stream, [&] { pairs.queue(stream, Release::at_once); }, mode);
      replay_with_other_rows(g, pairs, graph, stream, 1);
    });
}

// The group's own stream too can be captured.
TEST(EpGpuGraphModes, TheStreamOfTheGroup) {
  SHOAL_SKIP_WITHOUT_GPU();
  with_group(1, 4, [&](GpuGroup& g) {
    const auto stream = static_cast<cudaStream_t>(g.group.stream());
    Pairs pairs(g, 16);
    const Graph graph(stream, [&] { pairs.queue(stream, Release::at_once); });
    replay_with_other_rows(g, pairs, graph, stream, 1);
    HeldOverReplays plain(g);
    plain.check();
  });
}

}  // namespace
}  // namespace shoal::test
