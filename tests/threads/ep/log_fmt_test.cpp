// SPDX-License-Identifier: Apache-2.0
// LogFMT-10 combine rows, bit by bit: the values of numeric/ for every row, summed in the
// documented order.
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

void check_log_fmt(ep::Group& group, const EpCase& c, ep::Reduction reduction) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  const ep::LowLatencyReceived got =
      group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
  const Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
  write_low_latency_expert_output(c, me, got, y);
  const Tensor out = group
                         .low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                              {.log_fmt = true, .reduction = reduction})
                         .receive();
  const auto wanted =
      expected_low_latency(c, me, reduction, {}, {.to_experts = {}, .back = log_fmt_travel()});
  expect_same("LogFMT result (" + c.describe() + ")", out.data, wanted.data(), wanted.size() * 2,
              2);
}

void run_case(const EpCase& c) {
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    for (int round = 0; round < 3; ++round)  // the third round uses memory of the first again
      for (const auto reduction : {ep::Reduction::exact, ep::Reduction::per_rank})
        check_log_fmt(group, c, reduction);
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
