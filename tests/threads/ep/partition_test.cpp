// SPDX-License-Identifier: Apache-2.0
// Groups whose ranks hold different numbers of experts, with PEs as threads, in every mode and on
// one and two emulated nodes, bit by bit against the naive reference. The shapes of present models.
// @traits slow
#include <gtest/gtest.h>

#include <cstring>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/normal.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

void run_every_mode(const EpCase& c) {
  SCOPED_TRACE(c.describe());
  Settings settings = ep_settings();
  settings.symmetric_size = std::size_t{1} << 30;
  settings.node_size = c.ranks / c.nodes;
  run_threads(c.ranks, settings, [&](World& world) {
    const std::int32_t me = world.my_pe();
    ep::Group group(world.team(), options_for(c));
    EXPECT_EQ(group.local_experts(), c.experts_of(me));
    EXPECT_EQ(group.max_local_experts(), c.local_experts());
    for (std::int32_t rank = 0; rank <= c.ranks; ++rank)
      EXPECT_EQ(group.first_expert()[static_cast<std::size_t>(rank)], c.first_of(rank));
    check_normal(group, c, {.expert_alignment = 4});
    for (const ep::Reduction reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
      for (const bool zero_copy : {false, true})
        check_low_latency(group, reseeded(c, zero_copy ? 7 : 0), reduction, zero_copy, zero_copy);
    check_low_latency_formats(group, c);
    group.close();

    const ExpertMajorCall call{.alignment = 8, .cached = 1};
    ep::Group blocks(world.team(), expert_major_options(c, call));
    check_expert_major(blocks, c, call, host_tensors());
    const ExpertMajorCall worst{.alignment = 8, .worst_case = true};
    check_expert_major(blocks, reseeded(c, 3), worst, host_tensors());
    blocks.close();
  });
}

class EpPartition : public ::testing::TestWithParam<std::int32_t> {
 protected:
  EpCase on_four_ranks(std::int32_t experts, std::vector<std::int32_t> first_expert = {}) const {
    EpCase c{.ranks = 4, .experts = experts, .top_k = 4, .hidden = 192, .max_tokens = 20};
    c.nodes = GetParam();
    c.first_expert = std::move(first_expert);
    return c;
  }
};
INSTANTIATE_TEST_SUITE_P(Nodes, EpPartition, ::testing::Values(1, 2, 4));

TEST_P(EpPartition, TenExpertsOnFourRanks) {
  run_every_mode(on_four_ranks(10));
}

TEST_P(EpPartition, ThreeExpertsOnFourRanks) {
  run_every_mode(on_four_ranks(3));
}

TEST_P(EpPartition, ExpertsWhereTheCallerWantsThem) {
  run_every_mode(on_four_ranks(10, {0, 1, 6, 7}));
  run_every_mode(on_four_ranks(10, {0, 1, 6, 7, 10}));
}

TEST_P(EpPartition, RanksWithoutExpertsAtBothEndsAndInBetween) {
  run_every_mode(on_four_ranks(5, {0, 0, 5, 5}));
  run_every_mode(on_four_ranks(9, {0, 4, 4, 9, 9}));
}

TEST_P(EpPartition, OneRankHoldsAllExperts) {
  run_every_mode(on_four_ranks(6, {0, 0, 0, 6}));
}

TEST_P(EpPartition, AllTokensGoToOneExpertOrNone) {
  EpCase c = on_four_ranks(10);
  for (const Load load : {Load::all_to_one, Load::none, Load::some_idle}) {
    c.load = load;
    run_every_mode(c);
  }
}

TEST_P(EpPartition, AnIdBesideMinusOneMeansNoExpert) {
  EpCase c = on_four_ranks(10);
  c.holes = 0.4;
  for (const std::int32_t none : {10, 2'147'483'647}) {
    c.none_expert = none;
    run_every_mode(c);
  }
}

struct Model {
  std::int64_t hidden;
  std::int32_t top_k, experts, ranks;
};
void PrintTo(const Model& model, std::ostream* out) {
  *out << model.hidden << " channels, top-" << model.top_k << " of " << model.experts << " on "
       << model.ranks << " ranks";
}

/// Shapes of published models, on numbers of ranks that divide their experts or do not.
class EpModels : public ::testing::TestWithParam<Model> {};
INSTANTIATE_TEST_SUITE_P(Shapes, EpModels,
                         ::testing::Values(Model{7168, 8, 256, 6}, Model{2880, 4, 128, 4},
                                           Model{2880, 4, 128, 24}, Model{1024, 22, 512, 6},
                                           Model{2688, 6, 128, 3}, Model{3584, 16, 896, 6},
                                           Model{4096, 8, 128, 6}, Model{6144, 8, 160, 6},
                                           Model{5120, 1, 16, 6}, Model{2048, 10, 512, 6}));

TEST_P(EpModels, EveryModeMatchesTheReference) {
  const Model model = GetParam();
  EpCase c{.ranks = model.ranks,
           .experts = model.experts,
           .top_k = model.top_k,
           .hidden = model.hidden,
           .max_tokens = 2,
           .full = true};
  run_every_mode(c);
  if (model.ranks % 2 != 0) return;
  c.nodes = 2;
  run_every_mode(reseeded(c, 1));
}

TEST(EpFirstExpert, RanksThatDisagreeFailTogether) {
  run_threads(3, ep_settings(), [](World& world) {
    EpCase c = small_case(3);
    c.first_expert = {0, world.my_pe() == 2 ? 4 : 3, 6};
    expect_error(Code::mismatch, "first_expert[1] differs between ranks: 3 on PE 0, 4 on PE 2",
                 [&] { ep::Group(world.team(), options_for(c)); });
  });
}

TEST(EpFirstExpert, TheDefaultWrittenOutIsTheSame) {
  run_threads(3, ep_settings(), [](World& world) {
    EpCase c = small_case(3);
    if (world.my_pe() == 1) c.first_expert = {0, 3, 6, 9};
    ep::Group group(world.team(), options_for(c));
    check_normal(group, c);
    group.close();
  });
}

/// Every mode takes top-128 and 4096 experts on a rank; the last case has two nodes.
TEST(EpLargestTopK, EveryModeMatchesTheReference) {
  EpCase c{.experts = 4096, .top_k = ep::kMaxTopK, .hidden = 128, .max_tokens = 3, .full = true};
  run_every_mode(c);
  c.ranks = 3;
  run_every_mode(c);  // 1366, 1365 and 1365 experts
  c.first_expert = {0, 0, 4096};
  run_every_mode(c);  // all on one rank
  c = {.ranks = 4, .experts = 130, .top_k = ep::kMaxTopK, .hidden = 128, .max_tokens = 3};
  c.nodes = 2;
  run_every_mode(c);
}

TEST(EpNoneExpert, OtherIdsAreRefused) {
  run_threads(2, ep_settings(), [](World& world) {
    EpCase c = small_case(2);
    for (const std::int32_t none : {5, 0, -2}) {
      c.none_expert = none;
      expect_error(Code::invalid_argument,
                   ("none_expert is " + std::to_string(none) +
                    "; allowed: -1, or 6 (GroupOptions.experts) and above")
                       .c_str(),
                   [&] { ep::Group(world.team(), options_for(c)); });
    }
    c.none_expert = world.my_pe() == 0 ? 6 : 7;
    expect_error(Code::mismatch, "none_expert differs between ranks: 6 on PE 0, 7 on PE 1",
                 [&] { ep::Group(world.team(), options_for(c)); });
    c.none_expert = 6;
    ep::Group group(world.team(), options_for(c));
    std::vector<std::int64_t> topk_idx = {0, 6, -1, 7};
    const ConstTensorView given(topk_idx.data(), DataType::int64, {1, 4});
    expect_error(Code::invalid_argument,
                 "topk_idx[0, 3] is 7; allowed: 0 to 5, or -1 or 6 for none",
                 [&] { (void)group.route(given); });
    topk_idx[3] = 6;  // it may stand more than once in a row
    const ep::Routing routing = group.route(given);
    EXPECT_EQ(routing.topk_idx.as<std::int64_t>()[1], -1);
    EXPECT_EQ(routing.counts->tokens_per_rank[0], 1);
    group.close();
  });
}

TEST(EpFirstExpert, NumbersThatDoNotFitAreRefused) {
  run_threads(2, ep_settings(), [](World& world) {
    const auto refused = [&](std::vector<std::int32_t> first_expert, const char* why) {
      ep::GroupOptions options = options_for(small_case(2));
      options.first_expert = std::move(first_expert);
      expect_error(Code::invalid_argument, why, [&] { ep::Group(world.team(), options); });
    };
    refused({0}, "first_expert has 1 numbers; allowed: none, 2");
    refused({0, 1, 2, 6}, "first_expert has 4 numbers");
    refused({1, 3}, "first_expert[0] is 1; allowed: 0 to 0");
    refused({0, 7}, "first_expert[1] is 7; allowed: 0 to 6");
    refused({0, -1}, "first_expert[1] is -1; allowed: 0 to 6");
    refused({0, 3, 5}, "first_expert[2] is 5; allowed: 6 to 6");
  });
}

}  // namespace
}  // namespace shoal::test
