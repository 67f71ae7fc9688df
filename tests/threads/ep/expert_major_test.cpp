// SPDX-License-Identifier: Apache-2.0
// The expert-major layout of normal mode (Group::dispatch_expert_major) with PEs as threads, bit by
// bit against the naive reference.
// @traits slow
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "checks/ep/expert_major_cases.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "shoal/world.hpp"
#include "support/draws.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using Body = std::function<void(World&, ep::Group&)>;

void run_group(const EpCase& c, const ep::GroupOptions& options, const Body& body) {
  SCOPED_TRACE(c.describe());
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options);
    body(world, group);
    group.close();
  });
}

void run_case(const EpCase& c, const ExpertMajorCall& call) {
  run_group(c, expert_major_options(c, call), [&](World&, ep::Group& group) {
    for (std::uint64_t round = 0; round < 2; ++round) {
      EpCase now = c;
      now.seed += 100 * round;
      check_expert_major(group, now, call, host_tensors());
    }
  });
}

void run_cases(const std::vector<ExpertMajorCase>& cases) {
  for (const ExpertMajorCase& one : cases) run_case(one.c, one.call);
}

class EpExpertMajor : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpExpertMajor, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpExpertMajor, AlignmentsWithExactSizes) {
  run_cases(exact_size_cases(GetParam()));
}

TEST_P(EpExpertMajor, WorstCaseRowsCopyOutAndCachedHandles) {
  run_cases(worst_case_and_copy_out_cases(GetParam()));
}

TEST_P(EpExpertMajor, BiasesAndExpertOutputOfAnyKind) {
  run_cases(bias_and_output_cases(GetParam()));
  run_case(small_case(GetParam(), 7), {.dtype = DataType::float32, .alignment = 4});
}

TEST_P(EpExpertMajor, UnsummedRowsAreThoseOfTheExperts) {
  run_cases(unsummed_cases(GetParam()));
}

TEST_P(EpExpertMajor, Float8RowsCarryTheirScales) {
  run_cases(scale_cases(GetParam()));
}

TEST_P(EpExpertMajor, NoTokensIdleRanksAndOneHotExpert) {
  run_cases(uneven_cases(GetParam()));
}

TEST(EpExpertMajorMode, WhatUnsummedCombinesRefuse) {
  const EpCase c = small_case(2, 3);
  run_group(c, expert_major_options(c, {}), [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const std::int64_t tokens = c.tokens(world.my_pe());
    {
      const ep::Dispatched by_rank = group.dispatch(in.x, routing);
      expect_error(Code::invalid_argument, "CombineOptions.unsummed is for expert-major layouts",
                   [&] { group.combine(by_rank.x, by_rank.handle, {.unsummed = true}); });
    }
    const ep::ExpertMajorDispatched got = group.dispatch_expert_major(in.x, routing);
    const Tensor sums = Tensor::empty(DataType::bfloat16, {tokens, c.hidden});
    expect_error(Code::invalid_argument, "CombineOptions.bias with CombineOptions.unsummed",
                 [&] { group.combine(got.x, got.handle, {.bias = {sums}, .unsummed = true}); });
    expect_error(Code::invalid_argument, "CombineOptions.out is",
                 [&] { group.combine(got.x, got.handle, {.unsummed = true, .out = sums}); });
    // Inside a node each rank chooses for itself.
    const bool unsummed = world.my_pe() == 0;
    EXPECT_EQ(group.combine(got.x, got.handle, {.unsummed = unsummed}).x.rank, unsummed ? 3 : 2);
  });
}

TEST(EpExpertMajorMode, RandomShapes) {
  Draws draws(17);
  for (int round = 0; round < 24; ++round) {
    EpCase c;
    c.seed = static_cast<std::uint64_t>(draws.pick(1, 1 << 20));
    c.ranks = static_cast<std::int32_t>(draws.pick(1, 7));
    c.experts = c.ranks * static_cast<std::int32_t>(draws.pick(1, 9));
    c.top_k = static_cast<std::int32_t>(draws.pick(1, 4) == 4 ? 32 : draws.pick(1, 12));
    c.hidden = 8 * draws.pick(1, 60);
    c.max_tokens = draws.pick(1, 40);
    c.load = static_cast<Load>(draws.pick(0, 9) < 7 ? 0 : draws.pick(0, 3));
    c.holes = static_cast<double>(draws.pick(0, 4)) / 8;
    const bool tiles = draws.pick(0, 2) == 0;
    const std::int64_t alignment = tiles ? 128 * draws.pick(1, 3) : draws.pick(1, 20);
    run_case(c, {.scales = tiles ? draws.pick(1, 9) : 0,
                 .tiles = tiles,
                 .weights = draws.pick(0, 3) > 0,
                 .alignment = static_cast<std::int32_t>(alignment),
                 .worst_case = draws.pick(0, 1) == 1,
                 .copy_out = draws.pick(0, 3) == 0,
                 .biases = static_cast<int>(draws.pick(0, 2)),
                 .cached = static_cast<int>(draws.pick(0, 1))});
  }
}

TEST(EpExpertMajorMode, TilesThatDoNotFitAreRefused) {
  const EpCase c = small_case(2, 12);
  run_group(
      c, expert_major_options(c, {.scales = 3, .alignment = 128}),
      [&](World& world, ep::Group& group) {
        const std::int64_t tokens = c.tokens(world.my_pe());
        const Inputs in(c, world.my_pe());
        const Tensor words = Tensor::empty(DataType::int32, {tokens, 3}),
                     floats = Tensor::empty(DataType::float32, {tokens, 3});
        const ep::Routing routing = group.route(in.topk_idx);
        const auto refused = [&](const char* text, const auto& received, std::int64_t columns) {
          const Tensor tiles =
              Tensor::empty(DataType::uint8, {(received.x.shape[0] + 127) / 128, columns, 512});
          expect_error(Code::invalid_argument, text,
                       [&] { group.unpack(received, {.scales = tiles}); });
        };
        refused("are tiles and the alignment of the dispatch is 0; allowed: expert-major with",
                group.dispatch(in.x, routing, {.scales = words}), 3);
        refused("the alignment of the dispatch is 64; allowed: expert-major with multiples of 128",
                group.dispatch_expert_major(in.x, routing, {.scales = words, .alignment = 64}), 3);
        refused("hold scales of one byte, four to an int32; the scales are float32",
                group.dispatch_expert_major(in.x, routing, {.scales = floats, .alignment = 128}),
                3);
        const auto received =
            group.dispatch_expert_major(in.x, routing, {.scales = words, .alignment = 128});
        const std::int64_t tile_count = (received.x.shape[0] + 127) / 128;
        Tensor apart = Tensor::empty(DataType::uint8, {tile_count * 3 * 512 + 16});
        TensorView shifted(apart.as<std::byte>() + 2, DataType::uint8, {tile_count, 3, 512});
        expect_error(Code::invalid_argument, "tiles start at a multiple of 4 bytes",
                     [&] { group.unpack(received, {.scales = shifted}); });
        refused("UnpackOptions.scales is uint8",
                group.dispatch_expert_major(in.x, routing, {.scales = words, .alignment = 128}), 2);
      });
}

TEST(EpExpertMajorMode, RankMajorAndExpertMajorInOneGroupInTurn) {
  const EpCase c = small_case(4, 11);
  const ExpertMajorCall call{.alignment = 16, .cached = 1};
  ep::GroupOptions options = expert_major_options(c, call);
  run_group(c, options, [&](World& world, ep::Group& group) {
    for (std::uint64_t round = 0; round < 4; ++round) {
      EpCase now = c;
      now.seed += round;
      check_normal(group, now);
      check_expert_major(group, now, call, host_tensors());
    }
    // Both layouts of one routing are held at the same time and combined in reverse order.
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const ep::ExpertMajorDispatched expert_major =
        group.dispatch_expert_major(in.x, routing, {.weights = in.weights});
    const ep::Dispatched rank_major = group.dispatch(in.x, routing, {.weights = in.weights});
    const Tensor y = expert_output_of(c, world.my_pe(), rank_major);
    const auto wanted = expected_combine(c, world.my_pe());
    const ep::Combined sums = group.combine(expert_major.x, expert_major.handle);
    const ep::Combined combined = group.combine(y, rank_major.handle);
    expect_same("combined", combined.x.data, wanted.data(), wanted.size() * 2, 2);
    // Each top-k slot returns the row itself.
    for (std::int64_t t = 0; t < c.tokens(world.my_pe()); ++t)
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
        float sum = 0;
        for (std::int32_t k = 0; k < c.top_k; ++k)
          if (in.topk_idx.as<std::int64_t>()[t * c.top_k + k] >= 0)
            sum += float_of_bf16(c.value(world.my_pe(), t, ch));
        ASSERT_EQ(sums.x.as<std::uint16_t>()[t * c.hidden + ch], bf16_of(sum));
      }
    EXPECT_FALSE(rank_major.handle.expert_major());
  });
}

/// Requires the rows and numbers of a dispatch in both layouts to be those of a rank-major one that
/// is expanded.
void check_both_layouts(World& world, ep::Group& group, const EpCase& c) {
  const Inputs in(c, world.my_pe());
  const ep::Routing routing = group.route(in.topk_idx);
  ep::detail::AnyDispatchOptions options;
  options.weights = in.weights;
  options.expert_major = options.also_rank_major = true;
  const ep::detail::AnyDispatched both = ep::detail::dispatch(group, in.x, routing, options);
  const ep::Dispatched by_rank = group.dispatch(in.x, routing, {.weights = in.weights});
  const std::int64_t rows = by_rank.x.shape[0], copies = both.x.shape[0];
  const auto experts = static_cast<std::int64_t>(both.tokens_per_expert.size());
  Tensor counts = Tensor::empty(DataType::int32, {experts}),
         ends = Tensor::empty(DataType::int32, {experts}),
         out = Tensor::empty(DataType::bfloat16, {copies, c.hidden}),
         weights = Tensor::empty(DataType::float32, {copies}),
         topk_rows = Tensor::empty(DataType::int32, {rows, c.top_k});
  std::int32_t end = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    counts.as<std::int32_t>()[e] =
        static_cast<std::int32_t>(both.tokens_per_expert[static_cast<std::size_t>(e)]);
    ends.as<std::int32_t>()[e] = end += counts.as<std::int32_t>()[e];
  }
  group.expand({.x = by_rank.x,
                .topk_idx = *by_rank.topk_idx,
                .tokens_per_expert = counts,
                .expert_ends = ends,
                .weights = *by_rank.topk_weights,
                .topk_rows = topk_rows,
                .out = out,
                .out_weights = weights});
  ASSERT_EQ(both.topk_rows.shape[0], rows);
  expect_same("x", both.x.data, out.data, out.bytes(), 2);
  expect_same("weights", both.topk_weights.data, weights.data, weights.bytes(), 4);
  expect_same("topk_rows", both.topk_rows.data, topk_rows.data, topk_rows.bytes(), 4);

  const ep::Combined sums = group.combine(both.x, both.rank_major, {.topk_rows = both.topk_rows});
  const ep::Combined wanted = group.combine(out, by_rank.handle, {.topk_rows = topk_rows});
  expect_same("sums", sums.x.data, wanted.x.data, wanted.x.bytes(), 2);

  Tensor other = Tensor::empty(in.x.dtype, {in.x.shape[0], in.x.shape[1]});
  std::memcpy(other.data, in.x.data, in.x.bytes());
  std::reverse(other.as<std::uint16_t>(), other.as<std::uint16_t>() + other.size());
  const ep::detail::AnyDispatched again = ep::detail::dispatch(group, other, both.handle, options);
  const ep::Dispatched plain = group.dispatch(other, by_rank.handle, {.weights = in.weights});
  group.expand({.x = plain.x,
                .topk_idx = *by_rank.topk_idx,
                .tokens_per_expert = counts,
                .expert_ends = ends,
                .topk_rows = topk_rows,
                .out = out});
  expect_same("x of the handle", again.x.data, out.data, out.bytes(), 2);
}

TEST(EpExpertMajorMode, AlsoRankMajorNumbersTheRowsOfEachSum) {
  Draws draws(23);
  for (int round = 0; round < 16; ++round) {
    EpCase c;
    c.seed = static_cast<std::uint64_t>(draws.pick(1, 1 << 20));
    c.ranks = static_cast<std::int32_t>(draws.pick(1, 6));
    c.experts = c.ranks * static_cast<std::int32_t>(draws.pick(1, 6));
    c.top_k = static_cast<std::int32_t>(draws.pick(1, std::min(8, c.experts)));
    c.hidden = 8 * draws.pick(1, 40);
    c.max_tokens = draws.pick(1, 40);
    ep::GroupOptions options = options_for(c);
    options.max_tokens = c.max_tokens * c.top_k;  // room for a row of every expert
    options.live_results = 4;
    run_group(c, options, [&](World& world, ep::Group& group) {
      EXPECT_TRUE(ep::detail::can_be_also_rank_major(group));
      check_both_layouts(world, group, c);
    });
  }
}

/// Code and text of what `call` throws.
std::pair<Code, std::string> thrown(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Code{}, "nothing was thrown"};
}

TEST(EpExpertMajorMode, RanksThatDifferAreReported) {
  const EpCase c = small_case(3, 13);
  run_group(c, expert_major_options(c, {.alignment = 16}), [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const auto [one, text] = thrown([&] {
      if (world.my_pe() == 1)
        group.dispatch_expert_major(in.x, routing);
      else
        group.dispatch(in.x, routing);
    });
    EXPECT_EQ(one, Code::mismatch) << text;
    expect_parts(text, {"expert_major with expert_alignment 1"});
    const auto [two, other] = thrown([&] {
      group.dispatch_expert_major(in.x, routing, {.alignment = world.my_pe() == 2 ? 16 : 8});
    });
    EXPECT_EQ(two, Code::mismatch) << other;
    const auto [three, sums] = thrown([&] {
      ep::detail::AnyDispatchOptions options;
      options.expert_major = true;
      options.also_rank_major = world.my_pe() == 1;
      (void)ep::detail::dispatch(group, in.x, routing, options);
    });
    EXPECT_EQ(three, Code::mismatch) << sums;
    expect_parts(sums, {"expert_alignment 1, with sums by rank"});
    check_expert_major(group, c, {.alignment = 16}, host_tensors());  // the group stays usable
  });
}

TEST(EpExpertMajorMode, BadArgumentsLeaveTheGroupUsable) {
  const EpCase c = small_case(2, 15);
  const ExpertMajorCall call{.alignment = 4};
  run_group(c, expert_major_options(c, call), [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const std::int64_t most =
        2 * group.options().max_tokens * 3 + 3 * 3;  // ranks * max_tokens * local experts + gaps
    const auto [limit, text] = thrown([&] {
      group.dispatch_expert_major(in.x, routing, {.alignment = 4, .worst_case_rows = most + 1});
    });
    EXPECT_EQ(limit, Code::invalid_argument) << text;
    expect_parts(text, {std::to_string(most)});
    const ep::Dispatched rank_major = group.dispatch(in.x, routing);
    EXPECT_EQ(thrown([&] { group.dispatch_expert_major(in.x, rank_major.handle); }).first,
              Code::invalid_argument);
    const ep::ExpertMajorDispatched expert_major =
        group.dispatch_expert_major(in.x, routing, {.weights = in.weights, .alignment = 4});
    Tensor wide = Tensor::empty(DataType::float32, {*expert_major.rows, c.top_k});
    EXPECT_EQ(thrown([&] {
                group.combine(expert_major.x, expert_major.handle, {.weights = wide});
              }).first,
              Code::invalid_argument);
    EXPECT_EQ(thrown([&] { group.combine(rank_major.x, expert_major.handle); }).first,
              Code::invalid_argument);
    group.combine(expert_major.x, expert_major.handle, {.weights = *expert_major.topk_weights});
    check_expert_major(group, c, call, host_tensors());
  });
}

TEST(EpExpertMajorMode, ResultsThatDoNotFitAreRefusedOnAllRanks) {
  // All top-k slots name experts of the last rank: three times the rows of the rank-major layout.
  const EpCase c{
      .ranks = 3, .experts = 9, .top_k = 3, .hidden = 1024, .max_tokens = 16, .seed = 19};
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  run_group(c, options, [&](World&, ep::Group& group) {
    const std::int64_t tokens = c.max_tokens;
    Tensor topk = Tensor::empty(DataType::int64, {tokens, 3}),
           x = Tensor::empty(DataType::bfloat16, {tokens, c.hidden});
    std::memset(x.data, 0, x.bytes());
    for (std::int64_t i = 0; i < 3 * tokens; ++i) topk.as<std::int64_t>()[i] = 6 + i % 3;
    const ep::Routing routing = group.route(topk);
    for (int round = 0; round < 2; ++round) {
      const auto [code, text] = thrown([&] { group.dispatch_expert_major(x, routing); });
      EXPECT_EQ(code, Code::exhausted) << text;
      expect_parts(text, {"PE 2 is sent 144 rows", "GroupOptions.max_tokens", "live_results"});
      const auto [small, why] =
          thrown([&] { group.dispatch_expert_major(x, routing, {.worst_case_rows = 47}); });
      EXPECT_EQ(small, Code::exhausted) << why;
      expect_parts(why, {"allows 47 rows"});
      // The whole receive area holds three times a rank-major result.
      ep::ExpertMajorDispatched got =
          group.dispatch_expert_major(x, routing, {.worst_case_rows = 144});
      EXPECT_EQ(got.x.shape[0], 144);
      const auto [full, held] =
          thrown([&] { group.dispatch_expert_major(x, routing, {.worst_case_rows = 144}); });
      EXPECT_EQ(full, Code::exhausted) << held;
      expect_parts(held, {"live_results"});
      // Expert output in place can be fetched; there is no room to stage so many rows.
      const Tensor outside = Tensor::empty(DataType::bfloat16, {144, c.hidden});
      const auto [staging, wide] = thrown([&] { group.combine(outside, got.handle); });
      EXPECT_EQ(staging, Code::invalid_argument) << wide;
      group.combine(got.x, got.handle);
      got = {};
      check_normal(group, c);
    }
  });
}

TEST(EpExpertMajorMode, SmallRowsMakeRoomForMore) {
  // Float8 rows in a group created for bfloat16 rows: about twice as many fit, including gaps.
  const EpCase c{.ranks = 2,
                 .experts = 4,
                 .top_k = 2,
                 .hidden = 1024,
                 .max_tokens = 32,
                 .seed = 21,
                 .holes = 0};
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  run_group(c, options, [&](World&, ep::Group& group) {
    Tensor topk = Tensor::empty(DataType::int64, {c.max_tokens, 2});
    Tensor x = Tensor::empty(DataType::float8_e4m3, {c.max_tokens, c.hidden});
    std::memset(x.data, 0, x.bytes());
    for (std::int64_t i = 0; i < 2 * c.max_tokens; ++i) topk.as<std::int64_t>()[i] = i % 2;
    const ep::Routing routing = group.route(topk);
    const ep::ExpertMajorDispatched got = group.dispatch_expert_major(x, routing);
    EXPECT_EQ(got.rows, group.team().my_pe() == 0 ? 128 : 0);  // 64 rows in the rank-major layout
  });
}

}  // namespace
}  // namespace shoal::test
