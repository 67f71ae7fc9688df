// SPDX-License-Identifier: Apache-2.0
// The kernels of low-latency mode on a fake GPU: every form, bit by bit, and what is left behind.
//
// All ranks send before any receives, one after another, and a wait for a later launch would end
// the program: so these runs also show that sends whose receives are deferred wait for no rank.
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include "unit/ep/low_latency_ranks.hpp"

namespace shoal::ep::cuda {
namespace {

class LowLatencyKernels : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Masks, LowLatencyKernels, testing::Bool(),
                         [](const auto& tested) { return tested.param ? "masks" : "none"; });

TEST_P(LowLatencyKernels, EveryFormMatchesTheReference) {
  for (const std::int64_t hidden : {24, 520, 7168}) {
    SCOPED_TRACE("hidden " + std::to_string(hidden));
    Ranks ranks({.hidden = hidden, .tokens = {3, 2, 0}, .masks = GetParam()});
    for (const Combine& combine : {kSums, kRows, kLogfmt, kExactLogfmt})
      ranks.round(combine, Values::mixed);
    ranks.round(kSums, Values::plain, true);
    ranks.round(kLogfmt, Values::plain);
  }
}

// Longer than a window of LogFMT-10.
TEST_P(LowLatencyKernels, LongRows) {
  Ranks ranks({.hidden = 7688, .tokens = {2, 1, 1}, .masks = GetParam()});
  for (const Combine& combine : {kLogfmt, kSums}) ranks.round(combine, Values::mixed);
}

// A rank that does not defer sums with weights of ranks that do.
TEST_P(LowLatencyKernels, OneRankDoesNotDefer) {
  Ranks ranks({.hidden = 1040, .tokens = {4, 2, 3}, .masks = GetParam(), .blocks = 1});
  for (const Values values : {Values::plain, Values::mixed}) {
    ranks.round({kSums, kSums, kNow}, values);
    ranks.round(kSums, values);
    ranks.round(kLogfmt, values);
  }
}

TEST_P(LowLatencyKernels, MoreRowsThanAWarpHasGroupsFor) {
  Ranks ranks({.ranks = 2, .experts = 32, .top_k = 20, .tokens = {3, 2}, .masks = GetParam()});
  for (const Combine& combine : {kLogfmt, kSums, kExactLogfmt, kRows})
    ranks.round(combine, Values::mixed);
}

TEST(LowLatencyKernelsOf, EightRanks) {
  Ranks ranks({.ranks = 8,
               .experts = 64,
               .top_k = 8,
               .hidden = 512,
               .tokens = {2, 1, 2, 2, 1, 0, 2, 1},
               .blocks = 5});
  for (const Combine& combine : {kLogfmt, kSums}) ranks.round(combine, Values::plain);
}

// Aligned pieces of LogFMT-10 rows are copied in bulk, in one window and in two.
TEST_P(LowLatencyKernels, LogfmtInBulk) {
  for (const std::int64_t hidden : {512, 2048, 7680}) {
    SCOPED_TRACE("hidden " + std::to_string(hidden));
    Ranks ranks({.hidden = hidden, .tokens = {3, 2, 1}, .masks = GetParam(), .bulk = true});
    for (const Combine& combine : {kLogfmt, kExactLogfmt}) ranks.round(combine, Values::mixed);
  }
}

// Items of LogFMT-10 rows are handed out: the first block gets nearly all of them here, more than
// it keeps numbers of.
TEST(LowLatencyKernelsOf, ManyLogfmtItems) {
  Ranks ranks({.hidden = 128, .tokens = {20, 15, 9}, .blocks = 2});
  ranks.round(kLogfmt, Values::plain);
}

/// Ranks on nodes: the kernels of one node fill outboxes, and what is forwarded arrives in any
/// order. Results are compared with the same reference.
struct Grid {
  std::int32_t ranks, node_size;
  bool masks;
};
class LowLatencyKernelsOnNodes : public testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, LowLatencyKernelsOnNodes,
                         testing::Values(Grid{2, 1, false}, Grid{8, 4, false}, Grid{8, 2, false},
                                         Grid{3, 1, true}, Grid{4, 2, true}),
                         [](const auto& tested) {
                           return std::to_string(tested.param.ranks) + "_by_" +
                                  std::to_string(tested.param.node_size) +
                                  (tested.param.masks ? "_masks" : "");
                         });

TEST_P(LowLatencyKernelsOnNodes, EveryFormMatchesTheReference) {
  const Grid grid = GetParam();
  std::vector<std::int32_t> tokens = {3, 1, 0, 1, 1, 1, 0, 1};
  tokens.resize(grid.ranks);
  Ranks ranks({.ranks = grid.ranks,
               .experts = grid.ranks * 3,
               .hidden = 656,
               .tokens = tokens,
               .masks = grid.masks,
               .blocks = 2,
               .node_size = grid.node_size});
  // Every form is followed by another one in its half.
  // The last rank sums with weights of the others; where a rank is alone on its node, all do.
  std::vector<Combine> now(grid.ranks, grid.node_size == 1 ? kNow : kSums);
  now.back() = kNow;
  ranks.round(now, Values::mixed);
  for (const Combine& combine : {kSums, kLogfmt, kRows, kExactLogfmt})
    ranks.round(combine, Values::mixed);
  ranks.round(now, Values::mixed);
  ranks.round(kNow, Values::plain, true);
  ranks.quantize(Quantize::fp8);
  ranks.round(kSums, Values::plain, true);
}

/// Puts of two ranks on two nodes for a dispatch and a combine of 128 tokens of one of them, of
/// which 8 of 16 (64) experts are there.
struct Puts {
  std::size_t dispatch, combine, bytes;
};
Puts puts_of(const Combine& combine, std::int64_t hidden, Quantize quantize, NetworkPath path,
             std::int32_t ranks = 2, bool masks = false) {
  Case c{.ranks = ranks, .experts = 8 * ranks, .top_k = 8, .hidden = hidden};
  c.tokens.assign(static_cast<std::size_t>(ranks), 0);
  c.tokens[0] = 128;
  c.masks = masks;
  c.node_size = 1;
  Ranks all(c);
  all.use(path);
  all.quantize(quantize);
  network.puts = network.put_bytes = 0;
  all.dispatch();
  Puts puts{};
  puts.dispatch = network.puts;
  puts.bytes = network.put_bytes;
  network.puts = 0;
  all.combine(combine, Values::plain);
  puts.combine = network.puts;
  return puts;
}

// Headers and counts are two puts for each rank, flags one more for each rank.
TEST(LowLatencyKernelsOf, RowsThatLieTogetherArePutTogether) {
  constexpr std::size_t kWindows = 128 / 32, kTables = 2;
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic})
    for (const Quantize quantize : {Quantize::none, Quantize::fp8}) {
      // A token has an expert at the other rank, except by chance.
      const Puts puts = puts_of(kSums, 1024, quantize, path);
      EXPECT_LE(puts.dispatch, kWindows + 3 * kTables + 2);
      EXPECT_GE(puts.dispatch, kWindows + kTables);
    }
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic})
    for (const Combine& combine : {kNow, kSums, kLogfmt}) {
      const Puts a = puts_of(combine, 1024, Quantize::none, path), b = puts_of(combine, 1024, Quantize::none, path, 8),
      d = puts_of(combine, 1024, Quantize::none, path, 4);
      printf("path %d form %d exact %d: dispatch %zu combine %zu; 8 ranks: %zu %zu; 7168: %zu %zu\n", int(path), int(combine.form), combine.exact, a.dispatch, a.combine, b.dispatch, b.combine, d.dispatch, d.combine);
    }
}

}  // namespace
}  // namespace shoal::ep::cuda
