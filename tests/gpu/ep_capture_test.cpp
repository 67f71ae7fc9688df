// Operations of normal mode captured in CUDA graphs (E5): the graph is replayed with other tokens in the same buffers,
// and each replay is checked like a call.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "support/ep_gpu_checks.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

EpCase shape(std::int32_t ranks, std::uint64_t seed) {
  return {.ranks = ranks, .experts = ranks * 4, .top_k = 5, .hidden = 264, .max_tokens = 40, .seed = seed};
}

void check_cuda(cudaError_t status) {
  if (status != cudaSuccess) throw std::runtime_error(cudaGetErrorString(status));
}

/// What `calls` puts on `stream`, as a graph.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& calls) : stream_(stream) {
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    calls();
    check_cuda(cudaStreamEndCapture(stream, &graph_));
    check_cuda(cudaGraphInstantiate(&executable_, graph_, 0));
  }
  ~Graph() {
    (void)cudaGraphExecDestroy(executable_);
    (void)cudaGraphDestroy(graph_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void replay() const { check_cuda(cudaGraphLaunch(executable_, stream_)); }

 private:
  cudaStream_t stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body) {
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    options.max_scales = 3;
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
    for (const AnswerPlace place : {AnswerPlace::heap, AnswerPlace::staged}) {
      CUstream_st* const stream = g.tensors.new_stream();
      GpuCall call = captured_call(c, stream);
      call.place = place;
      GpuRound round(g, c, call);
      ep::Routing routing = round.route();
      ep::Dispatched got = round.dispatch(routing);  // outside the graph: so that the answers have their place
      round.write_answers(got);
      round.check(round.combine(got));
      got = {};
      ep::Combined back;
      const Graph graph(stream, [&] {
        routing = round.route({.stream = stream});
        got = round.dispatch(routing);
        back = round.combine(got);
      });
      for (std::uint64_t replay = 0; replay < 20; ++replay) {
        EpCase now = shape(GetParam(), 100 + replay);
        now.load = replay % 7 == 3 ? Load::none : replay % 7 == 5 ? Load::all_to_one : Load::random;
        g.tensors.settle();
        round.poison(got);
        round.change_case(now);
        round.write_answers(got);
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

TEST_P(EpGpuCapture, CachedDispatchAndCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(GetParam(), 2);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuCall call = captured_call(c, stream);
    call.dispatch.worst_case_rows = 0;
    call.place = AnswerPlace::in_place;
    call.padded = false;
    GpuRound round(g, c, call);
    const ep::Dispatched first = round.dispatch(round.route());
    round.check(first);
    ep::Dispatched got;
    ep::Combined back;
    const Graph dispatch(stream, [&] { got = round.dispatch(first.handle); });
    round.write_answers(got);  // their place is known; the values come between the graphs
    const Graph combine(stream, [&] { back = round.combine(got); });
    for (std::uint64_t replay = 0; replay < 20; ++replay) {
      round.poison(got);
      round.change_rows(200 + replay);
      dispatch.replay();
      round.check(got, true);
      round.write_answers(got);
      combine.replay();
      round.check(back);
    }
    g.group.synchronize();
  });
}

TEST(EpGpuCaptureLimits, SeveralReplaysQueuedAtOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(4, 3);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    GpuCall call = captured_call(c, stream);
    call.place = AnswerPlace::heap;
    GpuRound round(g, c, call);
    ep::Routing routing = round.route();
    ep::Dispatched got = round.dispatch(routing);
    round.write_answers(got);
    ep::Combined back;
    got = {};
    const Graph graph(stream, [&] {
      got = round.dispatch(routing);
      back = round.combine(got);
    });
    for (int batch = 0; batch < 5; ++batch) {
      g.tensors.settle();
      round.poison(got);
      for (int i = 0; i < 50; ++i) graph.replay();  // no host in between: members keep step on the GPU alone
      round.check(got);
      round.check(back);
    }
    g.group.synchronize();
  });
}

TEST(EpGpuCaptureLimits, WhatCannotBeCapturedIsRefusedAndTheCaptureGoesOn) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = shape(2, 4);
  run_group(c, [&](GpuGroup& g) {
    CUstream_st* const stream = g.tensors.new_stream();
    const ep::Launch on{.stream = stream};
    GpuRound exact(g, c, {.dispatch = {.launch = on}, .combine = on});
    const ep::Routing routing = exact.route();
    const ep::Dispatched held = exact.dispatch(routing);
    exact.check(held);
    exact.write_answers(held);
    const Graph graph(stream, [&] {
      expect_error(Code::invalid_argument, "worst_case_rows", [&] { exact.dispatch(routing); });
      expect_error(Code::invalid_argument, "CombineOptions.out", [&] { exact.combine(held); });
    });
    graph.replay();  // nothing
    exact.check(exact.combine(held));
    g.group.synchronize();
  });
}

}  // namespace
}  // namespace shoal::test
