// SPDX-License-Identifier: Apache-2.0
// Wrong calls on GPUs, most of them in normal mode: each mistake throws the documented error on the
// documented ranks, and the group remains usable.
#include <gtest/gtest.h>

#include <algorithm>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

void run_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
               const std::function<void(ep::GroupOptions&)>& change = {}) {
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.low_latency_max_tokens = 0;
    if (change) change(options);
    GpuGroup group(world, options);
    body(group);
    sync(world.team());  // no rank continues while another still reports an error
    GpuRound(group, c, {.place = OutputPlace::in_place}).run();
    GpuRound(group, c, {.place = OutputPlace::in_place}).run();
  });
}

/// Waits for the group's work. Ignores an error of this code, because the call may have thrown it
/// already.
void drain(GpuGroup& group, Code code) {
  try {
    group.group.synchronize();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
  }
}

TEST(EpGpuBadInput, SmallArguments) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2);
  run_group(c, [&](GpuGroup& g) {
    GpuRound round(g, c, {.place = OutputPlace::in_place});
    const Inputs host(c, g.me);
    const std::int64_t tokens = c.tokens(g.me);
    const ep::Routing routing = round.route();
    const auto bad_dispatch = [&](std::string_view text, const TensorView& x,
                                  const ep::DispatchOptions& options) {
      expect_error(Code::invalid_argument, text, [&] { g.group.dispatch(x, routing, options); });
    };
    bad_dispatch("on the host", host.x, {});
    bad_dispatch("Launch.sms", round.x(), {.launch = {.sms = -1}});
    bad_dispatch("Launch.sms", round.x(), {.launch = {.sms = 5000}});
    bad_dispatch("worst_case_rows", round.x(), {.worst_case_rows = c.ranks * c.max_tokens + 1});
    bad_dispatch("expert_alignment", round.x(), {.expert_alignment = 0});
    bad_dispatch("weights", round.x(), {.weights = host.weights});
    const Tensor many = g.tensors.empty(DataType::float32, {tokens, 2});
    bad_dispatch("max_scales", round.x(), {.scales = many});
    const Tensor wide = g.tensors.empty(DataType::float32, {tokens, c.hidden});
    bad_dispatch("bytes", wide, {});
    const Tensor flat = g.tensors.empty(DataType::uint8, {tokens * c.hidden * 2 + 16});
    TensorView shifted(flat.as<std::byte>() + 2, DataType::bfloat16, {tokens, c.hidden});
    shifted.device = g.tensors.device();
    bad_dispatch("16 bytes", shifted, {});
    expect_error(Code::invalid_argument, "topk_idx", [&] { g.group.route(host.topk_idx); });
    const Tensor narrow = g.tensors.empty(DataType::int64, {tokens, c.top_k - 1});
    expect_error(Code::invalid_argument, "topk_idx", [&] { g.group.route(narrow); });
    expect_error(Code::invalid_argument, "the routing is empty",
                 [&] { g.group.dispatch(round.x(), ep::Routing{}); });

    const ep::Dispatched got = round.dispatch(routing);
    round.check(got);
    round.write_expert_output(got);
    const auto bad_combine = [&](std::string_view text, const TensorView& y,
                                 const ep::CombineOptions& options) {
      expect_error(Code::invalid_argument, text, [&] { g.group.combine(y, got.handle, options); });
    };
    Tensor host_y = Tensor::empty(DataType::bfloat16, {*got.rows, c.hidden});
    bad_combine("on the host", host_y, {});
    bad_combine("at most 2", round.y(), {.bias = {got.x, got.x, got.x}});
    bad_combine("bias", round.y(), {.bias = {many}});
    bad_combine("out", round.y(), {.out = many});
    bad_combine("Launch.sms", round.y(), {.launch = {.sms = 5000}});
    bad_combine("16 bytes", round.y(), {.out = shifted});
    if (tokens > 0) bad_combine("16 bytes", round.y(), {.bias = {shifted}});
    TensorView short_y = round.y();
    short_y.shape[0] += 1;
    bad_combine("y is", short_y, {});
    round.check(round.combine(got));  // the result is unchanged
  });
}

TEST(EpGpuBadInput, SmallArgumentsOfLowLatencyMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(2, 37);
  while (std::min(c.tokens(0), c.tokens(1)) == 0) ++c.seed;  // an empty tensor needs no data
  run_low_latency_group(c, [&](GpuGroup& g) {
    GpuLowLatencyRound round(g, c, {});
    const Inputs host(c, g.me);
    const std::int64_t tokens = c.tokens(g.me), rows = c.ranks * c.max_tokens;
    const Tensor narrow = g.tensors.empty(DataType::int64, {tokens, c.top_k - 1});
    const Tensor longer = g.tensors.empty(DataType::bfloat16, {tokens + 1, c.hidden});
    const Tensor other = g.tensors.empty(DataType::float32, {tokens, c.hidden});
    const Tensor flat =
        g.tensors.empty(DataType::uint8, {rows * c.local_experts() * c.hidden * 2 + 16});
    const auto misplaced = [&](std::initializer_list<std::int64_t> shape) {
      TensorView view(flat.as<std::byte>() + 2, DataType::bfloat16, shape);
      view.device = g.tensors.device();
      return view;
    };
    const auto without_data = [](TensorView view) {
      view.data = nullptr;
      return view;
    };

    const auto bad_dispatch = [&](std::string_view text, const TensorView& x,
                                  const TensorView& topk,
                                  const ep::LowLatencyDispatchOptions& options = {}) {
      expect_error(Code::invalid_argument, text,
                   [&] { g.group.low_latency_dispatch(x, topk, options); });
    };
    bad_dispatch(": x is on the host", host.x, round.topk());
    bad_dispatch("topk_idx is on the host", round.x(), host.topk_idx);
    bad_dispatch(": x is", other, round.topk());
    bad_dispatch(": x is", longer, round.topk());
    bad_dispatch("topk_idx is", round.x(), narrow);
    bad_dispatch("topk_idx is", round.x(), round.weights());
    bad_dispatch(": x has no data", without_data(round.x()), round.topk());
    bad_dispatch("topk_idx has no data", round.x(), without_data(round.topk()));
    bad_dispatch("16 bytes", misplaced({tokens, c.hidden}), round.topk());
    bad_dispatch("unknown value", round.x(), round.topk(),
                 {.quantize = static_cast<ep::Quantize>(9)});
    bad_dispatch("expert_counts) is", round.x(), round.topk(), {.tokens_per_expert = other});
    bad_dispatch("wait_ns is", round.x(), round.topk(), {.wait_ns = other});
    bad_dispatch("weights is on the host", round.x(), round.topk(), {.weights = host.weights});
    bad_dispatch("Launch.sms", round.x(), round.topk(), {.launch = {.sms = -1}});

    const ep::LowLatencyReceived got = round.send().receive();
    round.check(got);
    round.write_expert_output();
    const auto bad_combine = [&](std::string_view text, const TensorView& y, const TensorView& topk,
                                 const TensorView& weights,
                                 const ep::LowLatencyCombineOptions& options = {}) {
      expect_error(Code::invalid_argument, text,
                   [&] { g.group.low_latency_combine(y, topk, weights, got.handle, options); });
    };
    const auto bad_options = [&](std::string_view text,
                                 const ep::LowLatencyCombineOptions& options) {
      bad_combine(text, got.x, round.topk(), round.weights(), options);
    };
    const Tensor host_y = Tensor::empty(DataType::bfloat16, {c.local_experts(), rows, c.hidden});
    bad_combine("y is on the host", host_y, round.topk(), round.weights());
    bad_combine("y is", longer, round.topk(), round.weights());
    bad_combine("y has no data", without_data(got.x), round.topk(), round.weights());
    bad_combine("16 bytes", misplaced({c.local_experts(), rows, c.hidden}), round.topk(),
                round.weights());
    bad_combine("topk_idx is", got.x, narrow, round.weights());
    bad_combine("topk_idx is on the host", got.x, host.topk_idx, round.weights());
    bad_combine("weights is", got.x, round.topk(), other);
    bad_combine("weights is on the host", got.x, round.topk(), host.weights);
    bad_options("choose one", {.log_fmt = true, .zero_copy = true});
    bad_options("choose one", {.quantize = ep::Quantize::fp8, .zero_copy = true});
    bad_options("none, fp8 and mxfp8", {.quantize = ep::Quantize::fp8_ue8m0});
    bad_options("next_combine_buffer", {.zero_copy = true});
    bad_options("unknown value", {.reduction = static_cast<ep::Reduction>(9)});
    bad_options("out is", {.out = longer});
    bad_options("out is on the host", {.out = host.x});
    bad_options("16 bytes", {.out = misplaced({tokens, c.hidden})});
    bad_options("wait_ns is", {.wait_ns = other});
    bad_options("Launch.sms", {.launch = {.sms = 5000}});
    TensorView elsewhere = g.group.next_combine_buffer();
    elsewhere.data = elsewhere.as<std::byte>() + c.hidden * 2;
    bad_combine("next_combine_buffer", elsewhere, round.topk(), round.weights(),
                {.zero_copy = true});
    const auto of_handle = [&](const ep::LowLatencyHandle& handle) {
      expect_error(Code::invalid_argument, "handle is not of", [&] {
        g.group.low_latency_combine(got.x, round.topk(), round.weights(), handle);
      });
    };
    of_handle({});
    expect_error(Code::invalid_argument, "mask_failed", [&] { g.group.set_mask(1 - g.me, true); });
    expect_error(Code::invalid_argument, "has been received",
                 [] { ep::PendingDispatch{}.receive(); });
    expect_error(Code::invalid_argument, "has been received",
                 [] { ep::PendingCombine{}.receive(); });
    round.check(round.combine(got).receive());  // the result is unchanged

    {
      GpuGroup foreign(g.world, g.group.options());
      GpuLowLatencyRound theirs(foreign, c, {});
      const ep::LowLatencyReceived received = theirs.send().receive();
      theirs.check(received);
      of_handle(received.handle);
      theirs.write_expert_output();
      theirs.check(theirs.combine(received).receive());
    }
    for (const bool defer : {true, false})
      for (const GpuLowLatencyCall& call :
           {GpuLowLatencyCall{.quantize = ep::Quantize::fp8, .zero_copy = true},
            GpuLowLatencyCall{.reduction = ep::Reduction::exact, .early_weights = true},
            GpuLowLatencyCall{.log_fmt = true},
            GpuLowLatencyCall{.combine_quantize = ep::Quantize::mxfp8}}) {
        GpuLowLatencyCall again = call;
        again.defer_receive = defer;
        GpuLowLatencyRound(g, c, again).run();
      }
  });
}

TEST(EpGpuBadInput, SmallIndicesNameTheToken) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 7);
  run_group(c, [&](GpuGroup& g) {
    const std::int64_t tokens = 9;
    const auto route = [&](std::int64_t token, std::int32_t topk_slot, std::int64_t value,
                           DataType dtype) {
      std::vector<std::int64_t> topk_idx(tokens * c.top_k, -1);
      for (std::int64_t t = 0; t < tokens; ++t) topk_idx[t * c.top_k] = t % c.experts;
      topk_idx[token * c.top_k + topk_slot] = value;
      const std::vector<std::int32_t> narrow(topk_idx.begin(), topk_idx.end());
      const void* const data =
          dtype == DataType::int64 ? static_cast<const void*>(topk_idx.data()) : narrow.data();
      const Tensor topk = g.tensors.upload(ConstTensorView(data, dtype, {tokens, c.top_k}));
      g.group.route(topk);
      g.group.synchronize();
    };
    for (const DataType dtype : {DataType::int64, DataType::int32}) {
      expect_error(Code::invalid_argument, "topk_idx[5, 2] is 9",
                   [&] { route(5, 2, c.experts, dtype); });
      g.group.synchronize();  // reported once
      expect_error(Code::invalid_argument, "topk_idx[0, 3] is -2", [&] { route(0, 3, -2, dtype); });
      expect_error(Code::invalid_argument, "topk_idx[8, 0] is 2147483647",
                   [&] { route(8, 0, 2147483647, dtype); });
      expect_error(Code::invalid_argument, "topk_idx[4] names expert 4 twice",
                   [&] { route(4, 1, 4, dtype); });
      route(4, 1, 5, dtype);
    }
    // Only one rank makes the mistake. The others get no error.
    if (g.me == 1)
      expect_error(Code::invalid_argument, "topk_idx[1, 1]",
                   [&] { route(1, 1, 100, DataType::int64); });
  });
}

TEST(EpGpuBadInput, SmallADispatchAfterABadIndexReportsItOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 8);
  run_group(c, [&](GpuGroup& g) {
    std::vector<std::int64_t> topk_idx(3 * c.top_k, -1);
    for (std::int64_t t = 0; t < 3; ++t) topk_idx[t * c.top_k] = 0;
    const bool bad = g.me == 1;
    if (bad) topk_idx[1 * c.top_k] = c.experts;
    const Tensor topk =
        g.tensors.upload(TensorView(topk_idx.data(), DataType::int64, {3, c.top_k}));
    const Tensor x = g.tensors.empty(DataType::bfloat16, {3, c.hidden});
    for (int i = 0; i < 5; ++i) {
      // All ranks perform the operation. The index counts as -1 and is reported.
      std::int64_t rows = -1;
      const auto dispatch = [&] {
        rows = *g.group.dispatch(x, g.group.route(topk)).rows;
        g.group.synchronize();
      };
      if (bad)
        expect_error(Code::invalid_argument, "topk_idx[1, 0] is 9", dispatch);
      else
        dispatch();
      g.group.synchronize();
      if (!bad) EXPECT_EQ(rows, g.me == 0 ? 8 : 0);
    }
  });
}

TEST(EpGpuBadInput, EveryIndexBadIsReportedOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(2, 9);
  c.max_tokens = 5000;
  run_group(c, [&](GpuGroup& g) {
    const std::vector<std::int64_t> topk_idx(c.max_tokens * c.top_k, c.experts + 7);
    const Tensor topk = g.tensors.upload(
        ConstTensorView(topk_idx.data(), DataType::int64, {c.max_tokens, c.top_k}));
    for (int i = 0; i < 3; ++i) {
      const ep::Routing routing = g.group.route(topk);
      expect_error(Code::invalid_argument, "topk_idx[0, 0] is 13; allowed: 0 to 5",
                   [&] { g.group.synchronize(); });
      g.group.synchronize();
      const Tensor counts = g.tensors.download(routing.device_counts->tokens_per_rank);
      EXPECT_EQ(counts.as<std::int32_t>()[0], 0) << "an index out of range counts as -1";
    }
  });
}

TEST(EpGpuBadInput, SmallNoRoomForAnotherResult) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t live : {1, 2, 3}) {
    const EpCase c = small_case(3, 23);
    run_group(
        c,
        [&](GpuGroup& g) {
          GpuRound round(g, c, {.place = OutputPlace::in_place});
          const ep::Routing routing = round.route();
          std::vector<ep::Dispatched> held;  // by one rank; the others drop theirs
          int done = 0;
          Code code{};
          for (; done < 20 && code == Code{}; ++done) {
            try {
              ep::Dispatched got = round.dispatch(routing);
              if (g.me == 1) held.push_back(std::move(got));
            } catch (const Error& error) {
              code = error.code();
              expect_parts(error.what(), {"live_results", "PE 1"});
            }
          }
          EXPECT_EQ(code, Code::exhausted);
          if (g.me == 1) EXPECT_GE(static_cast<std::int32_t>(held.size()), live);
          if (g.me == 1 && live <= 2)
            EXPECT_EQ(static_cast<std::int32_t>(held.size()), live) << "live_results results fit";
          for (const ep::Dispatched& got : held) round.check(got);
        },
        [&](ep::GroupOptions& options) { options.live_results = live; });
  }
}

TEST(EpGpuBadInput, SmallNoRoomWithoutExactSizes) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 25);
  run_group(
      c,
      [&](GpuGroup& g) {
        GpuRound round(g, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
        const ep::Routing routing = round.route();
        ep::Dispatched first = round.dispatch(routing), second;
        if (g.me != 2) first = {};
        Code code{};
        try {
          second = round.dispatch(routing);
          g.group.synchronize();
        } catch (const Error& error) {
          code = error.code();
          expect_parts(error.what(), {"PE 2"});
        }
        EXPECT_EQ(code, Code::exhausted);
        second = {};
        drain(g, Code::exhausted);
        if (g.me == 2) round.check(first);
      },
      [](ep::GroupOptions& options) { options.live_results = 1; });
}

TEST(EpGpuBadInput, SmallTooFewWorstCaseRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(3, 27);
  c.load = Load::all_to_one;  // all to the last rank
  std::int64_t tokens = 0;
  for (std::int32_t rank = 0; rank < c.ranks; ++rank) tokens += c.tokens(rank);
  ASSERT_GT(tokens, 1);
  run_group(c, [&](GpuGroup& g) {
    GpuRound fits(g, c, {.dispatch = {.worst_case_rows = tokens}});
    fits.run();
    GpuRound round(g, c, {.dispatch = {.worst_case_rows = tokens - 1}});
    Code code{};
    try {
      const ep::Dispatched got = round.dispatch(round.route());
      g.group.synchronize();
    } catch (const Error& error) {
      code = error.code();
      expect_parts(error.what(), {"PE 2 allows " + std::to_string(tokens - 1), "worst_case_rows"});
    }
    EXPECT_EQ(code, Code::exhausted);
    g.group.synchronize();  // reported once
    fits.run();
  });
}

/// The call of each rank, one of which differs: all get a mismatch.
void expect_mismatch(GpuGroup& g, const std::function<void()>& call) {
  expect_error(Code::mismatch, "different operations", [&] {
    call();
    g.group.synchronize();
  });
  g.group.synchronize();  // reported once
  sync(g.world.team());
}

class EpGpuMismatch : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Odd, EpGpuMismatch, ::testing::Values(0, 2));

TEST_P(EpGpuMismatch, SmallRanksThatDiffer) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 31);
  run_group(
      c,
      [&](GpuGroup& g) {
        const bool odd = g.me == GetParam();
        GpuRound bf16(g, c, {}), fp16(g, c, {.dtype = DataType::float16}),
            bare(g, c, {.weights = false}), scaled(g, c, {.scales = 1}),
            light(g, c, {.combine_weights = false}),
            encoded(g, c, {.combine_quantize = ep::Quantize::fp8});
        const ep::Routing routing = bf16.route();
        for (GpuRound* other : {&fp16, &bare, &scaled}) {
          expect_mismatch(g, [&] { (odd ? *other : bf16).dispatch(routing); });
        }
        const ep::Dispatched a = bf16.dispatch(routing);
        expect_mismatch(g, [&] {  // new and cached layout
          if (odd)
            bf16.dispatch(routing);
          else
            bf16.dispatch(a.handle);
        });
        const ep::Dispatched b = bf16.dispatch(routing);
        bf16.check(b);
        bf16.write_expert_output(a);
        light.write_expert_output(a);
        encoded.write_expert_output(a);
        expect_mismatch(g, [&] { bf16.combine(odd ? b : a); });  // combines of different dispatches
        expect_mismatch(g, [&] { (odd ? light : bf16).combine(a); });  // with and without weights
        expect_mismatch(g, [&] { (odd ? encoded : bf16).combine(a); });
        expect_mismatch(g, [&] {
          if (odd)
            bf16.combine(b);
          else
            bf16.dispatch(a.handle);
        });
        bf16.check(bf16.combine(a));  // all ranks agree again
      },
      [](ep::GroupOptions& options) { options.live_results = 3; });
}

// GroupOptions.combine_staging.
TEST(EpGpuBadInput, SmallWithoutRoomForCopiesOfExpertOutput) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 33);
  ep::GroupOptions with = options_for(c), without = with;
  without.combine_staging = false;
  EXPECT_LT(size_hint(without, c.ranks, DeviceKind::cuda).normal,
            size_hint(with, c.ranks, DeviceKind::cuda).normal);
  run_group(
      c,
      [&](GpuGroup& g) {
        GpuRound staged(g, c, {}), in_place(g, c, {.place = OutputPlace::in_place}),
            heap(g, c, {.place = OutputPlace::heap}),
            copied(g, c, {.dispatch = {.copy_out = true}, .place = OutputPlace::heap});
        const ep::Dispatched got = staged.dispatch(staged.route());
        staged.write_expert_output(got);
        if (got.rows > 0)
          expect_error(Code::invalid_argument, "combine_staging", [&] { staged.combine(got); });
        sync(g.world.team());
        expect_error(Code::invalid_argument, "quantize is fp8, which encodes y to memory", [&] {
          (void)g.group.combine(got.x, got.handle, {.quantize = ep::Quantize::fp8});
        });
        sync(g.world.team());
        in_place.write_expert_output(got);
        in_place.check(in_place.combine(got));
        heap.run();
        const ep::Dispatched out = copied.dispatch(copied.route());
        copied.check(out);
        copied.write_expert_output(out);
        if (out.rows > 0)  // its weights lie outside the heap
          expect_error(Code::invalid_argument, "combine_staging", [&] { copied.combine(out); });
        sync(g.world.team());
      },
      [](ep::GroupOptions& options) { options.combine_staging = false; });
}

TEST(EpGpuBadInput, SmallAClosedGroupThrowsClosed) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2, 35);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    GpuGroup g(world, options);
    GpuRound round(g, c, {});
    ep::Dispatched held = round.dispatch(round.route());
    if (g.me == 0) held = {};
    const ep::Routing routing = round.route();
    g.group.close();
    if (g.me != 0)
      expect_error(Code::closed, "the group is closed that made the handle (dispatch 1)",
                   [&] { g.group.combine(held.x, held.handle); });
    held = {};
    expect_error(Code::closed, "closed", [&] { g.group.dispatch(round.x(), routing); });
    expect_error(Code::closed, "closed", [&] { round.route(); });
    expect_error(Code::closed, "closed", [&] { g.group.synchronize(); });
    g.group.close();
  });
}

// Groups beyond a limit of the GPU backend are refused. The message names the limit and the option.

ep::GroupOptions low_latency(std::int64_t tokens, std::int64_t hidden, std::int32_t experts) {
  ep::GroupOptions options;
  options.low_latency_max_tokens = tokens;
  options.hidden = hidden;
  options.top_k = 1;
  options.experts = experts;
  return options;
}

TEST(EpGpuLimits, GroupsBeyondThemAreRefused) {
  SHOAL_SKIP_WITHOUT_GPU();
  const auto normal = [](std::int64_t tokens, std::int64_t hidden) {
    ep::GroupOptions options = low_latency(0, hidden, 2);
    options.max_tokens = tokens;
    options.combine_staging = false;
    options.live_results = 1;
    return options;
  };
  struct Case {
    ep::GroupOptions options;
    const char* text;
  };
  const Case cases[] = {
      {low_latency(4, 16, 65536),
       "low-latency mode on GPUs has at most 32768 experts a rank; this group has 65536"},
      {low_latency(65536, 16, 32768),
       "low-latency mode on GPUs has fewer than 2147483648 rows a rank"},
      {normal(4, 1 << 20), "rows of 2097152 bytes"},
  };
  run_threads(1, gpu_settings(1024), [&](World& world) {
    for (const Case& one : cases)
      expect_error(Code::unsupported, one.text,
                   [&] { GpuGroup(world, one.options).group.warmup(); });
    GpuGroup group(world, low_latency(4, 16, 2));
    group.group.warmup();
    group.group.synchronize();
  });
}

/// A row is encoded in parts, so it may be longer than the shared memory of an SM.
TEST(EpGpuLimits, EncodedRowsMayBeLongerThanSharedMemory) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = 1,
                 .experts = 2,
                 .top_k = 1,
                 .hidden = 1 << 17,
                 .max_tokens = 4,
                 .seed = 1,
                 .holes = 0};
  run_threads(1, gpu_settings(256), [&](World& world) {
    GpuGroup group(world, low_latency(c.max_tokens, c.hidden, c.experts));
    const PlainInputs in(group.tensors, c, {0, 1, 1, 0});
    const ep::LowLatencyReceived got =
        group.group.low_latency_dispatch(in.x, in.topk, {.quantize = ep::Quantize::none}).receive();
    const ep::LowLatencyCombineOptions forms[] = {
        {.log_fmt = true}, {.quantize = ep::Quantize::fp8}, {.quantize = ep::Quantize::mxfp8}, {}};
    for (const ep::LowLatencyCombineOptions& form : forms) {
      const Tensor sums =
          group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle, form).receive();
      group.group.synchronize();
      const Tensor host = group.tensors.download(sums);
      for (std::int64_t i = 0; i < host.size(); i += 1000)
        ASSERT_EQ(host.as<std::uint16_t>()[i], 0x3f80) << static_cast<int>(form.quantize);
    }
  });
}

}  // namespace
}  // namespace shoal::test
