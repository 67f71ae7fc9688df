// SPDX-License-Identifier: Apache-2.0
// Checks that the random shapes of tests/gpu (checks/ep/draws.hpp) cover the ranges that those
// tests state, within the bounds that keep a seed short. Needs no GPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "checks/ep/draws.hpp"

namespace shoal::test {
namespace {

/// The shapes and options that the seeds of one kind cover.
struct Reached {
  std::set<std::int64_t> ranks, top_k, experts, hidden,
      tokens;  ///< tokens of a rank; the limit of the group may be larger
  std::set<Load> loads;
  std::set<std::string> forms;  ///< other options that occurred, by name

  void add(const EpCase& c) {
    ranks.insert(c.ranks);
    top_k.insert(c.top_k);
    experts.insert(c.experts);
    hidden.insert(c.hidden);
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) tokens.insert(c.tokens(rank));
    loads.insert(c.load);
  }
  void add(const std::string& name, bool present) {
    if (present) forms.insert(name);
  }
  void add(const char* what, DataType dtype) {
    forms.insert(std::string(what) + " " + std::string(name_of(dtype)));
  }

  void expect_extremes(std::int64_t shortest_row, std::int64_t most_tokens) const {
    EXPECT_EQ(ranks.size(), static_cast<std::size_t>(kMostRanks)) << "every number of ranks";
    EXPECT_EQ(*top_k.rbegin(), ep::kMaxTopK);
    EXPECT_LE(*top_k.begin(), 2);
    EXPECT_EQ(*experts.rbegin(), kMostExperts);
    EXPECT_LE(*experts.begin(), kMostRanks);
    EXPECT_EQ(*hidden.rbegin(), kLongestRow);
    EXPECT_GE(*hidden.begin(), shortest_row);
    EXPECT_LT(*hidden.begin(), 2 * shortest_row);
    EXPECT_TRUE(std::any_of(hidden.begin(), hidden.end(), [](std::int64_t channels) {
      return channels % 16 == 8;
    })) << "bfloat16 rows of an odd number of 16-byte vectors";
    EXPECT_EQ(*tokens.begin(), 0);
    EXPECT_EQ(*tokens.rbegin(), most_tokens);
    const auto many = std::count_if(tokens.begin(), tokens.end(),
                                    [&](std::int64_t n) { return n > most_tokens / 32; });
    EXPECT_GE(many, 12) << "ranks with more than a few tokens";
    EXPECT_EQ(loads.size(), 4U) << "even, one hot expert, idle ranks, no tokens";
  }
  void expect_forms(std::initializer_list<const char*> names) const {
    for (const char* name : names) EXPECT_TRUE(forms.contains(name)) << "no seed has " << name;
  }
};

TEST(EpDraws, NormalModeReachesWhatIsAnnounced) {
  Reached reached;
  for (std::uint64_t seed = 1; seed <= kNormalSeeds; ++seed) {
    const NormalDraw drawn = draw_normal(seed);
    reached.add(drawn.c);
    reached.add("group of", drawn.options.dtype);
    for (const GpuCall& call : drawn.calls) {
      reached.add("rows of", call.dtype);
      reached.add("outputs of", call.output_dtype);
      if (call.scales > 0) reached.add("scales of", call.scale_dtype);
      reached.add(
          "a row of an odd number of 16 bytes",
          (call.columns > 0 ? call.columns : drawn.c.hidden) * size_of(call.dtype) % 32 == 16);
      reached.add("64 KiB", call.columns == 0 && drawn.c.hidden * size_of(call.dtype) == 65536);
      reached.add("worst case", call.dispatch.worst_case_rows > 0);
      reached.add("copy out", call.dispatch.copy_out);
      reached.add("in place", call.place == OutputPlace::in_place);
      reached.add("int32 indices", call.int32_topk);
      reached.add("strided scales", call.scales > 1 && call.scale_order == ScaleOrder::columns);
      reached.add("two biases", call.biases == 2);
      reached.add("no weights", !call.weights);
      reached.add("combine quantize " + std::to_string(static_cast<int>(call.combine_quantize)),
                  true);
    }
  }
  reached.expect_extremes(kShortestRow, kMostTokens);
  reached.expect_forms({"group of bfloat16",
                        "group of float16",
                        "group of float32",
                        "group of float8_e4m3",
                        "rows of bfloat16",
                        "rows of float16",
                        "rows of float32",
                        "rows of float8_e4m3",
                        "rows of int8",
                        "rows of uint8",
                        "outputs of bfloat16",
                        "outputs of float16",
                        "outputs of float32",
                        "scales of float32",
                        "scales of int32",
                        "a row of an odd number of 16 bytes",
                        "64 KiB",
                        "worst case",
                        "copy out",
                        "in place",
                        "int32 indices",
                        "strided scales",
                        "two biases",
                        "no weights",
                        "combine quantize 0",
                        "combine quantize 1",
                        "combine quantize 4"});
}

TEST(EpDraws, LowLatencyReachesWhatIsAnnounced) {
  Reached reached;
  for (std::uint64_t seed = 1; seed <= kLowLatencySeeds; ++seed) {
    const LowLatencyDraw drawn = draw_low_latency(seed);
    reached.add(drawn.c);
    for (const LowLatencyDraw::Step& step : drawn.steps) {
      reached.add("two open", step.both_open);
      for (const GpuLowLatencyCall& call : {step.first, step.second}) {
        reached.add("quantize " + std::to_string(static_cast<int>(call.quantize)), true);
        reached.add("scales " + std::to_string(static_cast<int>(call.scale_layout)), true);
        reached.add("exact", call.reduction == ep::Reduction::exact);
        reached.add("log_fmt", call.log_fmt);
        reached.add("combine quantize " + std::to_string(static_cast<int>(call.combine_quantize)),
                    true);
        if (call.log_fmt && call.reduction != ep::Reduction::exact)
          reached.add(call.early_weights || !call.defer_receive ? "log_fmt sums" : "log_fmt rows",
                      true);
        reached.add("zero copy", call.zero_copy);
        reached.add("early weights", call.early_weights);
        reached.add("int32 indices", call.int32_topk);
        reached.add("immediate", !call.defer_receive);
      }
    }
  }
  reached.expect_extremes(kShortestRow, kMostSlots);
  reached.expect_forms({"two open",
                        "quantize 0",
                        "quantize 1",
                        "quantize 2",
                        "quantize 3",
                        "quantize 4",
                        "quantize 5",
                        "scales 0",
                        "scales 1",
                        "scales 2",
                        "scales 3",
                        "exact",
                        "log_fmt",
                        "log_fmt sums",
                        "log_fmt rows",
                        "combine quantize 0",
                        "combine quantize 1",
                        "combine quantize 4",
                        "zero copy",
                        "early weights",
                        "int32 indices",
                        "immediate"});
}

TEST(EpDraws, BackendsAreComparedOnWhatIsAnnounced) {
  Reached normal, low_latency;
  for (std::uint64_t seed = 1; seed <= kComparedSeeds; ++seed) {
    const NormalComparison drawn = draw_normal_comparison(seed);
    normal.add(drawn.c);
    for (const NormalForm& form : drawn.forms) {
      normal.add("rows of", form.dtype);
      normal.add("outputs of", form.output_dtype);
      if (form.scales > 0) normal.add("scales of", form.scale_dtype);
      const bool expert_major = form.expert_major;
      for (const char* layout : {"", expert_major ? "expert_major " : "rank_major "}) {
        normal.add(std::string(layout) + "worst case", form.worst_case);
        normal.add(std::string(layout) + "copy out", form.copy_out);
        normal.add(std::string(layout) + "in place", form.in_place);
        normal.add(std::string(layout) + "cached", form.cached);
        normal.add(std::string(layout) + "int32 indices", form.int32_topk);
      }
    }
    const LowLatencyComparison other = draw_low_latency_comparison(seed);
    low_latency.add(other.c);
    for (const LowLatencyForm& form : other.forms) {
      low_latency.add("quantize " + std::to_string(static_cast<int>(form.quantize)), true);
      low_latency.add("exact", form.reduction == ep::Reduction::exact);
      low_latency.add("log_fmt", form.log_fmt);
      low_latency.add("combine quantize " + std::to_string(static_cast<int>(form.combine_quantize)),
                      true);
      low_latency.add("log_fmt sums without early weights",
                      form.log_fmt && form.reduction != ep::Reduction::exact &&
                          !form.early_weights && !form.defer_receive);
      low_latency.add("early weights", form.early_weights);
      low_latency.add("int32 indices", form.int32_topk);
    }
  }
  normal.expect_extremes(8, kMostTokens);
  normal.expect_forms({"rows of bfloat16",
                       "rows of float16",
                       "rows of float32",
                       "rows of float8_e4m3",
                       "rows of int8",
                       "rows of uint8",
                       "outputs of bfloat16",
                       "outputs of float16",
                       "outputs of float32",
                       "scales of float32",
                       "scales of int32",
                       "rank_major worst case",
                       "expert_major worst case",
                       "rank_major copy out",
                       "expert_major copy out",
                       "rank_major in place",
                       "expert_major in place",
                       "rank_major cached",
                       "expert_major cached",
                       "rank_major int32 indices",
                       "expert_major int32 indices"});
  low_latency.expect_extremes(8, kMostSlots);
  low_latency.expect_forms(
      {"quantize 0", "quantize 1", "quantize 2", "quantize 3", "quantize 4", "quantize 5",
       "combine quantize 0", "combine quantize 1", "combine quantize 4", "exact", "log_fmt",
       "log_fmt sums without early weights", "early weights", "int32 indices"});
}

}  // namespace
}  // namespace shoal::test
