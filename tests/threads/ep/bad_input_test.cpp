// SPDX-License-Identifier: Apache-2.0
// Every call of ep::Group with bad arguments: it throws a precise Error, changes nothing and leaves
// the group usable.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "checks/ep/normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal::test {
namespace {

EpCase small(std::int32_t ranks) {
  return {.ranks = ranks, .experts = 2 * ranks, .top_k = 2, .hidden = 64, .max_tokens = 8};
}

#define EXPECT_ERROR(code, text, call) expect_error(code, text, [&] { call; })

TEST(EpBadInput, EveryCallNamesTheBadArgumentAndLeavesTheGroupUsable) {
  const EpCase c = small(2);
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    constexpr Code bad = Code::invalid_argument;

    TensorView x = in.x;
    x.dtype = DataType::int32;
    EXPECT_ERROR(bad, ": x is int32", group.dispatch(x, routing));
    EXPECT_ERROR(
        bad, "it must be",
        group.dispatch(TensorView(in.x.data, DataType::bfloat16, {tokens + 1, c.hidden}), routing));
    EXPECT_ERROR(
        bad, "it must be",
        group.dispatch(TensorView(in.x.data, DataType::bfloat16, {tokens, c.hidden - 8}), routing));
    EXPECT_ERROR(
        bad, "GroupOptions.dtype",
        group.dispatch(TensorView(in.x.data, DataType::float32, {tokens, c.hidden}), routing));
    x = in.x;
    x.strides[0] *= 2;
    EXPECT_ERROR(bad, "not contiguous", group.dispatch(x, routing));
    x = in.x;
    x.device.kind = DeviceKind::cuda;
    EXPECT_ERROR(bad, "is on GPU", group.dispatch(x, routing));
    EXPECT_ERROR(bad, "the routing is empty", group.dispatch(in.x, ep::Routing{}));
    EXPECT_ERROR(bad, "handle is not of a dispatch of this group",
                 group.dispatch(in.x, ep::Handle{}));
    EXPECT_ERROR(bad, "expert_alignment is 0",
                 group.dispatch(in.x, routing, {.expert_alignment = 0}));
    EXPECT_ERROR(bad, "expert_alignment is 65537; allowed: 1 to 65536",
                 group.dispatch_expert_major(in.x, routing, {.alignment = 65'537}));
    EXPECT_ERROR(bad, "worst_case_rows is 17",
                 group.dispatch(in.x, routing, {.worst_case_rows = 17}));
    EXPECT_ERROR(bad, "weights is bfloat16", group.dispatch(in.x, routing, {.weights = in.x}));
    EXPECT_ERROR(
        bad, "max_scales",
        group.dispatch(in.x, routing,
                       {.scales = TensorView(in.x.data, DataType::float32, {tokens, 99})}));
    EXPECT_ERROR(bad, "topk_idx is", group.route(in.x));

    const ep::Dispatched got = group.dispatch(in.x, routing, {.weights = in.weights});
    const Tensor y = expert_output_of(c, world.my_pe(), got);
    EXPECT_ERROR(bad, "handle is not of a dispatch", group.combine(y, ep::Handle{}));
    EXPECT_ERROR(bad, "y is",
                 group.combine(TensorView(y.data, DataType::bfloat16, {*got.rows + 1, c.hidden}),
                               got.handle));
    EXPECT_ERROR(bad, "combine: y is undefined", group.combine({}, got.handle));
    EXPECT_ERROR(bad, "low_latency_dispatch: x is undefined; it must be bfloat16",
                 group.low_latency_dispatch({}, in.topk_idx));
    EXPECT_ERROR(bad, "y is float8",
                 group.combine(TensorView(y.data, DataType::float8_e4m3, {*got.rows, c.hidden}),
                               got.handle));
    EXPECT_ERROR(bad, "at most 2", group.combine(y, got.handle, {.bias = {in.x, in.x, in.x}}));
    EXPECT_ERROR(bad, "CombineOptions.bias", group.combine(y, got.handle, {.bias = {in.weights}}));
    EXPECT_ERROR(bad, "CombineOptions.out", group.combine(y, got.handle, {.out = in.weights}));
    EXPECT_ERROR(bad, "CombineOptions.weights",
                 group.combine(y, got.handle,
                               {.weights = in.weights.shape[0] == got.rows ? in.x : in.weights}));

    EXPECT_ERROR(bad, ": x is", group.low_latency_dispatch(in.weights, in.topk_idx));
    EXPECT_ERROR(bad, "tokens_per_expert (in C and Python expert_counts) is bfloat16",
                 group.low_latency_dispatch(in.x, in.topk_idx, {.tokens_per_expert = in.x}));
    EXPECT_ERROR(bad, "wait_ns", group.low_latency_dispatch(in.x, in.topk_idx, {.wait_ns = in.x}));
    EXPECT_ERROR(
        bad, "unknown value",
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = static_cast<ep::Quantize>(9)}));
    const auto format = [&](ep::LowLatencyDispatchOptions options) {
      return group.low_latency_dispatch(in.x, in.topk_idx, options);
    };
    EXPECT_ERROR(bad, "scale_layout has the unknown value 7",
                 format({.scale_layout = static_cast<ep::ScaleLayout>(7)}));
    EXPECT_ERROR(bad, "scale_layout is tiles, which needs scales of one byte",
                 format({.scale_layout = ep::ScaleLayout::tiles}));
    float scale = 0;
    const ConstTensorView global(&scale, DataType::float32, {1});
    EXPECT_ERROR(bad, "global_scale is for nvfp4; quantize is mxfp8",
                 format({.quantize = ep::Quantize::mxfp8, .global_scale = global}));
    for (const float value : {0.0F, -1.0F, std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
      scale = value;
      EXPECT_ERROR(bad, "allowed: positive and finite",
                   format({.quantize = ep::Quantize::nvfp4, .global_scale = global}));
    }
    EXPECT_ERROR(bad, "global_scale is float32 [2]",
                 format({.quantize = ep::Quantize::nvfp4,
                         .global_scale = ConstTensorView(&scale, DataType::float32, {2})}));
    EXPECT_ERROR(bad, "handle is not of",
                 group.low_latency_combine(y, in.topk_idx, in.weights, ep::LowLatencyHandle{}));
    const ep::LowLatencyReceived ll =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    EXPECT_ERROR(bad, "y is", group.low_latency_combine(y, in.topk_idx, in.weights, ll.handle));
    EXPECT_ERROR(bad, "choose one",
                 group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle,
                                           {.log_fmt = true, .zero_copy = true}));
    const auto combine = [&](const ep::LowLatencyCombineOptions& options) {
      return group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle, options);
    };
    EXPECT_ERROR(bad, "quantize encodes y on its way and zero_copy does not move it",
                 combine({.quantize = ep::Quantize::fp8, .zero_copy = true}));
    EXPECT_ERROR(bad, "log_fmt and quantize mxfp8 both encode y on its way; choose one",
                 combine({.log_fmt = true, .quantize = ep::Quantize::mxfp8}));
    EXPECT_ERROR(bad, "quantize is nvfp4; allowed for the rows of a combine: none, fp8 and mxfp8",
                 combine({.quantize = ep::Quantize::nvfp4}));
    EXPECT_ERROR(bad, "quantize has the unknown value 9",
                 combine({.quantize = static_cast<ep::Quantize>(9)}));
    EXPECT_ERROR(
        bad, "next_combine_buffer",
        group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle, {.zero_copy = true}));
    EXPECT_ERROR(bad, "weights is", group.low_latency_combine(ll.x, in.topk_idx, in.x, ll.handle));
    if (tokens > 0) {
      Tensor other = Tensor::empty(DataType::int64, {tokens, c.top_k});
      std::memset(other.data, 0xff, other.bytes());
      EXPECT_ERROR(bad, "differs from that of the dispatch",
                   group.low_latency_combine(ll.x, other, in.weights, ll.handle));
    }
    EXPECT_ERROR(bad, "mask_failed", group.set_mask(0, true));
    EXPECT_ERROR(bad, "has been received", ep::PendingDispatch{}.receive());
    EXPECT_ERROR(bad, "has been received", ep::PendingCombine{}.receive());
    group.low_latency_combine(ll.x, in.topk_idx, in.weights, ll.handle).receive();

    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::exact, true);
  });
}

TEST(EpBadInput, TensorsOfTheWrongRankAndWithoutData) {
  EpCase c = small(2);
  while (std::min(c.tokens(0), c.tokens(1)) == 0) ++c.seed;  // an empty tensor needs no data
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe()), rows = c.ranks * c.max_tokens;
    constexpr Code bad = Code::invalid_argument;
    const ep::Routing routing = group.route(in.topk_idx);
    const auto flat = [](const TensorView& t) { return TensorView(t.data, t.dtype, {t.size()}); };
    const auto deep = [](const TensorView& t) {
      return TensorView(t.data, t.dtype, {1, t.shape[0], t.shape[1]});
    };
    const auto empty = [](TensorView t) {
      t.data = nullptr;
      return t;
    };

    for (const TensorView& topk : {flat(in.topk_idx), deep(in.topk_idx)}) {
      EXPECT_ERROR(bad, "topk_idx is", group.route(topk));
      EXPECT_ERROR(bad, "topk_idx is", group.low_latency_dispatch(in.x, topk));
    }
    EXPECT_ERROR(bad, "topk_idx has no data", group.route(empty(in.topk_idx)));
    EXPECT_ERROR(bad, "topk_idx has no data", group.low_latency_dispatch(in.x, empty(in.topk_idx)));
    for (const TensorView& x : {flat(in.x), deep(in.x)}) {
      EXPECT_ERROR(bad, ": x is", group.dispatch(x, routing));
      EXPECT_ERROR(bad, ": x is", group.low_latency_dispatch(x, in.topk_idx));
    }
    EXPECT_ERROR(bad, ": x has no data", group.dispatch(empty(in.x), routing));
    EXPECT_ERROR(bad, ": x has no data", group.low_latency_dispatch(empty(in.x), in.topk_idx));
    for (const TensorView& weights : {flat(in.weights), deep(in.weights)})
      EXPECT_ERROR(bad, "weights is", group.dispatch(in.x, routing, {.weights = weights}));
    EXPECT_ERROR(bad, "weights has no data",
                 group.dispatch(in.x, routing, {.weights = empty(in.weights)}));
    const TensorView scales(in.x.data, DataType::float32, {tokens, 1});
    for (const TensorView& wrong : {flat(scales), deep(scales)})
      EXPECT_ERROR(bad, "scales is", group.dispatch(in.x, routing, {.scales = wrong}));
    EXPECT_ERROR(bad, "scales has no data",
                 group.dispatch(in.x, routing, {.scales = empty(scales)}));

    const ep::Dispatched got = group.dispatch(in.x, routing);
    for (const TensorView& y : {flat(got.x), deep(got.x)}) {
      if (got.rows > 0) EXPECT_ERROR(bad, "y is", group.combine(y, got.handle));
    }
    if (got.rows > 0) EXPECT_ERROR(bad, "y has no data", group.combine(empty(got.x), got.handle));
    EXPECT_ERROR(bad, "out has no data", group.combine(got.x, got.handle, {.out = empty(in.x)}));
    EXPECT_ERROR(bad, "bias has no data",
                 group.combine(got.x, got.handle, {.bias = {empty(in.x)}}));

    const ep::LowLatencyReceived ll =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    const TensorView y2(ll.x.data, DataType::bfloat16, {c.local_experts() * rows, c.hidden});
    EXPECT_ERROR(bad, "y is", group.low_latency_combine(y2, in.topk_idx, in.weights, ll.handle));
    EXPECT_ERROR(bad, "y has no data",
                 group.low_latency_combine(empty(ll.x), in.topk_idx, in.weights, ll.handle));
    EXPECT_ERROR(bad, "topk_idx is",
                 group.low_latency_combine(ll.x, flat(in.topk_idx), in.weights, ll.handle));
    EXPECT_ERROR(bad, "weights is",
                 group.low_latency_combine(ll.x, in.topk_idx, deep(in.weights), ll.handle));
    EXPECT_ERROR(bad, "weights has no data",
                 group.low_latency_combine(ll.x, in.topk_idx, empty(in.weights), ll.handle));
    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::exact, false);
  });
}

TEST(EpBadInput, OptionsOfLowLatencyCombine) {
  const EpCase c = small(2);
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe());
    const ep::LowLatencyReceived got =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    const auto refused = [&](const char* text, const ep::LowLatencyCombineOptions& options) {
      EXPECT_ERROR(Code::invalid_argument, text,
                   group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle, options));
    };
    const Tensor out = Tensor::empty(DataType::bfloat16, {tokens + 1, c.hidden}),
                 waited = Tensor::empty(DataType::int64, {c.ranks + 1});
    refused("out is", {.out = out});
    refused("out is", {.out = TensorView(out.data, DataType::float16, {tokens, c.hidden})});
    refused("out is", {.out = TensorView(out.data, DataType::bfloat16, {tokens * c.hidden})});
    TensorView apart(out.data, DataType::bfloat16, {tokens, c.hidden});
    apart.strides[0] = c.hidden + 8;
    if (tokens > 1) refused("not contiguous", {.out = apart});
    refused("wait_ns is", {.wait_ns = waited});
    refused("wait_ns is", {.wait_ns = TensorView(waited.data, DataType::float64, {c.ranks})});
    refused("wait_ns has no data", {.wait_ns = TensorView(nullptr, DataType::int64, {c.ranks})});
    refused("reduction has the unknown value 7", {.reduction = static_cast<ep::Reduction>(7)});
    refused("unsummed with reduction per_rank",
            {.reduction = ep::Reduction::per_rank, .unsummed = true});
    refused("out is", {.unsummed = true,
                       .out = TensorView(out.data, DataType::bfloat16, {tokens, c.hidden})});
    EXPECT_ERROR(Code::invalid_argument, "weights is",
                 group.low_latency_combine(got.x, in.topk_idx, {}, got.handle));
    EXPECT_ERROR(
        Code::invalid_argument, "weights is",
        group.low_latency_combine(got.x, in.topk_idx, out, got.handle, {.unsummed = true}));

    // Valid options work afterwards: no call that threw has changed the group.
    std::memset(waited.data, 0, waited.bytes());
    const TensorView good(out.data, DataType::bfloat16, {tokens, c.hidden}),
        nanoseconds(waited.data, DataType::int64, {c.ranks});
    const Tensor result = group
                              .low_latency_combine(got.x, in.topk_idx, in.weights, got.handle,
                                                   {.out = good, .wait_ns = nanoseconds})
                              .receive();
    EXPECT_EQ(result.data, out.data);
    for (std::int32_t rank = 0; rank < c.ranks; ++rank)
      EXPECT_GE(waited.as<std::int64_t>()[rank], 0);
    check_low_latency(group, c, ep::Reduction::exact, true);
  });
}

TEST(EpBadInput, FuturesThrowErrorsOfAsynchronousCalls) {
  const EpCase c = small(2);
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    constexpr Code bad = Code::invalid_argument;
    auto wrong_x = group.dispatch_async(in.weights, routing);
    auto wrong_routing = group.dispatch_async(in.x, ep::Routing{});
    auto wrong_alignment = group.dispatch_async(in.x, routing, {.expert_alignment = -1});
    auto wrong_handle = group.combine_async(in.x, ep::Handle{});
    auto no_handle = group.dispatch_async(in.x, ep::Handle{});
    auto right = group.dispatch_async(in.x, routing, {.weights = in.weights});
    // ThreadSanitizer does not see how the C++ library counts the owners of an exception: a call
    // that waits for the stream makes this thread the last one.
    const auto let_stream_finish = [&] { (void)group.masked(); };
    let_stream_finish();
    EXPECT_ERROR(bad, ": x is float32", wrong_x.get());
    EXPECT_ERROR(bad, "the routing is empty", wrong_routing.get());
    EXPECT_ERROR(bad, "expert_alignment is -1", wrong_alignment.get());
    EXPECT_ERROR(bad, "handle is not of a dispatch", wrong_handle.get());
    EXPECT_ERROR(bad, "handle is not of a dispatch", no_handle.get());
    const ep::Dispatched got = right.get();
    auto wrong_layout = group.dispatch_expert_major_async(in.x, got.handle);
    let_stream_finish();
    EXPECT_ERROR(bad, "the handle is of a rank-major dispatch; use dispatch", wrong_layout.get());
    const Tensor y = expert_output_of(c, world.my_pe(), got);
    auto wrong_bias = group.combine_async(y, got.handle, {.bias = {in.weights}});
    auto combined = group.combine_async(y, got.handle);
    let_stream_finish();
    EXPECT_ERROR(bad, "CombineOptions.bias", wrong_bias.get());
    const auto wanted = expected_combine(c, world.my_pe());
    expect_same("combined", combined.get().x.data, wanted.data(), wanted.size() * 2, 2);
  });
}

TEST(EpBadInput, TokensAndRanksThatARoutingDoesNotHave) {
  const EpCase c = small(2);
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const std::int64_t tokens = c.tokens(world.my_pe());
    for (const auto& [token, rank] :
         {std::pair<std::int64_t, std::int32_t>{99, 0}, {tokens, 0}, {-1, 0}, {0, 2}, {0, -1}})
      EXPECT_ERROR(Code::invalid_argument, "is_token_in_rank",
                   routing.is_token_in_rank(token, rank));
    EXPECT_ERROR(Code::invalid_argument, "is_token_in_rank", ep::Routing{}.is_token_in_rank(0, 0));
    const auto topk_idx = c.topk(world.my_pe());
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto ranks = ranks_of(c, topk_idx.data() + t * c.top_k);
      for (std::int32_t rank = 0; rank < c.ranks; ++rank)
        EXPECT_EQ(routing.is_token_in_rank(t, rank),
                  std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
    }
  });
}

TEST(EpBadInput, ModesThatWereNotAskedFor) {
  const EpCase c = small(1);
  run_threads(1, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    ep::Group normal(world.team(), options);
    const Inputs in(c, 0);
    EXPECT_ERROR(Code::invalid_argument, "low_latency_max_tokens",
                 normal.low_latency_dispatch(in.x, in.topk_idx));
    EXPECT_ERROR(Code::invalid_argument, "low_latency_max_tokens", normal.next_combine_buffer());
    normal.close();
    options = options_for(c);
    options.max_tokens = 0;
    ep::Group low_latency(world.team(), options);
    const Tensor none = Tensor::empty(DataType::bfloat16, {0, c.hidden}),
                 no_topk = Tensor::empty(DataType::int64, {0, c.top_k});
    EXPECT_ERROR(Code::invalid_argument, "max_tokens is 0",
                 low_latency.dispatch(none, low_latency.route(no_topk)));
  });
}

TEST(EpBadInput, ClosedWorldAndGroup) {
  const EpCase c = small(1);
  Settings settings = ep_settings();
  World world = World::open({settings, single_bootstrap()});
  ep::Group group(world.team(), options_for(c));
  const Inputs in(c, 0);
  const ep::Routing routing = group.route(in.topk_idx);
  const Team team = world.team();
  world.close();
  EXPECT_ERROR(Code::closed, "closed", group.dispatch(in.x, routing));
  EXPECT_ERROR(Code::closed, "closed", group.low_latency_dispatch(in.x, in.topk_idx));
  EXPECT_ERROR(Code::closed, "closed", ep::Group(team, options_for(c)));
  ep::Group empty;
  EXPECT_ERROR(Code::closed, "closed", empty.dispatch(in.x, routing));
  EXPECT_ERROR(Code::closed, "closed", empty.warmup());
}

TEST(EpBadInput, RanksThatDisagreeAllGetTheSameError) {
  const EpCase c = small(3);
  run_threads(3, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    if (world.my_pe() == 1) options.hidden = 128;
    EXPECT_ERROR(Code::mismatch, "hidden differs between ranks: 64 on PE 0, 128 on PE 1",
                 ep::Group(world.team(), options));
    options = options_for(c);
    if (world.my_pe() == 2) options.chunks_in_flight = 3;
    EXPECT_ERROR(Code::mismatch, "chunks_in_flight differs between ranks: 0 on PE 0, 3 on PE 2",
                 ep::Group(world.team(), options));
    options = options_for(c);
    if (world.my_pe() == 2) options.top_k = 129;
    EXPECT_ERROR(Code::invalid_argument, "top_k is 129", ep::Group(world.team(), options));
    options = options_for(c);
    options.max_tokens = 1 << 20;
    EXPECT_ERROR(Code::exhausted, "SHOAL_SYMMETRIC_SIZE", ep::Group(world.team(), options));

    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const ep::Dispatched got = group.dispatch(in.x, routing);
    if (world.my_pe() == 0) {
      EXPECT_ERROR(Code::mismatch, "different operations", group.dispatch(in.x, routing));
    } else {
      EXPECT_ERROR(Code::mismatch, "different operations", group.combine(got.x, got.handle));
    }
    EXPECT_ERROR(
        Code::mismatch, "weights",
        group.dispatch(in.x, routing,
                       {.weights = world.my_pe() == 1 ? TensorView(in.weights) : TensorView()}));
    check_normal(group, c);  // the group stays usable
  });
}

/// `refuse`: what rank 2 calls, and drops the error of. The other ranks `call`.
void expect_reason(const std::string& reason,
                   const std::function<void(ep::Group&, Inputs&)>& refuse,
                   const std::function<void(ep::Group&, const Inputs&)>& call) {
  SCOPED_TRACE(reason);
  EpCase c = small(3);
  while (c.tokens(2) == 0) ++c.seed;
  std::atomic<int> waiting{2};
  run_threads(3, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.timeout = std::chrono::milliseconds(250);
    ep::Group group(world.team(), options);
    Inputs in(c, world.my_pe());
    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::exact, false);
    if (world.my_pe() == 2) {
      EXPECT_ERROR(Code::invalid_argument, reason, refuse(group, in));
      EXPECT_TRUE(wait_for([&] { return waiting == 0; }));
    } else {
      expect_parts(error_of([&] { call(group, in); }), {"PE 2 refused its call: " + reason});
      --waiting;
    }
  });
}

TEST(EpBadInput, OtherRanksLearnWhyACallWasRefused) {
  const auto dispatch = [](ep::Group& group, const Inputs& in) {
    group.dispatch(in.x, group.route(in.topk_idx));
  };
  const auto send = [](ep::Group& group, const Inputs& in) {
    return group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none});
  };
  expect_reason(
      "dispatch: DispatchOptions.expert_alignment is 0",
      [](auto& group, auto& in) {
        group.dispatch(in.x, group.route(in.topk_idx), {.expert_alignment = 0});
      },
      dispatch);
  expect_reason(
      "route: topk_idx[0, 0] is 99",
      [](auto& group, auto& in) {
        in.topk_idx.template as<std::int64_t>()[0] = 99;
        group.route(in.topk_idx);
      },
      dispatch);
  expect_reason(
      "low_latency_dispatch: quantize has the unknown value 9",
      [](auto& group, auto& in) {
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = static_cast<ep::Quantize>(9)});
      },
      [&](auto& group, const auto& in) { send(group, in).receive(); });
}

TEST(EpBadInput, AMismatchAfterARefusalHasItsReason) {
  const EpCase c = small(3);
  run_threads(3, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const ep::Dispatched got = group.dispatch(in.x, routing);
    const bool odd = world.my_pe() == 2;
    if (odd)
      EXPECT_ERROR(Code::invalid_argument, "handle is not of a dispatch",
                   group.combine(got.x, ep::Handle{}));
    const std::string message = error_of([&] {
      if (odd)
        group.dispatch(in.x, routing);
      else
        group.combine(got.x, got.handle);
    });
    expect_parts(message, {"PE 2 refused its call: combine: the handle is not of a dispatch",
                           "ranks of the group call different operations"});
    check_normal(group, c);
  });
}

TEST(EpBadInput, WorstCaseRowsThatDoNotSufficeFailOnAllRanks) {
  EpCase c = small(2);
  c.load = Load::all_to_one;
  c.seed = 3;
  ASSERT_GT(c.tokens(0) + c.tokens(1), 1);
  run_threads(2, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    EXPECT_ERROR(Code::exhausted, "worst_case_rows",
                 group.dispatch(in.x, group.route(in.topk_idx), {.worst_case_rows = 1}));
    check_normal(group, c);
  });
}

TEST(EpBadInput, UnequalNodesAreNamed) {
  Settings settings = ep_settings();
  settings.node_size = 2;
  run_threads(4, settings, [&](World& world) {
    const Team three = world.team().split_strided(0, 1, 3);
    if (world.my_pe() < 3)
      EXPECT_ERROR(Code::unsupported,
                   "equally many ranks on every node: 2 share memory with PE 0, 1 with PE 2",
                   ep::Group(three, options_for(small(3))));
    EpCase half = small(2);
    ep::Group group(world.node_team(), options_for(half));  // one group per node, of the same size
    check_normal(group, half);
  });
}

}  // namespace
}  // namespace shoal::test
