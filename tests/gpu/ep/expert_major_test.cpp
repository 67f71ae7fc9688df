// SPDX-License-Identifier: Apache-2.0
// The expert-major layout of normal mode (Group::dispatch_expert_major) on GPUs, bit by bit against
// the naive reference, alternating with rank-major calls.
#include <gtest/gtest.h>

#include "checks/ep/expert_major_cases.hpp"
#include "checks/ep/gpu_normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/detail/ep_layouts.hpp"
#include "support/cuda/graph.hpp"
#include "support/draws.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

void run_group(const EpCase& c, const ep::GroupOptions& options,
               const std::function<void(GpuGroup&)>& body) {
  SCOPED_TRACE(c.describe());
  const std::size_t bytes = size_hint(options, c.ranks, DeviceKind::cuda).total();
  run_threads(c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, options);
    body(group);
  });
}

/// Two rounds use both halves of the notice buffers. A rank-major round precedes each and leaves
/// its bytes in the memory of the result.
void run_case(const EpCase& c, const ExpertMajorCall& call) {
  ep::GroupOptions options = expert_major_options(c, call);
  options.max_scales = std::max<std::int64_t>(call.scales, 1);
  run_group(c, options, [&](GpuGroup& group) {
    for (std::uint64_t round = 0; round < 2; ++round) {
      EpCase now = c;
      now.seed += 100 * round;
      GpuRound(group, now, {.dtype = call.dtype}).run();
      check_expert_major(group.group, now, call, mover(group));
    }
  });
}

void run_cases(const std::vector<ExpertMajorCase>& cases) {
  for (const ExpertMajorCase& one : cases) run_case(one.c, one.call);
}

class EpGpuExpertMajor : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuExpertMajor, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpGpuExpertMajor, SmallAlignmentsWithExactSizes) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(exact_size_cases(GetParam()));
}

TEST_P(EpGpuExpertMajor, SmallUnevenExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  std::vector<EpCase> cases{uneven_case(GetParam(), 41)};
  if (GetParam() > 2) cases.push_back(gap_case(GetParam(), 42));
  for (const EpCase& c : cases) {
    run_case(c, {.alignment = 8, .cached = 1});
    run_case(c, {.alignment = 1, .worst_case = true});
  }
}

TEST_P(EpGpuExpertMajor, SmallWorstCaseRowsCopyOutAndCachedHandles) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(worst_case_and_copy_out_cases(GetParam()));
}

TEST_P(EpGpuExpertMajor, SmallBiasesAndExpertOutputOfAnyKind) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(bias_and_output_cases(GetParam()));
}

TEST_P(EpGpuExpertMajor, SmallUnsummedRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(unsummed_cases(GetParam()));
}

TEST_P(EpGpuExpertMajor, SmallFloat8RowsCarryTheirScales) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(scale_cases(GetParam()));
  EpCase c = small_case(GetParam(), 9);
  c.hidden = 256;
  run_case(c, {.dtype = DataType::float8_e4m3,
               .scales = 8,
               .alignment = 4});  // scales that are copied in bulk
}

TEST_P(EpGpuExpertMajor, SmallNoTokensIdleRanksAndOneHotExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_cases(uneven_cases(GetParam()));
}

class EpGpuExpertMajorProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuExpertMajorProperty, ::testing::Range<std::uint64_t>(1, 25));

TEST_P(EpGpuExpertMajorProperty, RandomShapesMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  Draws draws(GetParam() * 104729);
  EpCase c;
  c.seed = GetParam();
  c.ranks = static_cast<std::int32_t>(draws.pick(1, 8));
  c.experts = c.ranks * static_cast<std::int32_t>(draws.pick(0, 1) == 0 ? draws.pick(1, 9)
                                                                        : draws.pick(1, 128));
  c.top_k = static_cast<std::int32_t>(draws.pick(1, 4) == 4 ? 32 : draws.pick(1, 12));
  c.hidden = 8 * (draws.pick(0, 3) > 0 ? draws.pick(1, 60) : draws.pick(1, 600));
  c.max_tokens = draws.pick(0, 3) > 0
                     ? draws.pick(1, 40)
                     : draws.pick(1, 200);  // numbering takes more than one step of a warp
  c.load = static_cast<Load>(draws.pick(0, 9) < 7 ? 0 : draws.pick(0, 3));
  c.holes = static_cast<double>(draws.pick(0, 4)) / 8;
  run_case(c, {.weights = draws.pick(0, 3) > 0,
               .alignment = static_cast<std::int32_t>(draws.pick(1, 20)),
               .worst_case = draws.pick(0, 1) == 1,
               .copy_out = draws.pick(0, 3) == 0,
               .biases = static_cast<int>(draws.pick(0, 2)),
               .cached = static_cast<int>(draws.pick(0, 1)),
               .sms = static_cast<std::int32_t>(draws.pick(0, 10))});
}

TEST_P(EpGpuExpertMajor, SmallManySlots) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t top_k : {33, 64, 128}) {
    EpCase c = small_case(GetParam(), 50 + static_cast<std::uint64_t>(top_k));
    c.top_k = top_k;
    c.experts = GetParam() * 40;
    run_case(c, {.alignment = 4, .biases = 1, .cached = 1});
    run_case(c, {.dtype = DataType::float8_e4m3, .scales = 4, .alignment = 1});
  }
}

TEST(EpGpuExpertMajorLarge, ManyTokensManyExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_case({.ranks = 4,
            .experts = 256,
            .top_k = 8,
            .hidden = 64,
            .max_tokens = 4096,
            .seed = 3,
            .holes = 0.02},
           {.alignment = 128, .cached = 1});
}

TEST(EpGpuExpertMajor, SmallBothLayoutsOfOneRoutingAtOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 11);
  run_group(c, expert_major_options(c, {.alignment = 16}), [&](GpuGroup& group) {
    GpuRound round(group, c, {});
    const ep::Routing routing = round.route();
    const ep::DispatchOptions given = round.dispatch_options();
    const ep::ExpertMajorDispatched expert_major = group.group.dispatch_expert_major(
        round.x(), routing,
        {.weights = given.weights, .scales = given.scales, .launch = given.launch});
    {
      const ep::Dispatched rank_major = round.dispatch(routing);
      round.check(rank_major);
    }  // two results can be held
    const Tensor rows = group.tensors.download(expert_major.x);
    const ep::ExpertMajorDispatched again =
        group.group.dispatch_expert_major(round.x(), expert_major.handle);
    const Tensor same = group.tensors.download(again.x);
    ASSERT_EQ(rows.bytes(), same.bytes());
    expect_same("rows of the cached handle", same.data, rows.data, rows.bytes(), 2);
  });
}

TEST(EpGpuExpertMajor, SmallRanksThatDifferAreReported) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 13);
  run_group(c, expert_major_options(c, {.alignment = 16}), [&](GpuGroup& group) {
    GpuRound round(group, c, {});
    const ep::Routing routing = round.route();
    for (const bool alignment : {false, true}) {
      ep::detail::AnyDispatchOptions options{round.dispatch_options(), alignment || group.me == 1};
      options.expert_alignment = alignment && group.me == 2 ? 16 : 8;
      expect_error(Code::mismatch, "",
                   [&] { (void)ep::detail::dispatch(group.group, round.x(), routing, options); });
    }
    check_expert_major(group.group, c, {.alignment = 16}, mover(group));  // the group stays usable
  });
}

TEST(EpGpuExpertMajor, SmallResultsThatDoNotFitAreRefusedOnAllRanks) {
  SHOAL_SKIP_WITHOUT_GPU();
  // All top-k slots name experts of the last rank: three times the rows of the rank-major layout.
  const EpCase c{
      .ranks = 3, .experts = 9, .top_k = 3, .hidden = 1024, .max_tokens = 16, .seed = 19};
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  run_group(c, options, [&](GpuGroup& group) {
    const std::int64_t tokens = c.max_tokens;
    Tensor host = Tensor::empty(DataType::int64, {tokens, 3});
    for (std::int64_t i = 0; i < 3 * tokens; ++i) host.as<std::int64_t>()[i] = 6 + i % 3;
    const Tensor topk = group.tensors.upload(host),
                 x = group.tensors.empty(DataType::bfloat16, {tokens, c.hidden});
    const ep::Routing routing = group.group.route(topk);
    for (const std::int64_t worst : {0, 47}) {
      expect_error(Code::exhausted, {"PE 2 is sent 144 rows", "GroupOptions.max_tokens"}, [&] {
        const ep::ExpertMajorDispatched got =
            group.group.dispatch_expert_major(x, routing, {.worst_case_rows = worst});
        group.group.synchronize();
      });
    }
    GpuRound(group, c, {}).run();
  });
}

TEST(EpGpuExpertMajor, SmallCapturedWithRouteAndReplayedWithOtherTokens) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{.ranks = 4, .experts = 16, .top_k = 5, .hidden = 264, .max_tokens = 40, .seed = 1};
  const std::int64_t worst = c.ranks * c.max_tokens * 4 + 4 * 15;
  run_group(c, expert_major_options(c, {.alignment = 16}), [&](GpuGroup& group) {
    DeviceTensors& tensors = group.tensors;
    CUstream_st* const stream = tensors.new_stream();
    const std::int64_t tokens = c.max_tokens;
    const auto topk_of = [&](std::uint64_t seed) {
      EpCase now = c;
      now.seed = seed;
      auto topk_idx = now.topk(group.me);
      topk_idx.resize(tokens * c.top_k, -1);
      Tensor topk = Tensor::empty(DataType::int64, {tokens, c.top_k});
      std::copy(topk_idx.begin(), topk_idx.end(), topk.as<std::int64_t>());
      return topk;
    };
    Tensor rows = Tensor::empty(DataType::bfloat16, {tokens, c.hidden});
    for (std::int64_t i = 0; i < rows.size(); ++i)
      rows.as<std::uint16_t>()[i] = bf16_of(static_cast<float>(i % 251 - 125) / 64);
    const Tensor x = tensors.upload(rows), topk = tensors.upload(topk_of(1));
    const Tensor out = tensors.empty(DataType::bfloat16, {tokens, c.hidden});
    const ep::ExpertMajorOptions options{
        .alignment = 16, .worst_case_rows = worst, .launch = {.stream = stream}};
    group.group.warmup();
    tensors.settle();

    ep::Routing routing;
    ep::ExpertMajorDispatched got;
    const Graph graph(stream, [&] {
      routing = group.group.route(topk, {.stream = stream});
      got = group.group.dispatch_expert_major(x, routing, options);
      group.group.combine(got.x, got.handle, {.out = out, .launch = {.stream = stream}});
    });
    sync(group.world.team());
    for (std::uint64_t replay = 1; replay <= 10; ++replay) {
      EpCase now = c;
      now.seed = replay;
      const Tensor topk_idx = topk_of(replay);
      tensors.write(topk, topk_idx);
      tensors.poison(out);
      graph.replay();
      const Tensor sums = tensors.download(out), idx = tensors.download(*got.topk_idx);
      const ExpectedExpertMajor wanted = expected_expert_major(now, group.me, 16);
      for (std::int64_t i = 0; i < worst; ++i)
        ASSERT_EQ(idx.as<std::int64_t>()[i], i < wanted.rows() ? wanted.topk_idx[i] : -1) << i;
      for (std::int64_t t = 0; t < tokens; ++t) {
        for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
          float sum = 0;  // each top-k slot returns the row itself
          for (std::int32_t k = 0; k < c.top_k; ++k)
            if (topk_idx.as<std::int64_t>()[t * c.top_k + k] >= 0)
              sum += float_of_bf16(rows.as<std::uint16_t>()[t * c.hidden + ch]);
          ASSERT_EQ(sums.as<std::uint16_t>()[t * c.hidden + ch], bf16_of(sum)) << t << ", " << ch;
        }
      }
      if (replay % 4 == 0) check_expert_major(group.group, now, {.alignment = 16}, mover(group));
    }
    group.group.synchronize();
  });
}

}  // namespace
}  // namespace shoal::test
