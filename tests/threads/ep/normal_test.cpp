// SPDX-License-Identifier: Apache-2.0
// Normal mode with PEs as threads, bit by bit against the naive reference.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "checks/ep/formats.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

void run_case(const EpCase& c, const std::function<void(World&, ep::Group&)>& body) {
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    body(world, group);
    group.close();
    world.close();
  });
}

class EpNormal : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpNormal, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpNormal, DispatchAndCombineMatchTheReference) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    run_case(small_case(GetParam(), seed),
             [&](World&, ep::Group& group) { check_normal(group, small_case(GetParam(), seed)); });
}

TEST_P(EpNormal, NoTokensIdleRanksAndOneHotExpert) {
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small_case(GetParam());
    c.load = load;
    run_case(c, [&](World&, ep::Group& group) {
      check_normal(group, c);
      check_normal(group, c);
    });
  }
}

TEST_P(EpNormal, WorstCaseRowsAlignmentAndCopyOut) {
  const EpCase c = small_case(GetParam(), 5);
  run_case(c, [&](World&, ep::Group& group) {
    for (const std::int32_t alignment : {16, 128, 224, 256})
      check_normal(group, c, {.expert_alignment = alignment});
    check_normal(group, c, {.worst_case_rows = c.ranks * c.max_tokens});
    check_normal(group, c, {.copy_out = true});
    check_normal(
        group, c,
        {.expert_alignment = 8, .worst_case_rows = c.ranks * c.max_tokens, .copy_out = true});
  });
}

// Rows in all formats; hidden is no multiple of the channels of a scale of FP8.
TEST_P(EpNormal, EveryFormatMatchesItsReference) {
  EpCase c = small_case(GetParam(), 6);
  for (const std::int64_t hidden : {64, 192, 448}) {
    c.hidden = hidden;
    run_case(c, [&](World&, ep::Group& group) {
      EXPECT_EQ(check_normal_formats(group, c), GetParam() < 3 ? 1 : 2);
    });
  }
}

TEST(EpNormalMode, FormatsThatDifferAreRefused) {
  EpCase c = small_case(3, 8);
  c.hidden = 128;
  run_case(c, [&](World&, ep::Group& group) { check_refused_formats(group, c); });
}

TEST(EpNormalMode, SeveralThreadsPerPe) {
  const EpCase c = small_case(3, 9);
  for (const bool by_setting : {false, true}) {  // GroupOptions.threads, or SHOAL_EP_THREADS
    Settings settings = ep_settings();
    settings.ep_threads = by_setting ? 3 : 1;
    run_threads(c.ranks, settings, [&](World& world) {
      const auto before = std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
      sync(world.team());
      ep::GroupOptions options = options_for(c);
      options.threads = by_setting ? 0 : 3;
      ep::Group group(world.team(), options);
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}),
                before + 2 * c.ranks);
      check_normal(group, c);
      check_low_latency(group, c, ep::Reduction::exact, false);
      check_low_latency_quantized(group, c, ep::Quantize::fp8);
      sync(world.team());
      group.close();
    });
  }
}

// The routing of one dispatch is reused.
TEST(EpNormalMode, CachedHandleGivesTheSameLayout) {
  const EpCase c = small_case(4, 3);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Dispatched first =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    for (int repeat = 0; repeat < 3; ++repeat) {
      const ep::Dispatched again = group.dispatch(in.x, first.handle);
      ASSERT_EQ(again.rows, first.rows);
      expect_same("cached rows", again.x.data, first.x.data, first.x.bytes(), 2);
      EXPECT_FALSE(again.topk_idx.has_value());
      const Tensor y = expert_output_of(c, world.my_pe(), first);
      const ep::Combined combined = group.combine(y, again.handle);
      const auto wanted = expected_combine(c, world.my_pe());
      expect_same("combined", combined.x.data, wanted.data(), wanted.size() * 2, 2);
    }
  });
}

TEST(EpNormalMode, BiasIsAddedFirst) {
  const EpCase c = small_case(3, 11);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const auto tokens = c.tokens(world.my_pe());
    std::vector<std::uint16_t> bias0(tokens * c.hidden), bias1(bias0.size());
    for (std::size_t i = 0; i < bias0.size(); ++i) {
      bias0[i] = bf16_of(static_cast<float>(i % 17) / 8 - 1);
      bias1[i] = bf16_of(static_cast<float>(i % 5) * 3);
    }
    const TensorView b0(bias0.data(), DataType::bfloat16, {tokens, c.hidden}),
        b1(bias1.data(), DataType::bfloat16, {tokens, c.hidden});
    const ep::Dispatched received =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    const Tensor y = expert_output_of(c, world.my_pe(), received);
    std::vector<std::uint16_t> out(tokens * c.hidden);
    const TensorView out_view(out.data(), DataType::bfloat16, {tokens, c.hidden});
    group.combine(y, received.handle, {.bias = {b0}, .out = out_view});
    expect_same("one bias", out.data(), expected_combine(c, world.my_pe(), &bias0).data(),
                out.size() * 2, 2);
    group.combine(y, received.handle, {.bias = {b0, b1}, .out = out_view});
    expect_same("two biases", out.data(), expected_combine(c, world.my_pe(), &bias0, &bias1).data(),
                out.size() * 2, 2);
  });
}

TEST(EpNormalMode, Float8RowsCarryTheirScales) {
  EpCase c = small_case(4, 13);
  c.hidden = 256;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.dtype = DataType::float8_e4m3;
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe());
    std::vector<std::uint8_t> codes(tokens * c.hidden);
    std::vector<float> scales(2 * tokens + 2);  // column-major: stride 1 along tokens
    const auto code = [&](std::int32_t rank, std::int64_t t, std::int64_t ch) {
      return static_cast<std::uint8_t>(rank * 31 + t * 7 + ch);
    };
    for (std::int64_t t = 0; t < tokens; ++t) {
      for (std::int64_t ch = 0; ch < c.hidden; ++ch)
        codes[t * c.hidden + ch] = code(world.my_pe(), t, ch);
      for (std::int64_t g = 0; g < 2; ++g)
        scales[g * tokens + t] = static_cast<float>(world.my_pe() * 100 + t * 2 + g);
    }
    TensorView scale_view(scales.data(), DataType::float32, {tokens, 2});
    scale_view.strides = {1, tokens};
    const ep::Dispatched got =
        group.dispatch(TensorView(codes.data(), DataType::float8_e4m3, {tokens, c.hidden}),
                       group.route(in.topk_idx), {.scales = scale_view});
    const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
    ASSERT_EQ(got.rows, static_cast<std::int64_t>(wanted.source_token.size()));
    for (std::int64_t i = 0; i < got.rows; ++i) {
      for (std::int64_t ch = 0; ch < c.hidden; ++ch)
        ASSERT_EQ(got.x.as<std::uint8_t>()[i * c.hidden + ch],
                  code(wanted.source_rank[i], wanted.source_token[i], ch));
      for (std::int64_t g = 0; g < 2; ++g)
        ASSERT_EQ(got.scales->as<float>()[i * 2 + g],
                  static_cast<float>(wanted.source_rank[i] * 100 + wanted.source_token[i] * 2 + g));
    }
    // Experts take float8 rows and return bfloat16.
    Tensor y = Tensor::empty(DataType::bfloat16, {*got.rows, c.hidden});
    std::memset(y.data, 0, y.bytes());
    EXPECT_EQ(group.combine(y, got.handle).x.shape[0], tokens);
  });
}

TEST(EpNormalMode, AsynchronousOperationsKeepTheirOrder) {
  const EpCase c = small_case(4, 21);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    auto first = group.dispatch_async(in.x, routing, {.weights = in.weights});
    auto second = group.dispatch_async(in.x, routing,
                                       {.weights = in.weights});  // two in a row without a combine
    const ep::Dispatched a = first.get(), b = second.get();
    expect_same("second dispatch", b.x.data, a.x.data, a.x.bytes(), 2);
    std::promise<void> computed;
    const Tensor y = expert_output_of(c, world.my_pe(), a);
    auto combined = group.combine_async(y, a.handle, {}, computed.get_future().share());
    EXPECT_EQ(combined.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout)
        << "ran before its event";
    computed.set_value();
    const ep::Combined got = combined.get();
    const auto wanted = expected_combine(c, world.my_pe());
    expect_same("combined", got.x.data, wanted.data(), wanted.size() * 2, 2);
    check_normal(group, c);  // a call without a stream waits for what is queued
  });
}

TEST(EpNormalMode, AsynchronousDispatchesByHandleRepeatTheLayout) {
  const EpCase c = small_case(3, 22);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx, {});
    const ep::Dispatched first = group.dispatch(in.x, routing, {.weights = in.weights});
    EXPECT_EQ(first.handle.received_rows(), first.rows);
    const ep::Dispatched again =
        group.dispatch_async(in.x, first.handle, {.weights = in.weights}).get();
    EXPECT_EQ(again.rows, first.rows);
    EXPECT_FALSE(again.topk_idx.has_value());
    expect_same("rows", again.x.data, first.x.data, first.x.bytes(), 2);
    const ep::ExpertMajorDispatched by_expert =
        group.dispatch_expert_major_async(in.x, routing).get();
    const ep::ExpertMajorDispatched cached =
        group.dispatch_expert_major_async(in.x, by_expert.handle).get();
    EXPECT_EQ(cached.rows, by_expert.rows);
    expect_same("rows by expert", cached.x.data, by_expert.x.data, by_expert.x.bytes(), 2);
  });
}

// Two groups, each with a thread of its own: the second one sends what the first one sums.
TEST(EpNormalMode, AsynchronousOperationsWaitForThoseOfOtherGroups) {
  const EpCase c = small_case(2, 23);
  run_case(c, [&](World& world, ep::Group& group) {
    ep::Group next(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx, ep::Launch{});
    const ep::Dispatched got = group.dispatch(in.x, routing, {.weights = in.weights});
    const Tensor y = expert_output_of(c, world.my_pe(), got);
    const Tensor sums = Tensor::empty(DataType::bfloat16, {in.x.shape[0], c.hidden});
    std::memset(sums.data, 0xff, sums.bytes());
    std::promise<void> computed;
    const auto summed =
        group.combine_async(y, got.handle, {.out = sums}, computed.get_future().share()).share();
    auto sending = next.dispatch_async(sums, next.route(in.topk_idx), {}, summed);
    EXPECT_EQ(sending.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout)
        << "ran before its sum";
    computed.set_value();
    const ep::Dispatched sent = sending.get();
    const auto wanted = expected_combine(c, world.my_pe());
    expect_same("sums", summed.get().x.data, wanted.data(), wanted.size() * 2, 2);
    const ep::Dispatched expected = next.dispatch(sums, next.route(in.topk_idx));
    expect_same("rows of sums", sent.x.data, expected.x.data, expected.x.bytes(), 2);

    // An operation that fails ends those that wait for it.
    const auto failed = group.combine_async(in.x, ep::Handle{}).share();
    auto after_failure = next.dispatch_async(sums, next.route(in.topk_idx), {}, failed);
    (void)next.masked();  // waits: this thread is the exception's last owner (ThreadSanitizer)
    expect_error(Code::invalid_argument, "handle is not of a dispatch",
                 [&] { after_failure.get(); });
    sync(world.team());
  });
}

TEST(EpFuture, IsAnyOperationOrNone) {
  EXPECT_FALSE(ep::Future().valid());
  EXPECT_FALSE(ep::Future(std::shared_future<int>()).valid());
  std::promise<int> promise;
  const ep::Future future = promise.get_future().share();
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(0)), std::future_status::timeout);
  promise.set_value(1);
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(0)), std::future_status::ready);
  future.get();
}

TEST(EpNormalMode, HeldResultsKeepTheirRowsAndBoundTheArea) {
  EpCase c = small_case(3, 23);
  c.load = Load::all_to_one;
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    std::vector<ep::Dispatched> held;
    Code code{};
    try {
      for (int i = 0; i < 100; ++i)
        held.push_back(group.dispatch(in.x, routing, {.worst_case_rows = c.ranks * c.max_tokens}));
    } catch (const Error& error) {
      code = error.code();
      expect_parts(error.what(), {"live_results"});
    }
    EXPECT_EQ(code, Code::exhausted);
    ASSERT_GE(held.size(), 2U);  // GroupOptions.live_results
    expect_same("held rows", held[1].x.data, held[0].x.data, *held[0].rows * c.hidden * 2, 2);
    held.clear();
    check_normal(group, c);  // all memory is free again
  });
}

TEST(EpNormalMode, ResultsOutliveTheirGroup) {
  const EpCase c = small_case(2, 25);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    ep::Dispatched held;
    if (world.my_pe() == 1)
      held = group.dispatch(in.x, group.route(in.topk_idx));
    else
      group.dispatch(in.x, group.route(in.topk_idx));
    const std::vector<std::byte> rows(held.x.as<std::byte>(),
                                      held.x.as<std::byte>() + held.x.bytes());
    const std::size_t before = world.heap().used();
    group.close();
    expect_error(Code::closed, "the group is closed",
                 [&] { group.dispatch(in.x, group.route(in.topk_idx)); });
    EXPECT_EQ(world.heap().used(), before) << "rank 1 holds a result";
    ep::Group next(world.team(), options_for(c));  // may not lie where the result lies
    next.dispatch(in.x, next.route(in.topk_idx));
    if (world.my_pe() == 1) {
      EXPECT_TRUE(std::equal(rows.begin(), rows.end(), held.x.as<std::byte>()));
      for (ep::Group* const by : {&group, &next}) {
        expect_error(Code::closed, "combine: the group is closed that made the handle (dispatch 1)",
                     [&] { by->combine(held.x, held.handle); });
        expect_error(Code::closed, "unpack: the group is closed that made the handle (dispatch 1)",
                     [&] { by->unpack(held, {}); });
        expect_error(Code::closed,
                     "dispatch: the group is closed that made the handle (dispatch 1)",
                     [&] { by->dispatch(in.x, held.handle); });
      }
    }
    held = {};
    next.close();  // releases both
    EXPECT_LT(world.heap().used(), before);
  });
}

TEST(EpNormalMode, TwoGroupsOnHalvesOfTheWorld) {
  const EpCase c = small_case(2, 27);
  run_threads(4, ep_settings(), [&](World& world) {
    const Team rows = world.team().split_2d(2).first;
    ep::Group group(rows, options_for(c));
    for (int i = 0; i < 5; ++i) check_normal(group, c);
    group.close();
  });
}

TEST(EpNormalMode, WarmupAndPreinitialize) {
  EpCase c = small_case(3, 31);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.preinitialize = true;
    ep::Group group(world.team(), options);
    group.warmup();
    EXPECT_EQ(group.statistics().dispatches, 0U);
    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::per_rank, true);
    group.close();
  });
}

}  // namespace
}  // namespace shoal::test
