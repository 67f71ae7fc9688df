// SPDX-License-Identifier: Apache-2.0
// Random shapes against the naive reference: numbers of ranks that are no power of two, any number
// and spread of experts, any top-k, any hidden that is a multiple of 16 bytes, holes, idle
// ranks, one hot expert. Also shapes with one size at its limit.
// @traits slow
#include <gtest/gtest.h>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/formats.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/draws.hpp"

namespace shoal::test {
namespace {

EpCase random_case(std::uint64_t seed) {
  Draws draws(seed);
  EpCase c;
  c.seed = seed;
  c.ranks = static_cast<std::int32_t>(draws.pick(1, 7));
  c.experts = static_cast<std::int32_t>(draws.pick(1, 9 * c.ranks));
  if (draws.pick(0, 2) == 0) {
    for (std::int32_t rank = 0; rank < c.ranks; ++rank)
      c.first_expert.push_back(
          rank == 0 ? 0 : static_cast<std::int32_t>(draws.pick(c.first_expert.back(), c.experts)));
  }
  c.top_k = static_cast<std::int32_t>(draws.pick(1, 4) == 4 ? 32 : draws.pick(1, 12));
  c.hidden = 8 * draws.pick(1, 160);
  c.max_tokens = draws.pick(1, 40);
  c.load = static_cast<Load>(draws.pick(0, 9) < 7 ? 0 : draws.pick(0, 3));
  c.holes = static_cast<double>(draws.pick(0, 4)) / 8;
  return c;
}

void check_rounds(const EpCase& c, std::uint64_t rounds) {
  SCOPED_TRACE(c.describe());
  Settings settings;
  settings.symmetric_size = std::size_t{512} << 20;
  settings.timeout = std::chrono::seconds(30);
  run_threads(c.ranks, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    for (std::uint64_t round = 0; round < rounds; ++round) {
      EpCase now = c;
      now.seed = c.seed + 1000 * round;
      check_normal(group, now, {.expert_alignment = static_cast<std::int32_t>(1 + round * 7)});
      if (round == 1) check_normal_formats(group, now);
      for (const ep::Quantize quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8})
        if (c.hidden % ep::detail::hidden_multiple(quantize) == 0)
          check_normal(group, now, {}, quantize);
      check_low_latency(group, now, round % 2 ? ep::Reduction::exact : ep::Reduction::per_rank,
                        round == 2);
      const std::vector<ep::Quantize> all = quantizations_for(c.hidden);
      if (all.size() > 1)
        check_low_latency_quantized(group, now, all[1 + round % (all.size() - 1)]);
    }
    check_low_latency_unsummed(group, c);
    ExpertMajorCall call{.alignment = static_cast<std::int32_t>(1 + c.seed % 9)};
    ep::Group blocks(world.team(), expert_major_options(c, call));
    check_expert_major(blocks, c, call, host_tensors());
    call.unsummed = true;
    check_expert_major(blocks, c, call, host_tensors());
    call.unsummed = false;
    if (c.hidden % 16 == 0) call.combine_quantize = ep::Quantize::fp8;
    check_expert_major(blocks, c, call, host_tensors());
  });
}

class EpProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpProperty, ::testing::Range<std::uint64_t>(1, 25));

TEST_P(EpProperty, RandomShapesMatchTheReference) {
  check_rounds(random_case(GetParam()), 3);
}

// The sizes for which tests/gpu compares both backends (checks/ep/draws.hpp); the other dimensions
// are small.

TEST(EpPropertyLimits, ManyExperts) {
  check_rounds(
      {.ranks = 8, .experts = 1024, .top_k = 8, .hidden = 264, .max_tokens = 3, .seed = 51}, 1);
  check_rounds({.ranks = 1,
                .experts = 1024,
                .top_k = 32,
                .hidden = 64,
                .max_tokens = 9,
                .seed = 52,
                .full = true},
               2);
}

TEST(EpPropertyLimits, LongRows) {
  check_rounds({.ranks = 3, .experts = 6, .top_k = 3, .hidden = 16384, .max_tokens = 3, .seed = 53},
               1);
  check_rounds({.ranks = 2,
                .experts = 4,
                .top_k = 2,
                .hidden = 16376,
                .max_tokens = 3,
                .seed = 54,
                .full = true},
               1);
}

TEST(EpPropertyLimits, ManyTokens) {
  check_rounds({.ranks = 2,
                .experts = 4,
                .top_k = 2,
                .hidden = 16,
                .max_tokens = 8192,
                .seed = 55,
                .full = true},
               1);
  EpCase hot{.ranks = 8,
             .experts = 8,
             .top_k = 2,
             .hidden = 8,
             .max_tokens = 2048,
             .seed = 56,
             .load = Load::all_to_one};
  hot.full = true;
  check_rounds(hot, 1);
}

TEST(EpPropertyLimits, ManyTopkSlotsAndNoTokens) {
  check_rounds({.ranks = 8,
                .experts = 64,
                .top_k = 32,
                .hidden = 136,
                .max_tokens = 6,
                .seed = 57,
                .full = true},
               2);
  check_rounds({.ranks = 8,
                .experts = 1024,
                .top_k = 32,
                .hidden = 16,
                .max_tokens = 2,
                .seed = 58,
                .load = Load::none},
               1);
}

}  // namespace
}  // namespace shoal::test
