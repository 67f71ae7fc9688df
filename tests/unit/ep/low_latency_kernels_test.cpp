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

/// Puts of a dispatch and a combine of 128 tokens of rank 0, each rank on a node of its own with
/// eight experts; a token names one of them with probability 7/8 in each of 8 top-k slots.
struct Puts {
  std::size_t dispatch, combine, combine_bytes;
};
Puts puts_of(const Combine& combine, std::int32_t ranks, Quantize quantize, NetworkPath path,
             std::int64_t hidden) {
  Case c{.ranks = ranks, .experts = 8 * ranks, .top_k = 8, .hidden = hidden};
  c.tokens.assign(static_cast<std::size_t>(ranks), 0);
  c.tokens[0] = 128;
  c.blocks = 1;  // one that waits for weights gives them all
  c.node_size = 1;
  Ranks all(c);
  all.use(path);
  all.quantize(quantize);
  network.puts = 0;
  all.dispatch();
  Puts puts{};
  puts.dispatch = network.puts;
  network.puts = network.put_bytes = 0;
  all.combine(combine, Values::plain);
  puts.combine = network.puts;
  puts.combine_bytes = network.put_bytes;
  return puts;
}

// A put for each window of 32 neighbouring rows and few gaps; headers and counts of two ranks.
TEST(LowLatencyKernelsOf, DispatchedRowsSharePuts) {
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic})
    for (const Quantize quantize : {Quantize::none, Quantize::fp8}) {
      const Puts puts = puts_of(kRows, 2, quantize, path, 1024);
      RecordProperty("dispatch", static_cast<int>(puts.dispatch));
      EXPECT_LE(puts.dispatch, 4U + 2 * 3 + 2);
      EXPECT_GE(puts.dispatch, 4U + 2);
    }
}

// Rows of a rank lie together in the order of tokens: the first rows of all tokens, then the second
// ones. Without that, a put carries one of about 450 rows (2 ranks) or 560 sums (8 ranks).
TEST(LowLatencyKernelsOf, CombinedRowsSharePuts) {
  struct Expected {
    const char* name;
    Combine combine;
    std::int32_t ranks;
    NetworkPath path;
    std::int64_t hidden;  ///< rows of 4096 channels join as those of 7168 do
    std::size_t most;
  };
  for (const Expected& e : {Expected{"sums", kNow, 2, NetworkPath::proxy, 1024, 6},
                            Expected{"sums_by_nic", kNow, 2, NetworkPath::nic, 1024, 7},
                            Expected{"rows", kSums, 2, NetworkPath::proxy, 4096, 60},
                            Expected{"rows_by_nic", kSums, 2, NetworkPath::nic, 1024, 115},
                            Expected{"sums_of_8", kNow, 8, NetworkPath::proxy, 4096, 120}}) {
    const Puts puts = puts_of(e.combine, e.ranks, Quantize::none, e.path, e.hidden);
    RecordProperty(e.name, static_cast<int>(puts.combine));
    RecordProperty(std::string(e.name) + "_bytes", static_cast<int>(puts.combine_bytes));
    EXPECT_LE(puts.combine, e.most) << e.name;
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
