// Random shapes against the naive reference (E1 to E4): ranks that are no power of two, any top-k up to 32, any hidden
// that is a multiple of 16 bytes, holes, idle members, one hot expert.
#include <gtest/gtest.h>

#include <random>

#include "shoal/world.hpp"
#include "support/ep_checks.hpp"

namespace shoal::test {
namespace {

EpCase random_case(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(random() % (high - low + 1));
  };
  EpCase c;
  c.seed = seed;
  c.ranks = static_cast<std::int32_t>(pick(1, 7));
  c.experts = c.ranks * static_cast<std::int32_t>(pick(1, 9));
  c.top_k = static_cast<std::int32_t>(pick(1, 4) == 4 ? 32 : pick(1, 12));
  c.hidden = 8 * pick(1, 160);
  c.max_tokens = pick(1, 40);
  c.load = static_cast<Load>(pick(0, 9) < 7 ? 0 : pick(0, 3));
  c.holes = static_cast<double>(pick(0, 4)) / 8;
  return c;
}

class EpProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpProperty, ::testing::Range<std::uint64_t>(1, 25));

TEST_P(EpProperty, RandomShapesMatchTheReference) {
  const EpCase c = random_case(GetParam());
  SCOPED_TRACE(c.describe());
  Settings settings;
  settings.symmetric_size = std::size_t{512} << 20;
  settings.timeout = std::chrono::seconds(30);
  run_threads(c.ranks, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    for (std::uint64_t round = 0; round < 3; ++round) {
      EpCase now = c;
      now.seed = c.seed + 1000 * round;
      check_normal(group, now, {.expert_alignment = static_cast<std::int32_t>(1 + round * 7)});
      check_low_latency(group, now, round % 2 ? ep::Reduction::exact : ep::Reduction::per_rank, round == 2);
      if (c.hidden % 16 == 0) check_low_latency_fp8(group, now, static_cast<ep::Quantize>(1 + round));
    }
  });
}

}  // namespace
}  // namespace shoal::test
