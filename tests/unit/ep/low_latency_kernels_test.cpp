// SPDX-License-Identifier: Apache-2.0
// The kernels of low-latency mode on a fake GPU: every form, bit by bit, and what is left behind.
//
// All ranks send before any receives, one after another, and a wait for a later launch would end
// the program: so these runs also show that sends whose receives are deferred wait for no rank.
// @traits fake_gpu
#include "fake_gpu/fake_gpu.hpp"
//
#include <gtest/gtest.h>

#include <ostream>

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
    for (const Combine& combine : {kSums, kRows, kLogfmt, kExactLogfmt, kExactLogfmtNow})
      ranks.round(combine, Values::mixed);
    ranks.round(kSums, Values::plain, true);
    for (const Values values : {Values::plain, Values::mixed})
      for (const Combine& combine : {kLogfmt, kLogfmtNow}) ranks.round(combine, values, true);
    ranks.round(kExactLogfmtNow, Values::plain);
  }
}

// Some ranks copy the rows, others add them.
TEST_P(LowLatencyKernels, UnsummedRows) {
  for (const std::int64_t hidden : {96, 1056, 7168}) {
    SCOPED_TRACE("hidden " + std::to_string(hidden));
    Ranks ranks({.hidden = hidden, .tokens = {3, 2, 0}, .masks = GetParam()});
    for (const Combine& combine : kUnsummed) {
      ranks.round(combine, Values::mixed);
      Combine summed = combine;
      summed.unsummed = false;
      ranks.round({combine, summed, combine}, Values::plain);
    }
    ranks.round(kSums, Values::mixed);
  }
  Ranks many({.ranks = 2, .experts = 64, .top_k = 32, .tokens = {3, 2}, .masks = GetParam()});
  for (const Combine& combine : kUnsummed) many.round(combine, Values::mixed, true);
}

// More top-k slots, and more ranks of a token, than a warp has lanes.
TEST_P(LowLatencyKernels, ManySlots) {
  const auto with_slots = [](std::int32_t top_k) {
    return Case{.experts = 3 * top_k / 2,
                .top_k = top_k,
                .hidden = 96,
                .tokens = {2, 1, 0},
                .masks = GetParam()};
  };
  Ranks ranks(with_slots(33));
  for (const Quantize quantize : {Quantize::mxfp8, Quantize::nvfp4, Quantize::fp8}) {
    ranks.quantize(quantize);
    ranks.round(kSums, Values::plain, quantize == Quantize::fp8);
  }
  ranks.quantize(Quantize::none);
  ranks.round({kSums, kSums, kNow}, Values::plain);
  for (const Combine& combine : {kSums, kRows, kLogfmt, kExactLogfmt, kExactLogfmtNow})
    ranks.round(combine, Values::mixed);
  for (const Combine& combine : {kSums, kNow, kLogfmt, kLogfmtNow})
    ranks.round(combine, Values::mixed, true);
  for (const Combine& combine : kFloat8) ranks.round(combine, Values::mixed, true);
  for (const Combine& combine : kUnsummed) ranks.round(combine, Values::mixed);
  Ranks most(with_slots(kMaxTopK));
  most.round({kSums, kSums, kNow}, Values::mixed);
  for (const Combine& combine : {kRows, kUnsummed[0], kFloat8[0]})
    most.round(combine, Values::mixed, true);
  Ranks many({.ranks = 36,
              .experts = 72,
              .top_k = 48,
              .hidden = 32,
              .tokens = std::vector<std::int32_t>(36, 1),
              .masks = GetParam()});
  for (const Combine& combine : {kSums, kRows}) many.round(combine, Values::mixed);
}

// Whole groups of channels, but not whole packets of four scales.
TEST_P(LowLatencyKernels, UnevenExperts) {
  const Case cases[] = {{.experts = 10},
                        {.experts = 2, .top_k = 2},
                        {.experts = 9, .first_expert = {0, 0, 6}},
                        {.experts = 6, .first_expert = {0, 6, 6}}};
  for (Case c : cases) {
    c.masks = GetParam();
    Ranks ranks(c);
    ranks.round({kSums, kSums, kNow}, Values::mixed);
    for (const Combine& combine : {kSums, kRows, kLogfmt}) ranks.round(combine, Values::mixed);
    ranks.round(kLogfmtNow, Values::plain, true);
  }
}

TEST_P(LowLatencyKernels, ManyExpertsOnARank) {
  Ranks ranks({.experts = 3 * 4096 - 1, .top_k = 32, .hidden = 24, .masks = GetParam()});
  for (const Combine& combine : {kSums, kRows, kLogfmt}) ranks.round(combine, Values::mixed);
}

TEST_P(LowLatencyKernels, AnIdBesideMinusOneMeansNoExpert) {
  Ranks ranks({.masks = GetParam(), .none_expert = 9});
  for (const Combine& combine : {kSums, kRows, kLogfmt}) ranks.round(combine, Values::mixed);
  for (std::int32_t rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.report(rank).fault, 0U);
}

TEST_P(LowLatencyKernels, GroupsOfChannelsThatFillNoPacketOfScales) {
  for (const std::int64_t hidden : {128, 640, 2688, 2944})
    for (const Quantize quantize : {Quantize::none, Quantize::fp8}) {
      SCOPED_TRACE("hidden " + std::to_string(hidden) + std::string(", ") +
                   (quantize == Quantize::fp8 ? "fp8" : "bf16"));
      Ranks ranks({.hidden = hidden, .tokens = {3, 2, 0}, .masks = GetParam()});
      ranks.quantize(quantize);
      for (const Combine& combine : {kSums, kRows, kLogfmt, kExactLogfmtNow})
        ranks.round(combine, Values::mixed);
      ranks.round(kLogfmtNow, Values::mixed, true);
    }
}

// Rows of which words of codes, or of scales, are all ones, as empty rows are.
TEST_P(LowLatencyKernels, BlockScaledRowsOfAllOnes) {
  for (const std::int64_t hidden : {64, 320, 2880, 8256, 16384})
    for (const Quantize quantize : {Quantize::mxfp8, Quantize::nvfp4}) {
      SCOPED_TRACE("hidden " + std::to_string(hidden) +
                   (quantize == Quantize::mxfp8 ? ", mxfp8" : ", nvfp4"));
      Ranks ranks({.hidden = hidden, .tokens = {3, 2, 0}, .masks = GetParam()});
      ranks.quantize(quantize);
      for (int i = 0; i < 3; ++i) ranks.round(kSums, Values::plain, i == 1);
    }
}

TEST_P(LowLatencyKernels, GroupsOfThirtyTwoChannelsThatFillNoWordOfScales) {
  Ranks ranks({.hidden = 96, .tokens = {3, 2, 0}, .masks = GetParam()});
  ranks.quantize(Quantize::mxfp8);
  for (int i = 0; i < 2; ++i) ranks.round(kSums, Values::plain);
}

// More pieces than a block has warps, and a unit with half its channels.
TEST_P(LowLatencyKernels, LongRows) {
  Ranks ranks({.hidden = 7688, .tokens = {2, 1, 1}, .masks = GetParam()});
  for (const Combine& combine : {kLogfmt, kSums, kExactLogfmtNow})
    ranks.round(combine, Values::mixed);
  for (const Combine& combine : {kLogfmt, kLogfmtNow}) ranks.round(combine, Values::mixed, true);
}

// A rank that does not defer sums with weights of ranks that do.
TEST_P(LowLatencyKernels, OneRankDoesNotDefer) {
  Ranks ranks({.hidden = 1040, .tokens = {4, 2, 3}, .masks = GetParam(), .blocks = 1});
  for (const Values values : {Values::plain, Values::mixed}) {
    ranks.round({kSums, kSums, kNow}, values);
    ranks.round(kSums, values);
    ranks.round(kLogfmt, values);
    ranks.round({kLogfmt, kLogfmt, kLogfmtNow}, values);
  }
}

TEST_P(LowLatencyKernels, MoreRowsThanAWarpHasGroupsFor) {
  Ranks ranks({.ranks = 2, .experts = 32, .top_k = 20, .tokens = {3, 2}, .masks = GetParam()});
  for (const Combine& combine : {kLogfmt, kSums, kExactLogfmt, kRows, kExactLogfmtNow})
    ranks.round(combine, Values::mixed);
  for (const Combine& combine : {kLogfmt, kLogfmtNow}) ranks.round(combine, Values::mixed, true);
}

TEST(LowLatencyKernelsOf, EightRanks) {
  Ranks ranks({.ranks = 8,
               .experts = 64,
               .top_k = 8,
               .hidden = 512,
               .tokens = {2, 1, 2, 2, 1, 0, 2, 1},
               .blocks = 5});
  for (const bool travelled : {false, true})
    for (const Combine& combine : {kLogfmt, kSums}) ranks.round(combine, Values::plain, travelled);
}

// Blocks of one piece and of two; tokens divided among blocks, or blocks with many rows.
TEST_P(LowLatencyKernels, LogfmtByPieces) {
  for (const std::int64_t hidden : {512, 2048, 7680})
    for (const std::int32_t blocks : {2, 30}) {
      SCOPED_TRACE("hidden " + std::to_string(hidden) + ", blocks " + std::to_string(blocks));
      Ranks ranks({.hidden = hidden, .tokens = {3, 2, 1}, .masks = GetParam(), .blocks = blocks});
      for (const Combine& combine : {kExactLogfmtNow, kExactLogfmt})
        ranks.round(combine, Values::mixed);
      for (const Combine& combine : {kLogfmt, kLogfmtNow})
        ranks.round(combine, Values::mixed, true);
    }
}

// Rows of one unit, of groups and pieces that are not full, and of more pieces than a block has
// warps; whole groups of NaNs. Every form is followed by another one in its half.
TEST_P(LowLatencyKernels, Float8Rows) {
  struct Size {
    std::int64_t hidden;
    std::int32_t blocks;
  };
  for (const auto& [hidden, blocks] :
       {Size{32, 2}, Size{160, 30}, Size{1120, 2}, Size{2048, 30}, Size{7712, 2}}) {
    SCOPED_TRACE("hidden " + std::to_string(hidden) + ", blocks " + std::to_string(blocks));
    Ranks ranks({.hidden = hidden, .tokens = {2, 1, 1}, .masks = GetParam(), .blocks = blocks});
    for (const Combine& combine : kFloat8) {
      const bool waits = is_sums(combine.form) && !combine.deferred;
      if (!waits && hidden < 2048) ranks.round(combine, Values::mixed);
      ranks.round(combine, hidden == 160 ? Values::plain : Values::mixed, true);
    }
    for (const Combine& combine : {kLogfmt, kSums}) ranks.round(combine, Values::mixed);
  }
}

// fp8 takes rows of any multiple of 16 channels.
TEST_P(LowLatencyKernels, Fp8RowsOfHalfAPairOfScales) {
  for (const std::int64_t hidden : {16, 144, 2704}) {
    Ranks ranks({.hidden = hidden, .tokens = {3, 2, 0}, .masks = GetParam()});
    for (const Combine& combine : std::span(kFloat8).first(4))
      ranks.round(combine, Values::mixed, true);
  }
}

// A rank that does not defer sums with weights of ranks that do.
TEST_P(LowLatencyKernels, Float8SumsOfARankThatDoesNotDefer) {
  Ranks ranks({.hidden = 1056, .tokens = {4, 2, 3}, .masks = GetParam(), .blocks = 1});
  for (const Values values : {Values::plain, Values::mixed})
    for (const std::size_t sums : {0, 4})
      ranks.round({kFloat8[sums], kFloat8[sums], kFloat8[sums + 1]}, values);
}

/// Ranks on nodes: the kernels of one node fill outboxes, and what is forwarded arrives in any
/// order. Results are compared with the same reference.
struct Grid {
  std::int32_t ranks, node_size;
  bool masks;
};

void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.ranks << "_by_" << grid.node_size << (grid.masks ? "_masks" : "");
}
class LowLatencyKernelsOnNodes : public testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, LowLatencyKernelsOnNodes,
                         testing::Values(Grid{2, 1, false}, Grid{8, 4, false}, Grid{8, 2, false},
                                         Grid{3, 1, true}, Grid{4, 2, true}),
                         testing::PrintToStringParamName());

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
  for (Combine& combine : now) combine.form = CombineRowForm::log_fmt_sums;
  ranks.round(now, Values::mixed);
  ranks.round(now, Values::plain);
  for (const Combine& combine : {kNow, kLogfmtNow, kLogfmt})
    ranks.round(combine, Values::plain, true);
  ranks.quantize(Quantize::fp8);
  ranks.round(kSums, Values::plain, true);
}

TEST_P(LowLatencyKernelsOnNodes, ManySlots) {
  const Grid grid = GetParam();
  std::vector<std::int32_t> tokens = {2, 1, 0, 1, 1, 1, 0, 1};
  tokens.resize(grid.ranks);
  Ranks ranks({.ranks = grid.ranks,
               .experts = 96,
               .top_k = 72,
               .hidden = 272,
               .tokens = tokens,
               .masks = grid.masks,
               .blocks = 2,
               .node_size = grid.node_size});
  for (const Combine& combine : {kSums, kLogfmt, kRows, kExactLogfmt})
    ranks.round(combine, Values::mixed);
  for (const Combine& combine : {kSums, kNow, kLogfmtNow})
    ranks.round(combine, Values::plain, true);
  for (const Combine& combine : std::span(kUnsummed).first(2)) ranks.round(combine, Values::mixed);
}

TEST_P(LowLatencyKernelsOnNodes, Float8Rows) {
  const Grid grid = GetParam();
  std::vector<std::int32_t> tokens = {3, 1, 0, 1, 1, 1, 0, 1};
  tokens.resize(grid.ranks);
  Ranks ranks({.ranks = grid.ranks,
               .experts = grid.ranks * 3,
               .hidden = 672,
               .tokens = tokens,
               .masks = grid.masks,
               .blocks = 2,
               .node_size = grid.node_size});
  for (const Combine& combine : kFloat8) {
    const bool waits = is_sums(combine.form) && !combine.deferred;
    if (!waits) ranks.round(combine, Values::mixed);
    ranks.round(combine, Values::mixed, true);
  }
  for (const Combine& combine : kUnsummed) ranks.round(combine, Values::mixed);
  ranks.round(kSums, Values::plain);
}

TEST_P(LowLatencyKernelsOnNodes, UnevenExperts) {
  const Grid grid = GetParam();
  Case c{.ranks = grid.ranks, .hidden = 656, .masks = grid.masks, .blocks = 2};
  c.node_size = grid.node_size;
  c.tokens = {3, 1, 0, 1, 1, 1, 0, 1};
  c.tokens.resize(grid.ranks);
  for (const bool gap : {false, true}) {
    c.experts = 2 * grid.ranks + 1;
    if (gap) c.first_expert.assign(grid.ranks, 2), c.first_expert.front() = 0;
    Ranks ranks(c);
    for (const Combine& combine : {kSums, kRows}) ranks.round(combine, Values::mixed);
    ranks.round(kNow, Values::plain, true);
  }
}

TEST_P(LowLatencyKernelsOnNodes, BlockScaledRowsOfAllOnes) {
  const Grid grid = GetParam();
  std::vector<std::int32_t> tokens = {3, 1, 0, 1, 1, 1, 0, 1};
  tokens.resize(grid.ranks);
  Ranks ranks({.ranks = grid.ranks,
               .experts = grid.ranks * 3,
               .hidden = 704,
               .tokens = tokens,
               .masks = grid.masks,
               .blocks = 2,
               .node_size = grid.node_size});
  for (const Quantize quantize :
       {Quantize::mxfp8, Quantize::nvfp4, Quantize::none, Quantize::mxfp8}) {
    ranks.quantize(quantize);
    ranks.round(kSums, Values::plain);
  }
}

/// Puts of a dispatch and a combine of 128 tokens of rank 0, each rank on a node of its own with
/// eight experts; a token names one of them with probability 7/8 in each of 8 top-k slots.
struct Puts {
  std::size_t dispatch, combine, combine_bytes;
};
Puts puts_of(const Combine& combine, std::int32_t ranks, Quantize quantize, NetworkPath path,
             std::int64_t hidden, Values values = Values::plain) {
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
  all.combine(combine, values);
  puts.combine = network.puts;
  puts.combine_bytes = network.put_bytes;
  return puts;
}

// A put for each window of 32 neighbouring rows and few gaps; headers and counts of two ranks.
TEST(LowLatencyKernelsOf, DispatchedRowsSharePuts) {
  for (const NetworkPath path : {NetworkPath::proxy, NetworkPath::nic})
    for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::nvfp4}) {
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

// A LogFMT-10 row has 1.25 bytes a channel, one in e4m3 1.03, a bfloat16 row 2. With exact there
// are 3.5 times as many rows. By NIC, encoded rows of 4096 channels do not join, so gaps do not
// count.
TEST(LowLatencyKernelsOf, EncodedSumsAreFewerBytesThanSums) {
  const auto bytes = [](const Combine& combine) {
    return static_cast<double>(
        puts_of(combine, 2, Quantize::none, NetworkPath::nic, 4096, Values::small).combine_bytes);
  };
  const double sums = bytes(kNow);
  EXPECT_LT(bytes(kLogfmtNow), 0.67 * sums);
  for (const CombineRowForm form : {CombineRowForm::fp8_sums, CombineRowForm::mxfp8_sums})
    EXPECT_LT(bytes({form, false}), 0.55 * sums);
  EXPECT_GT(bytes(kExactLogfmtNow), 2 * sums);
}

// A wait of more than a millisecond is shown with the rank, until its operation ends.
class LowLatencyKernelsWait : public testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(NodeSizes, LowLatencyKernelsWait, testing::Values(0, 1));
TEST_P(LowLatencyKernelsWait, ShowARankThatDoesNotCome) {
  test::fake_gpu::run_concurrently();
  Ranks ranks({.node_size = GetParam()});
  ranks.set_timeout(std::chrono::milliseconds(300));
  ranks.draw();
  for (const std::int32_t rank : {0, 1}) ranks.send(rank);
  ranks.deliver();
  ranks.receive(0);
  EXPECT_EQ(ranks.report(0).rank, 2);
  Statistics statistics;
  EXPECT_EQ(ranks.counts(0, statistics).wait.rank, -1) << "the operation has ended";
  const auto wait = ranks.counts(0, statistics, false).wait;
  EXPECT_EQ(wait.rank, 2);
  EXPECT_EQ(wait.operation, shoal::detail::record::Operation::low_latency_dispatch);
  EXPECT_EQ(wait.phase, shoal::detail::record::Phase::receive);
  EXPECT_EQ(wait.epoch, 1U);
  EXPECT_GT(wait.since, 0U);
}

/// The word that rank `owner` raises at rank `of`; `signals` is an offset of DeviceLayout.
std::uint64_t& signal(Ranks& ranks, std::int32_t of, std::size_t signals, std::int32_t owner) {
  return *reinterpret_cast<std::uint64_t*>(ranks.block(of) + signals +
                                           static_cast<std::size_t>(owner) * detail::kLine);
}

/// Does what a rank does first in its first normal operation.
void enter_normal_mode(Ranks& ranks, std::int32_t rank) {
  for (const std::int32_t to : {0, 1, 2})
    signal(ranks, to, detail::DeviceLayout(shape_of({})).entered, rank) = 1;
}

void expect_other_mode(Ranks& ranks, std::int32_t rank, std::int32_t normal) {
  EXPECT_EQ(ranks.report(rank).fault, static_cast<std::uint32_t>(Fault::other_mode));
  EXPECT_EQ(ranks.report(rank).rank, normal);
  for (const std::int32_t other : {0, 1, 2})
    EXPECT_EQ(signal(ranks, other, detail::DeviceLayout(shape_of({})).failed, rank),
              detail::failed_word(normal, false, true));
}

TEST(LowLatencyKernelsOf, EndWhereARankIsInNormalModeInstead) {
  test::fake_gpu::run_concurrently();
  for (const bool combine : {false, true}) {
    Ranks ranks({});
    if (combine) {
      ranks.dispatch();
      ranks.draw_outputs();
      for (const std::int32_t rank : {0, 1}) ranks.send_combine(rank);
    } else {
      ranks.draw();
      for (const std::int32_t rank : {0, 1}) ranks.send(rank);
    }
    enter_normal_mode(ranks, 2);
    combine ? ranks.receive_combine(0) : ranks.receive(0);
    expect_other_mode(ranks, 0, 2);
  }
}

// A deferred receive may follow a normal operation that another rank has begun.
TEST(LowLatencyKernelsOf, ReceiveFromARankThatHasSentBeforeItsNormalMode) {
  test::fake_gpu::run_concurrently();
  Ranks ranks({});
  ranks.draw();
  for (const std::int32_t rank : {0, 1, 2}) ranks.send(rank);
  enter_normal_mode(ranks, 2);
  for (const std::int32_t rank : {0, 1, 2}) {
    ranks.receive(rank);
    EXPECT_EQ(ranks.report(rank).fault, 0U);
  }
}

/// Normal mode between nodes, as rank 0 sees it: rank 2 is in its first operation, which says what
/// it has sent before.
class NormalModeOfRankTwo {
 public:
  NormalModeOfRankTwo(Ranks& ranks, std::uint64_t dispatches, std::uint64_t combines)
      : layout_(shape()), block_(layout_.control_end) {
    normal_.layout = layout_;
    normal_.memory = memory_.data();
    normal_.ranks = 3;
    normal_.block[0] = block_.data();
    ranks.find_other_mode(0, normal_);
    *reinterpret_cast<std::uint64_t*>(block_.data() + layout_.entered + 2 * detail::kLine) = 1;
    auto& notice = *reinterpret_cast<detail::DeviceNotice*>(block_.data() + layout_.notices +
                                                            (3 + 2) * layout_.notice_bytes);
    notice.dispatches_sent = dispatches;
    notice.combines_sent = combines;
  }

 private:
  static detail::Shape shape() {
    detail::Shape shape = shape_of({});
    shape.low_latency_max_tokens = 0;
    shape.max_tokens = 4;
    return shape;
  }

  const detail::DeviceLayout layout_;
  Array<std::byte> block_;
  Array<GroupMemory> memory_{1};
  DeviceGroup normal_{};
};

TEST(LowLatencyKernelsOf, BetweenNodesEndWhereARankIsInNormalModeInstead) {
  test::fake_gpu::run_concurrently();
  for (const bool combine : {false, true}) {
    Ranks ranks({.node_size = 1});
    if (combine) {
      ranks.dispatch();
      ranks.draw_outputs();
      for (const std::int32_t rank : {0, 1}) ranks.send_combine(rank);
    } else {
      ranks.draw();
      for (const std::int32_t rank : {0, 1}) ranks.send(rank);
    }
    ranks.deliver();
    const NormalModeOfRankTwo normal(ranks, combine ? 1 : 0, 0);
    combine ? ranks.receive_combine(0) : ranks.receive(0);
    EXPECT_EQ(ranks.report(0).fault, static_cast<std::uint32_t>(Fault::other_mode));
    EXPECT_EQ(ranks.report(0).rank, 2);
    ranks.deliver();
    for (const std::int32_t other : {1, 2})
      EXPECT_EQ(signal(ranks, other, detail::DeviceLayout(shape_of({.node_size = 1})).failed, 0),
                detail::failed_word(2, false, true));
  }
}

// Between nodes, what a rank has sent before its normal mode can arrive after it.
TEST(LowLatencyKernelsOf, BetweenNodesWaitForWhatARankHasSentBeforeItsNormalMode) {
  test::fake_gpu::run_concurrently();
  Ranks ranks({.node_size = 1});
  ranks.draw();
  for (const std::int32_t rank : {0, 1, 2}) ranks.send(rank);
  const NormalModeOfRankTwo normal(ranks, 1, 0);
  ranks.set_timeout(std::chrono::milliseconds(100));
  ranks.receive(0);  // the network has delivered nothing
  EXPECT_EQ(ranks.report(0).fault, static_cast<std::uint32_t>(Fault::timeout));
}

}  // namespace
}  // namespace shoal::ep::cuda
