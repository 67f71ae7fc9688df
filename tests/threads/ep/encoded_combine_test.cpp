// SPDX-License-Identifier: Apache-2.0
// Encoded combine rows of both modes: bit by bit, with the values of numeric/ for every sum or
// expert output, added in the documented order; in e4m3 also within the stated bounds of the sums
// in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/normal.hpp"
#include "ep/numeric/rows.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/made_up.hpp"

namespace shoal::test {

namespace numeric = ep::numeric;

namespace {

using ep::Quantize;
using ep::detail::CombineEncoding;

EpCase mixed(std::int32_t ranks, std::int64_t hidden) {
  return {.ranks = ranks,
          .experts = ranks * 3,
          .top_k = 5,
          .hidden = hidden,
          .max_tokens = 12,
          .seed = 4,
          .mixed_magnitudes = true};
}

/// Options of an encoded combine, and whether the weights travel with the dispatch.
struct Call {
  ep::Reduction reduction = ep::Reduction::per_rank;
  bool early_weights = false;
  std::vector<int> defers{};  ///< [ranks]; empty: none
};

Quantize quantize_of(CombineEncoding encoding) {
  return encoding == CombineEncoding::fp8     ? Quantize::fp8
         : encoding == CombineEncoding::mxfp8 ? Quantize::mxfp8
                                              : Quantize::none;
}

void check_encoded(ep::Group& group, const EpCase& c, CombineEncoding encoding, const Call& call) {
  const std::int32_t me = group.team().my_pe();
  const Inputs in(c, me);
  ep::LowLatencyDispatchOptions options{.quantize = ep::Quantize::none};
  if (call.early_weights) options.weights = in.weights;
  const ep::LowLatencyReceived got =
      group.low_latency_dispatch(in.x, in.topk_idx, options).receive();
  const Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
  write_low_latency_expert_output(c, me, got, y);
  const bool defers = !call.defers.empty() && call.defers[me] != 0;
  const Tensor out = group
                         .low_latency_combine(y, in.topk_idx, in.weights, got.handle,
                                              {.log_fmt = encoding == CombineEncoding::log_fmt,
                                               .quantize = quantize_of(encoding),
                                               .reduction = call.reduction,
                                               .defer_receive = defers})
                         .receive();
  Travels travels = combine_travels(encoding, true);
  if (!call.early_weights) travels.unsummed = call.defers;
  const auto wanted = expected_low_latency(c, me, call.reduction, {}, travels);
  expect_same(fmt::format("{} result ({})", name_of(encoding), c.describe()), out.data,
              wanted.data(), wanted.size() * 2, 2);
}

/// All forms of an encoded combine on so many ranks.
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
    for (const CombineEncoding encoding :
         {CombineEncoding::log_fmt, CombineEncoding::fp8, CombineEncoding::mxfp8}) {
      if (c.hidden % ep::detail::hidden_multiple(quantize_of(encoding)) != 0) continue;
      for (const Call& call : calls(c.ranks))  // all but the first two use memory of earlier ones
        check_encoded(group, c, encoding, call);
    }
    check_low_latency(group, c, ep::Reduction::exact,
                      false);  // bfloat16 rows in memory that held encoded rows before
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

TEST(EpEncodedCombine, TheCasesHaveLogFmtRowsOfEveryKind) {
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
TEST(EpEncodedCombine, SumsDifferFromSummedRows) {
  const EpCase c = mixed(3, 640);
  for (const CombineEncoding encoding :
       {CombineEncoding::log_fmt, CombineEncoding::fp8, CombineEncoding::mxfp8}) {
    const auto wanted = [&](bool sums) {
      return expected_low_latency(c, 0, ep::Reduction::per_rank, {},
                                  combine_travels(encoding, sums));
    };
    EXPECT_NE(wanted(true), wanted(false)) << name_of(encoding);
  }
}

TEST(EpEncodedCombine, ResultIsThatOfNumeric) {
  for (const std::int64_t hidden : {2048, 1536, 640}) run_case(mixed(3, hidden));
}

TEST(EpEncodedCombine, HiddenNeedsNotFillItsGroups) {
  for (const std::int64_t hidden : {8, 16, 32, 160, 200, 1032, 1056}) run_case(mixed(3, hidden));
}

TEST(EpEncodedCombine, EightRanksSomeOfThemIdle) {
  EpCase c = mixed(8, 640);
  run_case(c);
  for (const Load load : {Load::some_idle, Load::none, Load::all_to_one}) {
    c.load = load;
    run_case(c);
  }
}

/// Heavy-tailed rows with a few large channels, in three magnitudes: an e4m3 cast without scales
/// would saturate those of the largest, and lose most of the smallest.
void write_heavy_tails(const EpCase& c, std::int32_t rank, const Tensor& x) {
  std::mt19937_64 random(17 + static_cast<std::uint64_t>(rank));
  std::student_t_distribution<double> tails(3);
  for (std::int64_t t = 0; t < x.shape[0]; ++t) {
    const double magnitude = std::exp2(12.0 * static_cast<double>(t % 3 - 1));
    for (std::int64_t ch = 0; ch < c.hidden; ++ch)
      x.as<std::uint16_t>()[t * c.hidden + ch] =
          bf16_of(static_cast<float>(magnitude * tails(random) * (ch % 97 == 5 ? 30 : 1)));
  }
}

/// The result of a combine of one token in float64, and the bound of the error of each channel that
/// LowLatencyCombineOptions::quantize states, roundings to bfloat16 included.
struct Reference {
  std::vector<double> sums, bounds;

  /// Normal mode: each rank returns a row in bfloat16.
  Reference(const EpCase& c, const Inputs& in, std::int64_t token, Quantize quantize)
      : sums(c.hidden), bounds(c.hidden) {
    const std::int64_t* const experts = in.topk_idx.as<std::int64_t>() + token * c.top_k;
    const std::uint16_t* const x = in.x.as<std::uint16_t>() + token * c.hidden;
    for (const std::int32_t rank : ranks_of(c, experts)) {
      std::vector<std::int64_t> local(c.top_k, -1);
      for (std::int32_t k = 0; k < c.top_k; ++k)
        if (experts[k] >= 0 && c.rank_of(experts[k]) == rank) local[k] = c.local_of(experts[k]);
      std::vector<double> row(c.hidden);
      for (std::int64_t ch = 0; ch < c.hidden; ++ch)
        sums[ch] += row[ch] = float_of_bf16(
            expert_output(c, rank, x[ch], local.data(), in.weights.as<float>() + token * c.top_k));
      add_bounds(row, quantize, 1, 0);
    }
    round();
  }

  Reference(const EpCase& c, const Inputs& in, std::int64_t token, Quantize quantize, bool exact)
      : sums(c.hidden), bounds(c.hidden) {
    const std::int64_t* const experts = in.topk_idx.as<std::int64_t>() + token * c.top_k;
    const float* const weights = in.weights.as<float>() + token * c.top_k;
    const std::uint16_t* const x = in.x.as<std::uint16_t>() + token * c.hidden;
    for (const std::int32_t rank : ranks_of(c, experts)) {
      std::vector<double> part(c.hidden);
      for (std::int32_t k = 0; k < c.top_k; ++k) {
        if (experts[k] < 0 || c.rank_of(experts[k]) != rank) continue;
        std::vector<double> row(c.hidden);
        const float factor = expert_factor(static_cast<std::int32_t>(experts[k]));
        for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
          row[ch] = float_of_bf16(bf16_of(factor * float_of_bf16(x[ch])));
          part[ch] += weights[k] * row[ch];
        }
        if (exact) add_bounds(row, quantize, std::fabs(weights[k]), 0);
      }
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) sums[ch] += part[ch];
      // Sums are rounded to bfloat16 before they are encoded, and after.
      if (!exact) add_bounds(part, quantize, 1, 2.1 * kRounding);
    }
    round();
  }

  /// The largest error of a row of `out`, as a fraction of its bound, which it must not exceed.
  double check(const Tensor& out, std::int64_t token) const {
    const std::uint16_t* const row = out.as<std::uint16_t>() + token * out.shape[1];
    double worst = 0;
    for (std::size_t ch = 0; ch < sums.size(); ++ch) {
      const double error = std::fabs(float_of_bf16(row[ch]) - sums[ch]);
      expect(error <= bounds[ch], [&] {
        return fmt::format("token {}, channel {}: error {}, bound {}", token, ch, error,
                           bounds[ch]);
      });
      if (error > 0) worst = std::max(worst, error / bounds[ch]);
    }
    return worst;
  }

 private:
  static constexpr double kRounding = 0x1p-8, kFloat32Sums = 1e-6;

  void round() {
    for (std::size_t ch = 0; ch < sums.size(); ++ch)
      bounds[ch] += kRounding * (std::fabs(sums[ch]) + bounds[ch]);
  }
  void add_bounds(const std::vector<double>& row, Quantize quantize, double weight,
                  double roundings) {
    const bool fp8 = quantize == Quantize::fp8;
    const std::size_t group = fp8 ? 128 : 32;
    for (std::size_t first = 0; first < row.size(); first += group) {
      const std::size_t end = std::min(first + group, row.size());
      double amax = fp8 ? 1e-4 : 0;
      for (std::size_t ch = first; ch < end; ++ch) amax = std::max(amax, std::fabs(row[ch]));
      for (std::size_t ch = first; ch < end; ++ch)
        bounds[ch] += weight * amax * ((fp8 ? 1.0 / 28 : 1.0 / 16) + roundings + kFloat32Sums);
    }
  }
};

TEST(EpEncodedCombine, ErrorsInE4m3AreWithinTheStatedBounds) {
  EpCase c = mixed(3, 1024);
  c.max_tokens = 24;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const std::int32_t me = world.my_pe();
    const Inputs in(c, me);
    write_heavy_tails(c, me, in.x);
    const ep::LowLatencyReceived got =
        group.low_latency_dispatch(in.x, in.topk_idx, {.quantize = Quantize::none}).receive();
    const Tensor y =
        Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
    write_low_latency_expert_output(c, me, got, y);
    for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
      for (const auto reduction : {ep::Reduction::per_rank, ep::Reduction::exact}) {
        const Tensor out =
            group
                .low_latency_combine(
                    y, in.topk_idx, in.weights, got.handle,
                    {.quantize = quantize, .reduction = reduction, .defer_receive = false})
                .receive();
        double worst = 0;
        for (std::int64_t t = 0; t < out.shape[0]; ++t)
          worst = std::max(
              worst,
              Reference(c, in, t, quantize, reduction == ep::Reduction::exact).check(out, t));
        if (out.shape[0] > 2) EXPECT_GT(worst, 0.3) << "the bound says little";
      }
  });
}

/// NaNs and infinities reach the channels that share their scale, and no others; zeros stay zero.
TEST(EpEncodedCombine, RowsOfNansInfinitiesAndZerosInE4m3) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInfinity = std::numeric_limits<float>::infinity();
  const EpCase c{.ranks = 2, .experts = 2, .top_k = 2, .hidden = 384, .max_tokens = 5, .seed = 1};
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    constexpr std::int64_t kTokens = 5;
    const Tensor x = Tensor::empty(DataType::bfloat16, {kTokens, c.hidden}),
                 topk = Tensor::empty(DataType::int64, {kTokens, 2}),
                 weights = Tensor::empty(DataType::float32, {kTokens, 2});
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
        const bool one = ch == 200;
        const float value = t == 0          ? kNan
                            : t == 1        ? 0
                            : t == 2 && one ? kNan
                            : t == 3 && one ? -kInfinity
                                            : 1.5F;
        x.as<std::uint16_t>()[t * c.hidden + ch] = bf16_of(value);
      }
      for (std::int64_t k = 0; k < 2; ++k) {
        topk.as<std::int64_t>()[t * 2 + k] = k;
        weights.as<float>()[t * 2 + k] = 1;
      }
    }
    for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
      for (const auto reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
        for (const bool defer : {true, false}) {
          const auto got =
              group.low_latency_dispatch(x, topk, {.quantize = Quantize::none}).receive();
          const Tensor out =
              group
                  .low_latency_combine(
                      got.x, topk, weights, got.handle,
                      {.quantize = quantize, .reduction = reduction, .defer_receive = defer})
                  .receive();
          const std::int64_t first = quantize == Quantize::fp8 ? 128 : 192,
                             end = quantize == Quantize::fp8 ? 256 : 224;
          for (std::int64_t t = 0; t < kTokens; ++t)
            for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
              const float value = float_of_bf16(out.as<std::uint16_t>()[t * c.hidden + ch]);
              const bool nan = t == 0 || ((t == 2 || t == 3) && ch >= first && ch < end);
              ASSERT_EQ(std::isnan(value), nan) << "token " << t << ", channel " << ch;
              if (!nan) ASSERT_EQ(value, t == 1 ? 0.0F : 3.0F) << "token " << t;
            }
        }
  });
}

// Normal mode, on one node.

constexpr Quantize kFormats[] = {Quantize::fp8, Quantize::mxfp8};

/// Combines of both layouts in both formats, between those of bfloat16 rows in the same memory.
void run_normal(const EpCase& c) {
  const ExpertMajorCall call{.alignment = 3, .biases = 2};
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    ep::Group blocks(world.team(), expert_major_options(c, call));
    for (const Quantize quantize : kFormats) {
      if (c.hidden % ep::detail::hidden_multiple(quantize) != 0) continue;
      for (const std::uint64_t seed : {0, 1}) {  // expert output outside the heap, and in it
        check_normal(group, reseeded(c, seed), {}, quantize);
        check_normal(group, reseeded(c, seed));
        for (const bool in_place : {false, true}) {
          ExpertMajorCall encoded = call;
          encoded.in_place = in_place;
          encoded.combine_quantize = quantize;
          check_expert_major(blocks, reseeded(c, seed), encoded, host_tensors());
        }
      }
    }
    check_normal(group, c);
  });
}

TEST(EpEncodedCombine, NormalModeIsThatOfNumeric) {
  for (const std::int64_t hidden : {16, 32, 160, 1056, 2048}) run_normal(mixed(3, hidden));
  run_normal(mixed(1, 256));
}

TEST(EpEncodedCombine, NormalModeOfEightRanksSomeOfThemIdle) {
  EpCase c = mixed(8, 640);
  for (const Load load : {Load::random, Load::some_idle, Load::none, Load::all_to_one}) {
    c.load = load;
    run_normal(c);
  }
}

// topk_rows: the sum of a rank's rows is rounded to bfloat16, then encoded.
TEST(EpEncodedCombine, SumsOfTopkRowsAreEncoded) {
  const EpCase c = mixed(3, 640);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Dispatched got =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    const Tensor sums = expert_output_of(c, world.my_pe(), got);
    // A sum of two rows that are half of it, and, in other rows, of one.
    const std::int64_t rows = sums.shape[0];
    const Tensor y = Tensor::empty(DataType::bfloat16, {2 * rows, c.hidden}),
                 topk_rows = Tensor::empty(DataType::int32, {rows, c.top_k}),
                 weights = Tensor::empty(DataType::float32, {2 * rows});
    for (std::int64_t row = 0; row < rows; ++row) {
      const bool halved = row % 2 == 0;
      for (std::int64_t ch = 0; ch < c.hidden; ++ch) {
        const float value = float_of_bf16(sums.as<std::uint16_t>()[row * c.hidden + ch]);
        y.as<std::uint16_t>()[2 * row * c.hidden + ch] = bf16_of(halved ? value / 2 : value);
        y.as<std::uint16_t>()[(2 * row + 1) * c.hidden + ch] = bf16_of(value / 2);
      }
      std::fill_n(topk_rows.as<std::int32_t>() + row * c.top_k, c.top_k, -1);
      topk_rows.as<std::int32_t>()[row * c.top_k] = static_cast<std::int32_t>(2 * row);
      if (halved)
        topk_rows.as<std::int32_t>()[row * c.top_k + 2] = static_cast<std::int32_t>(2 * row + 1);
    }
    std::fill_n(weights.as<float>(), 2 * rows, 1.0F);
    for (const Quantize quantize : kFormats) {
      const auto wanted = group.combine(sums, got.handle, {.quantize = quantize});
      const auto summed = group.combine(
          y, got.handle, {.weights = weights, .topk_rows = topk_rows, .quantize = quantize});
      expect_same("sums of topk_rows", summed.x.data, wanted.x.data, wanted.x.bytes(), 2);
    }
  });
}

TEST(EpEncodedCombine, ErrorsOfNormalModeAreWithinTheStatedBounds) {
  EpCase c = mixed(3, 1024);
  c.max_tokens = 24;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    write_heavy_tails(c, world.my_pe(), in.x);
    const ep::Dispatched got =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    const Tensor y = expert_output_of(c, world.my_pe(), got);
    for (const Quantize quantize : kFormats) {
      const ep::Combined sums = group.combine(y, got.handle, {.quantize = quantize});
      double worst = 0;
      for (std::int64_t t = 0; t < sums.x.shape[0]; ++t)
        worst = std::max(worst, Reference(c, in, t, quantize).check(sums.x, t));
      if (sums.x.shape[0] > 2) EXPECT_GT(worst, 0.3) << "the bound says little";
    }
  });
}

TEST(EpEncodedCombine, NormalModeRefusesWhatItCannotEncode) {
  EpCase c = mixed(2, 208);  // no multiple of 32
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    ep::GroupOptions options = options_for(c);
    options.combine_staging = false;
    ep::Group without(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
    const auto refused = [&](const char* text, Quantize quantize, const ConstTensorView& y) {
      expect_error(Code::invalid_argument, text,
                   [&] { (void)group.combine(y, got.handle, {.quantize = quantize}); });
    };
    refused("quantize is nvfp4; allowed for the rows of a combine: none, fp8 and mxfp8",
            Quantize::nvfp4, got.x);
    refused("quantize is fp8_ue8m0; allowed", Quantize::fp8_ue8m0, got.x);
    refused("quantize has the unknown value 9", static_cast<Quantize>(9), got.x);
    refused("rows in mxfp8 must be a multiple of 32 channels", Quantize::mxfp8, got.x);
    const Tensor floats = Tensor::empty(DataType::float32, {got.x.shape[0], c.hidden});
    refused("y (with quantize) is float32", Quantize::fp8, floats);
    const ep::Dispatched there = without.dispatch(in.x, without.route(in.topk_idx));
    expect_error(
        Code::invalid_argument, "combine: quantize is fp8, which encodes y to memory",
        [&] { (void)without.combine(there.x, there.handle, {.quantize = Quantize::fp8}); });
    // Ranks that differ get a mismatch, and the groups stay usable.
    expect_error(Code::mismatch, "combine of bfloat16 rows sent as fp8", [&] {
      (void)group.combine(got.x, got.handle,
                          {.quantize = world.my_pe() == 0 ? Quantize::none : Quantize::fp8});
    });
    (void)without.combine(there.x, there.handle);
    check_normal(group, c, {}, Quantize::fp8);
  });
}

}  // namespace
}  // namespace shoal::test
