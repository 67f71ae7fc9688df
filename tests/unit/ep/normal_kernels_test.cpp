// SPDX-License-Identifier: Apache-2.0
// The combine of normal mode on a fake GPU, bit by bit: expert output in the heap, outside it, and
// with a row for each top-k slot, also encoded. At the end the forms of a routing.
// @traits fake_gpu
#include "unit/ep/normal_ranks.hpp"
//
#include "ep/cuda/normal/routing_maps.hpp"

namespace shoal::ep::cuda {
namespace {

void run(const Case& c) {
  SCOPED_TRACE(c.describe());
  Ranks(c).run();
}

constexpr Output kOutputs[] = {Output::in_heap, Output::outside, Output::summed};

TEST(EpNormalKernels, CombineOfTwoRanks) {
  for (const Output output : kOutputs) run({.output = output});
}

TEST(EpNormalKernels, CombineOfOneRank) {
  for (const Output output : kOutputs)
    run({.ranks = 1, .hidden = 520, .tokens = {50}, .output = output, .weighted = true});
}

TEST(EpNormalKernels, CombineOfThreeRanksWithWeightsAndBiases) {
  for (const Output output : kOutputs)
    run({.ranks = 3,
         .top_k = 6,
         .hidden = 264,
         .tokens = {40, 0, 67},
         .output = output,
         .weighted = true,
         .biased = true,
         .blocks = 3});
}

// Every block stages, most of them one piece. Warps ask for units of rows, blocks of 16 warps for
// more of them than a piece has.
TEST(EpNormalKernels, BlocksThatStageOnePiece) {
  for (const std::int32_t warps : {1, 5, 16})
    for (const Output output : kOutputs)
      run({.ranks = 2,
           .hidden = 264,
           .tokens = {150, 90},
           .output = output,
           .weighted = true,
           .blocks = 4,
           .shape = {.warps = warps, .stages = 2, .staging_blocks = 1}});
}

// There are fewer pieces of sixteen rows than blocks that stage: pieces have fewer rows then, down
// to one, and warps share a row.
TEST(EpNormalKernels, FewRowsDividedAmongBlocks) {
  for (const std::vector<std::int32_t>& tokens : {std::vector{8, 5}, {1, 0}, {40, 37}, {17, 3, 30}})
    for (const std::int32_t warps : {3, 16})
      for (const Output output : kOutputs)
        run({.ranks = static_cast<std::int32_t>(tokens.size()),
             .hidden = 1544,
             .tokens = tokens,
             .output = output,
             .weighted = true,
             .blocks = 24,
             .shape = {.warps = warps, .stages = 2, .staging_blocks = 10}});
}

// A warp has up to 64 weights of a token on their way, two a lane, and waits for more at once.
TEST(EpNormalKernels, WeightsOfManyCopies) {
  for (const std::int32_t ranks : {6, 9})
    for (const Output output : kOutputs)
      run({.ranks = ranks,
           .top_k = 9,
           .hidden = 136,
           .tokens = std::vector<std::int32_t>(static_cast<std::size_t>(ranks), 12),
           .output = output,
           .weighted = true});
}

// Stages with room for one row of a token are shared by up to all rows of its ranks and slots.
TEST(EpNormalKernels, SumsOfManyRowsInSmallStages) {
  for (const std::int32_t stages : {2, 5})
    run({.ranks = 5,
         .top_k = 5,
         .hidden = 2056,
         .tokens = {9, 3, 8, 1, 12},
         .shape = {.warps = 2, .stages = stages, .segment_chunks = 2}});
  run({.ranks = 2,
       .top_k = 1,
       .hidden = 4104,
       .tokens = {33, 32},
       .shape = {.warps = 2, .stages = 2, .chunk_bytes = 2048, .segment_chunks = 1}});
}

// Rows that end inside a group of channels, a lane, or the units of a lane, of one and more warps.
TEST(EpNormalKernels, EncodedRows) {
  for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
    for (const Output output : kOutputs)
      for (const std::int64_t hidden : {32, 1056, 2048, 4224})
        run({.ranks = 3,
             .top_k = 6,
             .hidden = hidden,
             .tokens = {17, 0, 22},
             .output = output,
             .weighted = true,
             .biased = true,
             .blocks = 3,
             .quantize = quantize});
  for (const Output output : kOutputs) {
    run({.hidden = 16, .output = output, .quantize = Quantize::fp8});
    run({.ranks = 1,
         .hidden = 528,
         .tokens = {50},
         .output = output,
         .weighted = true,
         .quantize = Quantize::fp8});
  }
}

TEST(EpNormalKernels, ExpertMajorRows) {
  for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::mxfp8})
    for (const std::int64_t hidden : {1056, 4224})
      run({.ranks = 3,
           .top_k = 6,
           .hidden = hidden,
           .tokens = {17, 0, 22},
           .output = Output::in_heap,
           .biased = true,
           .quantize = quantize,
           .expert_major = true});
}

// More top-k slots, and more ranks of a token, than a warp has lanes.
TEST(EpNormalKernels, ManySlots) {
  for (const std::int32_t top_k : {33, 64, 128})
    for (const Output output : kOutputs)
      for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::mxfp8})
        run({.ranks = 3,
             .top_k = top_k,
             .hidden = 1056,
             .tokens = {5, 0, 7},
             .output = output,
             .weighted = true,
             .biased = true,
             .blocks = 3,
             .quantize = quantize});
  for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::mxfp8})
    run({.ranks = 3,
         .top_k = 128,
         .hidden = 1056,
         .tokens = {17, 0, 9},
         .output = Output::in_heap,
         .quantize = quantize,
         .expert_major = true});
  for (const Output output : kOutputs)
    run({.ranks = 40,
         .top_k = 70,
         .hidden = 136,
         .tokens = std::vector<std::int32_t>(40, 2),
         .output = output,
         .weighted = true});
}

// Indices outside y count as -1 and are reported, whoever would fetch the row.
TEST(EpNormalKernels, RowsOutsideTheExpertOutput) {
  for (const std::int32_t source : {0, 1}) {
    Ranks ranks({.hidden = 2048, .tokens = {20, 20}});
    Rank& rank = ranks.rank(1);
    const std::int32_t row = ranks.row_from(1, source);
    rank.topk_rows[row * 4 + 2] = rank.rows * 4;
    ranks.run();
    const FaultReport& report = rank.report[0];
    EXPECT_EQ(static_cast<Fault>(report.fault), Fault::bad_row);
    EXPECT_EQ(report.token, row);
    EXPECT_EQ(report.value, rank.rows * 4);
    EXPECT_EQ(report.allowed, rank.rows * 4 - 1);
  }
}

struct Routed {
  std::int32_t tokens = 70, experts = 48, top_k = 5;
  std::vector<std::int64_t> topk_idx;  ///< ascending, then -1
  std::vector<float> weights;          ///< 0 where there is no expert
  std::vector<std::uint8_t> map;
  std::vector<float> probs;  ///< not 0 elsewhere either

  explicit Routed(std::int32_t most) {
    std::mt19937 random(static_cast<unsigned>(most));
    map.assign(static_cast<std::size_t>(tokens * experts), 0);
    for (std::int32_t i = 0; i < tokens * experts; ++i)
      probs.push_back(static_cast<float>(random() % 1000 + 1));
    for (std::int32_t token = 0; token < tokens; ++token) draw(token, most, random);
  }
  std::size_t at(std::int32_t token, std::int32_t expert) const {
    return static_cast<std::size_t>(token * experts + expert);
  }

 private:
  void draw(std::int32_t token, std::int32_t most, std::mt19937& random) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(experts));
    std::iota(all.begin(), all.end(), 0);
    std::ranges::shuffle(all, random);
    const auto chosen = static_cast<std::int32_t>(token == 7 ? most : random() % (most + 1));
    std::sort(all.begin(), all.begin() + chosen);
    for (std::int32_t k = 0; k < chosen; ++k) map[at(token, all[k])] = 1;
    for (std::int32_t k = 0; k < top_k; ++k) {
      topk_idx.push_back(k < chosen ? all[k] : -1);
      weights.push_back(k < chosen ? probs[at(token, all[k])] : 0);
    }
  }
};

TEST(EpRoutingMaps, TopkOfMap) {
  for (const std::int32_t most : {0, 3, 5, 9}) {  // with 9, only the first five fit
    SCOPED_TRACE(most);
    const Routed routed(most);
    for (const std::int32_t before : {0, 6}) {
      std::vector<std::int64_t> topk_idx(routed.topk_idx.size(), 77);
      std::vector<float> weights(routed.weights.size(), 77);
      std::int32_t seen = before;
      EXPECT_EQ(
          launch_topk_of_map({routed.map.data(), routed.probs.data(), topk_idx.data(),
                              weights.data(), &seen, routed.tokens, routed.experts, routed.top_k},
                             nullptr),
          cudaSuccess);
      EXPECT_EQ(topk_idx, routed.topk_idx);
      EXPECT_EQ(weights, routed.weights);
      EXPECT_EQ(seen, std::max(before, most));
    }
    std::vector<std::int64_t> topk_idx(routed.topk_idx.size(), 77);
    (void)launch_topk_of_map({routed.map.data(), nullptr, topk_idx.data(), nullptr, nullptr,
                              routed.tokens, routed.experts, routed.top_k},
                             nullptr);
    EXPECT_EQ(topk_idx, routed.topk_idx);
  }
}

TEST(EpRoutingMaps, MapOfTopk) {
  const Routed routed(5);
  for (const std::int32_t first : {0, 16}) {
    const std::int32_t columns = routed.experts + 2 * first;
    std::vector<float> map(static_cast<std::size_t>(routed.tokens * columns), 77);
    (void)launch_map_of_topk({routed.topk_idx.data(), routed.weights.data(), map.data(),
                              routed.tokens, routed.top_k, columns, first},
                             nullptr);
    for (std::int32_t token = 0; token < routed.tokens; ++token)
      for (std::int32_t column = 0; column < columns; ++column) {
        const std::int32_t expert = column - first;
        const bool chosen =
            expert >= 0 && expert < routed.experts && routed.map[routed.at(token, expert)] != 0;
        EXPECT_EQ(map[static_cast<std::size_t>(token * columns + column)],
                  chosen ? routed.probs[routed.at(token, expert)] : 0)
            << token << ", " << column;
      }
  }
}

TEST(EpRoutingMaps, CountTokens) {
  const Routed routed(5);
  const std::vector<std::int32_t> narrow(routed.topk_idx.begin(), routed.topk_idx.end());
  for (const std::int32_t ranks : {1, 4, 7, 48, 50})
    for (const bool wide : {true, false}) {
      const detail::Partition partition(routed.experts, ranks, {});
      std::vector<std::int32_t> per_rank(static_cast<std::size_t>(ranks), 77), want_ranks(ranks);
      std::vector<std::int32_t> per_expert(static_cast<std::size_t>(routed.experts), 77);
      std::vector<std::int32_t> want_experts(static_cast<std::size_t>(routed.experts));
      std::vector<std::uint8_t> in_rank(static_cast<std::size_t>(routed.tokens * ranks), 77);
      std::vector<std::uint8_t> want(in_rank.size(), 0);
      for (std::int32_t token = 0; token < routed.tokens; ++token)
        for (std::int32_t expert = 0; expert < routed.experts; ++expert) {
          if (routed.map[routed.at(token, expert)] == 0) continue;
          ++want_experts[static_cast<std::size_t>(expert)];
          want[static_cast<std::size_t>(token * ranks + partition.place(expert).rank)] = 1;
        }
      for (std::size_t i = 0; i < want.size(); ++i)
        want_ranks[i % static_cast<std::size_t>(ranks)] += want[i];
      const void* const topk_idx =
          wide ? static_cast<const void*>(routed.topk_idx.data()) : narrow.data();
      (void)launch_count_tokens({topk_idx,
                                 wide,
                                 routed.tokens,
                                 routed.top_k,
                                 routed.experts,
                                 ranks,
                                 per_rank.data(),
                                 per_expert.data(),
                                 in_rank.data(),
                                 {}},
                                nullptr);
      EXPECT_EQ(per_rank, want_ranks);
      EXPECT_EQ(per_expert, want_experts);
      EXPECT_EQ(in_rank, want);
    }
  CountTokens refused{};
  refused.experts = 8193, refused.ranks = 1;
  EXPECT_EQ(launch_count_tokens(refused, nullptr), cudaErrorInvalidValue);
  refused.experts = refused.ranks = 129;
  EXPECT_EQ(launch_count_tokens(refused, nullptr), cudaErrorInvalidValue);
}

TEST(EpRoutingMaps, FittingRows) {
  const std::vector<std::int32_t> ends = {4, 4, 12, 16};
  const std::pair<std::int64_t, std::vector<std::int64_t>> cases[] = {
      {20, {4, 0, 8, 4}}, {16, {4, 0, 8, 4}}, {8, {4, 0, 4, 0}}, {0, {0, 0, 0, 0}}, {8, {}}};
  for (const auto& [room, want] : cases) {
    std::vector<std::int64_t> rows(want.size(), 77);
    std::uint8_t overflow = 77;
    const auto experts = static_cast<std::int32_t>(rows.size());
    (void)launch_fitting_rows({ends.data(), rows.data(), &overflow, experts, room}, nullptr);
    EXPECT_EQ(rows, want);
    EXPECT_EQ(overflow, experts > 0 && room < 16 ? 1 : 0);
  }
}

}  // namespace
}  // namespace shoal::ep::cuda
