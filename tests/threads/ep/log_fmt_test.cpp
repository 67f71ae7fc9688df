// SPDX-License-Identifier: Apache-2.0
// LogFMT-10 combine rows, bit by bit: the values of numeric/ for every sum or expert output, added
// in the documented order.
#include <gtest/gtest.h>

#include "checks/ep/normal.hpp"
#include "ep/numeric/rows.hpp"
#include "shoal/world.hpp"

namespace shoal::test {

namespace numeric = ep::numeric;

namespace {

EpCase mixed(std::int32_t ranks, std::int64_t hidden) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 5,
          .hidden = hidden,
          .max_tokens = 12,
          .seed = 4,
          .mixed_magnitudes = true};
}

/// Options of a combine in LogFMT-10, and whether the weights travel with the dispatch.
struct Call {
  ep::Reduction reduction = ep::Reduction::per_rank;
  bool early_weights = false;
  std::vector<int> defers{};  ///< [ranks]; empty: none
};

void check_log_fmt(ep::Group& group, const EpCase& c, const Call& call) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  ep::LowLatencyDispatchOptions options{.quantize = ep::Quantize::none};
  if (call.early_weights) options.weights = in.weights;
  const ep::LowLatencyReceived got =
      group.low_latency_dispatch(in.x, in.topk_idx, options).receive();
  const Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
  write_low_latency_expert_output(c, me, got, y);
  const bool defers = !call.defers.empty() && call.defers[me] != 0;
  const Tensor out =
      group
          .low_latency_combine(
              y, in.topk_idx, in.weights, got.handle,
              {.log_fmt = true, .reduction = call.reduction, .defer_receive = defers})
          .receive();
  Travels travels = log_fmt_travels(true);
  if (!call.early_weights) travels.unsummed = call.defers;
  const auto wanted = expected_low_latency(c, me, call.reduction, {}, travels);
  expect_same("LogFMT result (" + c.describe() + ")", out.data, wanted.data(), wanted.size() * 2,
              2);
}

/// All forms of a combine in LogFMT-10 on so many ranks.
std::vector<Call> calls(std::int32_t ranks) {
  std::vector<int> all(ranks, 1), some(ranks, 1);
  some.front() = 0;
  return {{.reduction = ep::Reduction::exact},
          {},
          {.defers = all},
          {.early_weights = true, .defers = all},
          {.defers = some},
          {.reduction = ep::Reduction::exact, .early_weights = true, .defers = all},
          {.early_weights = true}};
}

void run_case(const EpCase& c) {
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    for (const Call& call : calls(c.ranks))  // all but the first two use memory of earlier ones
      check_log_fmt(group, c, call);
    check_low_latency(group, c, ep::Reduction::exact,
                      false);  // bfloat16 rows in memory that held LogFMT rows before
  });
}

/// Bytes on the wire of the combine row for token `t` of rank 0.
std::size_t encoded_bytes(const EpCase& c, std::int64_t t) {
  std::vector<numeric::Bf16> row(c.hidden);
  for (std::int64_t ch = 0; ch < c.hidden; ++ch)
    row[ch] = numeric::to_bf16(expert_factor(0) * float_of_bf16(c.value(0, t, ch)));
  std::vector<numeric::LogfmtGroup> bytes(
      numeric::logfmt_row_bytes(c.hidden) / sizeof(numeric::LogfmtGroup) + 1);
  return numeric::logfmt_encode_row(row, reinterpret_cast<std::byte*>(bytes.data()));
}

TEST(EpLogFmt, TheCasesHaveRowsOfEveryKind) {
  const EpCase c = mixed(1, 1536);
  const std::size_t all_bfloat16 = numeric::logfmt_row_bytes(c.hidden),
                    saved = 512 * 2 - numeric::logfmt_bytes(512);
  EXPECT_EQ(encoded_bytes(c, 0),
            all_bfloat16 - 2 * saved);           // one block of three has magnitudes of 1 and more
  EXPECT_EQ(encoded_bytes(c, 4), all_bfloat16);  // zeros
  EXPECT_EQ(encoded_bytes(c, 1), all_bfloat16 - 2 * saved);
}

// The case tells the two ways apart: the sum of a rank is encoded once, with the weights of its
// experts, or each expert output is.
TEST(EpLogFmt, SumsDifferFromSummedRows) {
  const EpCase c = mixed(3, 640);
  const auto wanted = [&](bool sums) {
    return expected_low_latency(c, 0, ep::Reduction::per_rank, {}, log_fmt_travels(sums));
  };
  EXPECT_NE(wanted(true), wanted(false));
}

TEST(EpLogFmt, ResultIsThatOfNumeric) {
  for (const std::int64_t hidden : {2048, 1536, 640}) run_case(mixed(3, hidden));
}

TEST(EpLogFmt, HiddenNeedsNotFillItsGroups) {
  for (const std::int64_t hidden : {8, 200, 1032}) run_case(mixed(3, hidden));
}

TEST(EpLogFmt, EightRanksSomeOfThemIdle) {
  EpCase c = mixed(8, 640);
  run_case(c);
  for (const Load load : {Load::some_idle, Load::none, Load::all_to_one}) {
    c.load = load;
    run_case(c);
  }
}

}  // namespace
}  // namespace shoal::test
