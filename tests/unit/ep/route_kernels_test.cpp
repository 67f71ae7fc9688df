// SPDX-License-Identifier: Apache-2.0
// The kernel of routings on a fake GPU against those of the host: copies, counts by rank, expert
// and node, and where each token goes.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <vector>

#include "checks/ep/case.hpp"
#include "ep/cuda/device/faults.cuh"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/plan/routing.hpp"

namespace shoal::ep::cuda {
namespace {

struct Arrays {
  Arrays(std::int64_t tokens, std::int32_t top_k, std::int32_t copies_per_token, std::int32_t ranks,
         std::int32_t experts)
      : topk_idx(static_cast<std::size_t>(tokens * top_k), 77),
        copies(static_cast<std::size_t>(tokens * copies_per_token), 77),
        rank_counts(static_cast<std::size_t>(ranks), 77),
        expert_counts(static_cast<std::size_t>(experts), 77),
        given_ranks(rank_counts),
        given_experts(expert_counts),
        in_rank(static_cast<std::size_t>(tokens * ranks), 77) {}

  std::vector<std::int64_t> topk_idx;
  std::vector<std::int32_t> copies, rank_counts, expert_counts, given_ranks, given_experts;
  std::vector<std::uint8_t> in_rank;
  std::int32_t nodes = 77, given_nodes = 77;
};

void check_route(const test::EpCase& c, bool wide) {
  SCOPED_TRACE(c.describe());
  const std::int64_t tokens = c.tokens(0);
  const auto topk = c.topk(0), given = c.given_topk(0);
  const std::vector<std::int32_t> narrow(given.begin(), given.end());
  const detail::Shape shape = detail::make_shape({.max_tokens = c.max_tokens,
                                                  .hidden = 64,
                                                  .top_k = c.top_k,
                                                  .experts = c.experts,
                                                  .first_expert = c.first_expert,
                                                  .none_expert = c.none_expert},
                                                 c.ranks);
  const std::vector<std::int32_t> words = expert_table_words(*shape.partition);
  const auto want = detail::make_routing(
      detail::checked_topk(ConstTensorView(given.data(), DataType::int64, {tokens, c.top_k}), shape,
                           c.max_tokens, "test"),
      shape);
  const std::int32_t copies = std::min(c.top_k, c.ranks);
  Arrays got(tokens, c.top_k, copies, c.ranks, c.experts);
  NormalRoute params{};
  params.group.ranks = c.ranks;
  set_experts(params.group, *shape.partition, 0, words.data());
  params.group.top_k = c.top_k;
  params.group.none_expert = c.none_expert;
  params.topk_idx = wide ? static_cast<const void*>(given.data()) : narrow.data();
  params.is_int64 = wide ? 1 : 0;
  params.tokens = static_cast<std::int32_t>(tokens);
  params.copies_per_token = copies;
  params.out = {got.topk_idx.data(),      got.copies.data(), got.rank_counts.data(),
                got.expert_counts.data(), nullptr,           &got.nodes};
  params.is_token_in_rank = got.in_rank.data();
  params.rank_counts = got.given_ranks.data();
  params.expert_counts = got.given_experts.data();
  params.node_counts = &got.given_nodes;
  launch_normal_route(params, false, nullptr);

  EXPECT_EQ(got.topk_idx, topk);
  EXPECT_EQ(got.rank_counts, want->tokens_per_rank);
  EXPECT_EQ(got.expert_counts, want->tokens_per_expert);
  EXPECT_EQ(got.given_ranks, want->tokens_per_rank);
  EXPECT_EQ(got.given_experts, want->tokens_per_expert);
  const std::vector<std::int32_t> one_node(static_cast<std::size_t>(c.ranks), 0);
  EXPECT_EQ(got.nodes, detail::count_by_node(*want, one_node, 1)[0]);
  EXPECT_EQ(got.given_nodes, got.nodes);
  std::vector<std::uint8_t> in_rank(got.in_rank.size(), 0);
  std::vector<std::int32_t> packed;
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (const detail::Copy& copy : want->copies_of(t)) {
      in_rank[static_cast<std::size_t>(t * c.ranks + copy.rank)] = 1;
      packed.push_back(pack_copy(copy.rank, copy.row));
    }
    packed.resize(static_cast<std::size_t>((t + 1) * copies), kNoCopy);
  }
  EXPECT_EQ(got.in_rank, in_rank);
  EXPECT_EQ(got.copies, packed);
}

TEST(EpRouteKernel, MatchesTheHost) {
  for (std::uint64_t seed = 0; seed < 6; ++seed)
    check_route({.ranks = 1 + static_cast<std::int32_t>(seed),
                 .experts = (1 + static_cast<std::int32_t>(seed)) * 9,
                 .top_k = 1 + static_cast<std::int32_t>(seed * 7 % 9),
                 .max_tokens = 60,
                 .seed = seed,
                 .holes = seed % 2 == 0 ? 0.1 : 0.7},
                seed % 2 == 0);
}

TEST(EpRouteKernel, MatchesTheHostForAnySpreadOfExperts) {
  check_route({.ranks = 4, .experts = 10, .top_k = 4, .max_tokens = 50, .full = true}, true);
  check_route({.ranks = 4, .experts = 3, .top_k = 2, .max_tokens = 50, .full = true}, true);
  check_route({.ranks = 24, .experts = 128, .top_k = 8, .max_tokens = 50, .full = true}, false);
  check_route({.ranks = 2, .experts = 8191, .top_k = 32, .max_tokens = 50, .full = true}, true);
  check_route({.ranks = 5,
               .experts = 9,
               .top_k = 4,
               .max_tokens = 1100,
               .full = true,
               .first_expert = {0, 0, 5, 5, 8}},
              false);
}

/// More slots than a warp has lanes, in tiles of fewer tokens.
TEST(EpRouteKernel, MatchesTheHostForManySlots) {
  for (const std::int32_t top_k : {33, 64, 128})
    for (const std::int32_t ranks : {3, 100})
      check_route({.ranks = ranks,
                   .experts = 200,
                   .top_k = top_k,
                   .max_tokens = ranks == 3 ? 600 : 50,
                   .holes = 0.2,
                   .full = true},
                  top_k == 64);
}

/// A fault would be reported to memory that the case does not have.
TEST(EpRouteKernel, TakesAnotherIdForNoExpert) {
  for (const bool wide : {false, true})
    check_route({.ranks = 3,
                 .experts = 9,
                 .top_k = 4,
                 .max_tokens = 60,
                 .holes = 0.5,
                 .full = true,
                 .none_expert = wide ? 9 : 2'147'483'647},
                wide);
}

/// Several tiles of 1024 tokens, which different blocks number; tokens without an expert.
TEST(EpRouteKernel, MatchesTheHostForManyTokens) {
  for (const test::Load load : {test::Load::random, test::Load::none, test::Load::all_to_one})
    check_route({.ranks = 2,
                 .experts = 8,
                 .top_k = 2,
                 .max_tokens = 2500,
                 .load = load,
                 .holes = 0.5,
                 .full = true},
                true);
}

}  // namespace
}  // namespace shoal::ep::cuda
