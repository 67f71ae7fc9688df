// SPDX-License-Identifier: Apache-2.0
// The arithmetic of expert parallelism, exhaustively where possible: log2, exp2 and exp against
// libm in higher precision; FP8 scales and rows; LogFMT-10; NVFP4. tests/unit/base/numeric_test.cpp
// has the codes of single values.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "ep/numeric/elementary.hpp"
#include "ep/numeric/exponential.hpp"
#include "ep/numeric/float16.hpp"
#include "ep/numeric/nvfp4.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::numeric {
namespace {

/// Distance in units in the last place of `want`.
double ulps(float got, double want) {
  if (static_cast<double>(got) == want) return 0;
  const double magnitude = std::max(std::abs(want), 0x1p-126);
  return std::abs(got - want) / std::ldexp(1.0, std::ilogb(magnitude) - 23);
}

TEST(NumericLog2, IsWithinTwoUlps) {
  double worst = 0;
  for (std::uint64_t bits = 1; bits < kInfinityBits; bits += 1021) {
    const float x = float_of(static_cast<std::uint32_t>(bits));
    worst = std::max(worst, ulps(log2(x), std::log2(static_cast<double>(x))));
  }
  // Near 1 the result is small and cancellation would show.
  for (std::int32_t i = -200'000; i <= 200'000; i += 7) {
    const float x =
        float_of(static_cast<std::uint32_t>(static_cast<std::int32_t>(bits_of(1.0f)) + i));
    worst = std::max(worst, ulps(log2(x), std::log2(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 2.0);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(NumericLog2, ExactAtPowersOfTwoAndSpecialValues) {
  for (int e = -149; e <= 127; ++e) EXPECT_EQ(log2(std::ldexp(1.0f, e)), static_cast<float>(e));
  EXPECT_EQ(log2(0.0f), -INFINITY);
  EXPECT_EQ(log2(-0.0f), -INFINITY);
  EXPECT_EQ(log2(INFINITY), INFINITY);
  EXPECT_TRUE(std::isnan(log2(-1.0f)));
  EXPECT_TRUE(std::isnan(log2(-INFINITY)));
  EXPECT_TRUE(std::isnan(log2(NAN)));
}

TEST(NumericExp2, IsWithinTwoUlps) {
  double worst = 0;
  for (double x = -149.0; x < 128.0; x += 0x1.3p-11) {
    const auto rounded = static_cast<float>(x);
    worst = std::max(worst, ulps(exp2(rounded), std::exp2(static_cast<double>(rounded))));
  }
  for (float x = 1e-30f; x < 0.5f; x *= 1.01f)
    for (const float y : {x, -x})
      worst = std::max(worst, ulps(exp2(y), std::exp2(static_cast<double>(y))));
  EXPECT_LT(worst, 2.0);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(NumericExp2, ExactAtIntegersAndSpecialValues) {
  for (int e = -149; e <= 127; ++e)
    EXPECT_EQ(exp2(static_cast<float>(e)), std::ldexp(1.0f, e)) << e;
  EXPECT_EQ(exp2(128.0f), INFINITY);
  EXPECT_EQ(exp2(INFINITY), INFINITY);
  EXPECT_EQ(exp2(-152.0f), 0.0f);
  EXPECT_EQ(exp2(-INFINITY), 0.0f);
  EXPECT_TRUE(std::isnan(exp2(NAN)));
}

TEST(NumericExp, IsWithinOneUlp) {
  long double worst = 0;
  const auto look = [&](double x) {
    const long double want = std::exp(static_cast<long double>(x));
    const long double unit = std::ldexp(1.0L, std::ilogb(want) - 52);
    worst = std::max(worst, std::abs(static_cast<long double>(exp(x)) - want) / unit);
  };
  for (double x = -708.0; x < 709.0; x += 0x1.35p-8) look(x);
  for (double x = 1e-300; x < 1; x *= 1.03)
    for (const double y : {x, -x}) look(y);
  EXPECT_LT(worst, 1.0L);
  RecordProperty("worst_ulps", std::to_string(worst));
}

TEST(NumericExp, SpecialValues) {
  EXPECT_EQ(exp(0.0), 1.0);
  EXPECT_EQ(exp(-0.0), 1.0);
  EXPECT_EQ(exp(710.0), INFINITY);
  EXPECT_EQ(exp(static_cast<double>(INFINITY)), INFINITY);
  EXPECT_EQ(exp(-746.0), 0.0);
  EXPECT_EQ(exp(-static_cast<double>(INFINITY)), 0.0);
  EXPECT_NEAR(exp(-740.0), std::exp(-740.0), 1e-323);  // subnormal
  EXPECT_TRUE(std::isnan(exp(static_cast<double>(NAN))));
}

TEST(NumericArithmetic, AccumulateRoundsTheProductFirst) {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: the last term is lost when the product is rounded, kept
  // when it is fused. This fails when the build contracts expressions (-ffp-contract=off is
  // missing).
  volatile float x = 1.0f + 0x1p-12f;
  volatile float minus = -(1.0f + 0x1p-11f);
  EXPECT_EQ(accumulate(minus, x, x), 0.0f);
  EXPECT_EQ(fma(x, x, minus), 0x1p-24f);
}

std::vector<Bf16> normal_row(std::size_t hidden, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<Bf16> row(hidden);
  for (Bf16& value : row) value = to_bf16(normal(random));
  return row;
}

/// For every finite bfloat16 as amax: the two scales are inverse, the largest value fits, and a
/// power of two is the smallest that does.
TEST(NumericScale, EveryAmax) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float amax = to_float(Bf16{static_cast<std::uint16_t>(bits)});
    const double raised = std::max<double>(amax, 1e-4f);
    const Scale plain = scale_of(amax, ScaleRounding::none);
    ASSERT_EQ(plain.dequantize, static_cast<float>(raised / 448)) << amax;
    ASSERT_EQ(plain.quantize, static_cast<float>(448 / raised)) << amax;

    const Scale power = scale_of(amax, ScaleRounding::power_of_two);
    int exponent = 0;
    ASSERT_EQ(std::frexp(power.dequantize, &exponent), 0.5) << amax;
    ASSERT_EQ(static_cast<double>(power.quantize) * power.dequantize, 1.0) << amax;
    ASSERT_LE(raised, 448.0 * power.dequantize) << amax;
    ASSERT_GT(raised, 448.0 * power.dequantize / 2) << amax;
    ASSERT_EQ(decode_ue8m0(encode_ue8m0(power.dequantize)), power.dequantize);
  }
}

TEST(NumericScale, ExponentIsExactAroundPowersOfTwo) {
  for (int e = -15; e <= 100; ++e) {
    const float exact = std::ldexp(448.0f, e);
    EXPECT_EQ(scale_exponent(exact), e);
    EXPECT_EQ(scale_exponent(std::nextafter(exact, INFINITY)), e + 1);
    EXPECT_EQ(scale_exponent(std::nextafter(exact, 0.0f)), e);
  }
}

TEST(NumericScale, Ue8m0PacksFourGroupsLittleEndFirst) {
  const std::vector<float> scales = {1.0f, 2.0f, 0.5f, 4.0f, 8.0f};
  std::vector<std::int32_t> words(ue8m0_words(5 * 128), -1);
  ASSERT_EQ(words.size(), 2u);
  pack_ue8m0(scales, words);
  EXPECT_EQ(words[0], static_cast<std::int32_t>(0x817e'807fu));
  EXPECT_EQ(words[1], 0x82);  // missing groups are 0
  std::vector<float> back(5);
  unpack_ue8m0(words, back);
  EXPECT_EQ(back, scales);
}

TEST(NumericRows, QuantisedRowStaysWithinTheFormatsError) {
  for (const std::size_t hidden : {8u, 128u, 136u, 2048u, 7168u})
    for (const ScaleRounding rounding : {ScaleRounding::none, ScaleRounding::power_of_two})
      for (const float spread : {1e-6f, 1.0f, 1e20f}) {
        const auto row = normal_row(hidden, spread, static_cast<unsigned>(hidden));
        std::vector<std::uint8_t> codes(hidden);
        std::vector<float> inverse(group_count(hidden)), back(hidden);
        quantize_row(row, rounding, codes, inverse);
        dequantize_row(codes, inverse, back);
        for (std::size_t i = 0; i < hidden; ++i) {
          const float x = to_float(row[i]);
          // Half a unit: 2^-4 of the value, or of the smallest normal number 2^-6; and the rounding
          // of the scales.
          const double bound =
              std::max<double>(std::abs(x), 0x1p-6 * inverse[i / 128]) * (0x1p-4 + 0x1p-20);
          ASSERT_NEAR(back[i], x, bound) << hidden << " " << i;
        }
      }
}

TEST(NumericRows, ZerosStayZeroAndNanPoisonsOnlyItsGroup) {
  std::vector<Bf16> row(256, Bf16{0});
  for (const std::uint16_t bad : {0x7fc0, 0x7f80, 0xff80}) {
    row[130].bits = bad;
    std::vector<std::uint8_t> codes(256);
    std::vector<float> inverse(2), back(256);
    quantize_row(row, ScaleRounding::power_of_two, codes, inverse);
    dequantize_row(codes, inverse, back);
    EXPECT_EQ(back[0], 0.0f);
    EXPECT_TRUE(std::isnan(back[128]) && std::isnan(back[130])) << bad;
    EXPECT_EQ(encode_ue8m0(inverse[1]), 255);
  }
}

std::vector<Bf16> random_row(std::size_t hidden, float largest, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-largest, largest);
  std::vector<Bf16> row(hidden);
  for (Bf16& value : row) value = to_bf16(uniform(random));
  return row;
}

struct Encoded {
  std::size_t written = 0, read = 0;
  std::vector<std::uint32_t> storage;  // aligned
  std::vector<float> values;
};

Encoded round_trip(std::span<const Bf16> row) {
  Encoded result;
  result.storage.assign(logfmt_row_bytes(row.size()) / 4, 0xa5a5'a5a5u);
  auto* bytes = reinterpret_cast<std::byte*>(result.storage.data());
  result.written = logfmt_encode_row(row, bytes);
  result.values.resize(row.size());
  result.read = logfmt_decode_row(bytes, result.values);
  return result;
}

LogfmtScale scale_of_group(std::span<const Bf16> row, std::size_t group) {
  LogfmtGroup summary;
  for (const Bf16 value : row.subspan(group * 128, group_channels(row.size(), group)))
    summary = with_value(summary, value);
  return logfmt_scale(summary);
}

/// Half the distance to the neighbouring code, and the error of log2, exp2 and float32 arithmetic,
/// which is far smaller.
double relative_bound(const LogfmtScale& scale) {
  return (std::exp2(scale.step) - 1) / 2 * 1.001 + 1e-5;
}

TEST(NumericLogfmt, RoundTripErrorIsHalfAStep) {
  for (const std::size_t hidden : {8u, 128u, 136u, 512u, 2048u, 2560u, 7168u})
    for (const float largest : {0.99f, 1e-3f, 1e-25f}) {
      const auto row = random_row(hidden, largest, static_cast<unsigned>(hidden));
      const Encoded got = round_trip(row);
      ASSERT_EQ(got.written, got.read);
      ASSERT_EQ(got.written, 4 * group_count(hidden) + hidden * 10 / 8) << "all blocks are cast";
      for (std::size_t i = 0; i < hidden; ++i) {
        const double x = to_float(row[i]);
        ASSERT_NEAR(got.values[i], x, std::abs(x) * relative_bound(scale_of_group(row, i / 128)))
            << hidden << " " << i;
        ASSERT_EQ(std::signbit(got.values[i]), std::signbit(x));
      }
    }
}

TEST(NumericLogfmt, LargestAndSmallestAreHitWithinRounding) {
  const auto row = random_row(128, 0.9f, 7);
  const LogfmtScale scale = scale_of_group(row, 0);
  EXPECT_EQ(encode_logfmt(std::exp2(scale.log_min), scale), 1u);
  const float largest = std::exp2(scale.log_min + 510 * scale.step);
  EXPECT_EQ(encode_logfmt(largest, scale), 511u);
  EXPECT_NEAR(decode_logfmt(511, true, scale), -largest, largest * 1e-5);
}

TEST(NumericLogfmt, ThresholdIsTheArithmeticMean) {
  const auto row = random_row(128, 0.9f, 8);
  const LogfmtScale scale = scale_of_group(row, 0);
  for (std::uint32_t code = 1; code < 511; code += 17) {
    const double middle = (static_cast<double>(decode_logfmt(code, false, scale)) +
                           decode_logfmt(code + 1, false, scale)) /
                          2;
    EXPECT_EQ(encode_logfmt(static_cast<float>(middle * (1 - 1e-4)), scale), code);
    EXPECT_EQ(encode_logfmt(static_cast<float>(middle * (1 + 1e-4)), scale), code + 1);
  }
}

TEST(NumericLogfmt, ZerosStayZeroAndDoNotStretchTheSteps) {
  auto row = random_row(1024, 0.5f, 3);
  for (std::size_t i = 0; i < row.size(); i += 3) row[i].bits = i % 2 ? 0x8000 : 0;
  const Encoded got = round_trip(row);
  EXPECT_LT(got.written, 2u * 1024u);
  for (std::size_t i = 0; i < row.size(); i += 3) {
    ASSERT_EQ(got.values[i], 0.0f);
    ASSERT_EQ(std::signbit(got.values[i]), i % 2 == 1);
  }
  const LogfmtScale scale = scale_of_group(row, 0);
  EXPECT_LT(scale.step, kLogfmtRange / kLogfmtSteps);
  for (std::size_t i = 0; i < 128; ++i)
    ASSERT_NEAR(got.values[i], to_float(row[i]),
                std::abs(to_float(row[i])) * relative_bound(scale));
}

TEST(NumericLogfmt, ValuesFarBelowTheLargestBecomeZero) {
  auto row = random_row(128, 0.5f, 4);
  row[0] = to_bf16(0x1p-60f);
  const Encoded got = round_trip(row);
  EXPECT_EQ(got.values[0], 0.0f);
}

/// A block is cast only when all of its groups allow it; other blocks of the row are unaffected.
TEST(NumericLogfmt, BlocksThatMustNotBeCastAreExact) {
  const std::vector<void (*)(Bf16*)> spoilers = {
      [](Bf16* group) { group[5] = to_bf16(1.0f); },                        // not below 1
      [](Bf16* group) { group[5].bits = 0x7f80; },                          // infinity
      [](Bf16* group) { group[5].bits = 0xffc1; },                          // NaN
      [](Bf16* group) { std::fill(group, group + 128, Bf16{0}); },          // all zero
      [](Bf16* group) { std::fill(group, group + 128, to_bf16(-0.25f)); },  // one magnitude
  };
  for (const auto& spoil : spoilers) {
    auto row = random_row(2048, 0.9f, 5);
    spoil(&row[1024 + 3 * 128]);
    const Encoded got = round_trip(row);
    ASSERT_EQ(got.written, 16 * 4 + 1280u + 2048u);
    for (std::size_t i = 1024; i < 2048; ++i)
      ASSERT_EQ(bits_of(got.values[i]), bits_of(to_float(row[i]))) << i;
  }
}

TEST(NumericLogfmt, BlockSizesFollowHidden) {
  EXPECT_EQ(logfmt_block_channels(7168), 1024u);
  EXPECT_EQ(logfmt_block_channels(2560), 512u);
  EXPECT_EQ(logfmt_bytes(16), 20u);
  EXPECT_EQ(logfmt_bytes(8), 10u);
  EXPECT_EQ(logfmt_row_bytes(7168), 7168u * 2 + 56 * 4);
}

// Log2(amin)' = max(log2 amin, log2 amax - 32).
TEST(NumericLogfmt, AZeroStretchesTheRangeToThirtyTwoOctaves) {
  LogfmtGroup group;
  for (const float value : {0.5f, 0.25f}) group = with_value(group, to_bf16(value));
  EXPECT_EQ(logfmt_scale(group).log_min, -2.0f);
  group = with_value(group, to_bf16(-0.0f));
  EXPECT_EQ(logfmt_scale(group).log_min, -33.0f);
  EXPECT_EQ(logfmt_scale(group).step, 32.0f / 510.0f);
  EXPECT_TRUE(logfmt_scale(group).castable);
}

TEST(NumericLogfmt, LayoutIsNineBitCodesThenSigns) {
  // A group of two magnitudes: the larger has code 511, the smaller 1.
  std::vector<Bf16> values(16, to_bf16(0.25f));
  values[1] = to_bf16(-0.5f);
  values[15] = to_bf16(-0.25f);
  LogfmtGroup group;
  for (const Bf16 value : values) group = with_value(group, value);
  std::vector<std::byte> bytes(logfmt_bytes(16));
  logfmt_encode_block(values, {&group, 1}, bytes.data());
  auto bit = [&](std::size_t i) { return std::to_integer<int>(bytes[i / 8] >> (i % 8)) & 1; };
  for (std::size_t i = 0; i < 16; ++i) {
    int code = 0;
    for (std::size_t b = 0; b < 9; ++b) code |= bit(9 * i + b) << b;
    EXPECT_EQ(code, i == 1 ? 511 : 1) << i;
    EXPECT_EQ(bit(144 + i), i == 1 || i == 15) << i;
  }
}

Bf16 magnitude_of(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

TEST(NumericLogfmt, CastableNeedsNoLogarithm) {
  for (std::uint32_t largest = 0; largest < 0x8000; ++largest)
    for (const std::uint32_t smallest :
         {0u, 1u, 0x7fu, 0x80u, largest / 2, largest - 1, largest, largest + 1, 0x7f80u}) {
      if (smallest > 0x7f80) continue;
      const LogfmtGroup group{magnitude_of(largest), magnitude_of(smallest)};
      ASSERT_EQ(logfmt_castable(group), logfmt_scale(group).castable) << largest << " " << smallest;
    }
}

/// Groups whose smallest value is within the range have no code 0, so receivers do not test for it.
TEST(NumericLogfmt, TheSmallestValueHasCodeOne) {
  std::size_t groups = 0;
  for (std::uint32_t largest = 0x3f7f; largest > 0; --largest)
    for (const std::uint32_t smallest :
         {1u, 0x80u, largest / 2, largest - 300, largest - 128, largest - 2, largest - 1}) {
      const LogfmtGroup group{magnitude_of(largest), magnitude_of(smallest)};
      if (smallest == 0 || !logfmt_castable(group) || !logfmt_levels(group).nonzero) continue;
      ++groups;
      ASSERT_EQ(encode_logfmt(to_float(group.smallest), logfmt_scale(group)), 1u)
          << largest << " " << smallest;
      ASSERT_EQ(encode_logfmt(to_float(group.largest), logfmt_scale(group)), 511u)
          << largest << " " << smallest;
    }
  EXPECT_GT(groups, 10'000u);
}

// Words of 32 ones would be taken for words that have not arrived.
TEST(NumericLogfmt, NoWordIsAllOnes) {
  std::vector<Bf16> values(128, to_bf16(-0.5f));
  values[127] = to_bf16(-0.25f);
  LogfmtGroup group;
  for (const Bf16 value : values) group = with_value(group, value);
  std::vector<std::uint32_t> words(logfmt_bytes(values.size()) / 4);
  logfmt_encode_block(values, {&group, 1}, reinterpret_cast<std::byte*>(words.data()));
  std::vector<float> decoded(values.size());
  logfmt_decode_block(reinterpret_cast<const std::byte*>(words.data()), {&group, 1}, decoded);
  const LogfmtScale scale = logfmt_scale(group);
  const float top = decode_logfmt(511, true, scale), below = decode_logfmt(510, true, scale);
  for (std::size_t unit = 0; unit < 8; ++unit) {
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NE(words[5 * unit + i], 0xffff'ffffu) << unit << " " << i;
    // One code of each word is lower by one: the first that begins there.
    for (std::size_t i = 0; i < 16 && unit < 7; ++i) {
      const bool first = i == 0 || i == 4 || i == 8 || i == 11 || i == 15;
      EXPECT_EQ(decoded[16 * unit + i], first ? below : top) << unit << " " << i;
    }
  }
}

/// The shorter functions agree with the others bit by bit: for every magnitude that a group can
/// hold, zeros and subnormals included, and for every code.
TEST(NumericLogfmt, ShorterFunctionsGiveTheSameBits) {
  const std::uint32_t kFirstNormal = 0x0080, kBelowOne = 0x3f7f;
  std::size_t groups = 0;
  for (std::uint32_t largest = kBelowOne; largest > kFirstNormal; largest -= 37)
    for (const std::uint32_t smallest :
         {0u, 3u, kFirstNormal, kFirstNormal + 70, kFirstNormal + 128, largest / 2, largest - 128,
          largest - 1}) {
      if (smallest >= largest) continue;
      const LogfmtScale scale = logfmt_scale({magnitude_of(largest), magnitude_of(smallest)});
      if (scale.log_min < kLogfmtNormal) continue;
      ++groups;
      for (std::uint32_t bits = 0; bits <= largest; bits += bits < 0x180 ? 1 : 13) {
        const float value = to_float(magnitude_of(bits));
        ASSERT_EQ(encode_logfmt_normal(value, scale), encode_logfmt(value, scale))
            << largest << " " << smallest << " " << bits;
      }
      for (std::uint32_t code = 1; code < kLogfmtCodes; ++code)
        ASSERT_EQ(bits_of(logfmt_magnitude_normal(code, scale.log_min, scale.step)),
                  bits_of(decode_logfmt(code, false, scale)))
            << largest << " " << smallest << " " << code;
    }
  EXPECT_GT(groups, 1000u);
  for (std::uint32_t bits = kFirstNormal; bits < 0x7f80; ++bits) {
    const float value = to_float(magnitude_of(bits));
    ASSERT_EQ(bits_of(log2_of_normal(value)), bits_of(log2(value))) << bits;
  }
}

constexpr double kMagnitudes[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/// Nearest code by search over all of them; of two at the same distance the even one.
std::uint32_t nearest_e2m1(double value) {
  const double magnitude = std::min(value, 1000.0);
  std::uint32_t best = 0;
  for (std::uint32_t code = 1; code < 8; ++code) {
    const double distance = std::abs(kMagnitudes[code] - magnitude),
                 least = std::abs(kMagnitudes[best] - magnitude);
    if (distance < least || (distance == least && code % 2 == 0)) best = code;
  }
  return best;
}

TEST(NumericNvfp4, MagnitudesRoundToTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float magnitude = to_float(Bf16{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(encode_e2m1(magnitude), nearest_e2m1(magnitude)) << magnitude;
  }
  for (int code = 0; code < 7; ++code) {
    const auto midpoint = static_cast<float>((kMagnitudes[code] + kMagnitudes[code + 1]) / 2);
    for (const float magnitude :
         {midpoint, std::nextafter(midpoint, 0.0F), std::nextafter(midpoint, 7.0F)})
      EXPECT_EQ(encode_e2m1(magnitude), nearest_e2m1(magnitude)) << magnitude;
  }
}

TEST(NumericNvfp4, OtherMagnitudes) {
  EXPECT_EQ(encode_e2m1(std::numeric_limits<float>::infinity()), 7U);
  EXPECT_EQ(encode_e2m1(std::numeric_limits<float>::quiet_NaN()), 0U);
  EXPECT_EQ(encode_e2m1(-0.0F), 0U);
}

TEST(NumericNvfp4, TheLargestMagnitudeOfAGroupIsTheLargestCode) {
  for (const float global : {1.0F, 0.37F, 512.0F})
    for (float largest = 0x1p-4F; largest < 4; largest *= 1.37F) {
      const Nvfp4Scale scale = nvfp4_scale(largest, global);
      const double code = decode_e4m3(scale.code), exact = double{largest} / 6 * global;
      ASSERT_GT(code, 0) << largest << " " << global;
      EXPECT_LE(std::abs(code - exact), std::max(0x1p-10, exact / 16) * 1.0001) << largest;
      EXPECT_EQ(scale.divisor, static_cast<float>(code) / global);
      if (code >= 0x1p-6) EXPECT_EQ(encode_e2m1(largest / scale.divisor), 7U) << largest;
    }
}

TEST(NumericNvfp4, GroupsWithoutAScale) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(nvfp4_scale(0, 100).code, 0);
  EXPECT_EQ(nvfp4_scale(0, 100).divisor, kInfinity);
  for (const float value : {kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    EXPECT_EQ(nvfp4_scale(value, 1).code, kE4m3Nan);
    EXPECT_EQ(nvfp4_scale(value, 1).divisor, kInfinity);
  }
  EXPECT_EQ(nvfp4_scale(1e6F, 1).code, encode_e4m3(kE4m3Max)) << "saturates";
}

TEST(NumericNvfp4, CodesOfAllValuesAreTheNearest) {
  for (std::uint32_t code = 0; code < 16; ++code)
    EXPECT_EQ(decode_e2m1(code), (code < 8 ? 1 : -1) * static_cast<float>(kMagnitudes[code % 8]));
  for (std::uint32_t bits = 0; bits < 0x1'0000; ++bits) {
    const Bf16 value{static_cast<std::uint16_t>(bits)};
    if (!(std::abs(to_float(value)) < 1e30F)) continue;
    const std::uint32_t code = encode_nvfp4(bits, 0.75F);
    EXPECT_EQ(code & 7, nearest_e2m1(std::abs(to_float(value)) / 0.75F));
    EXPECT_EQ(code >> 3, bits >> 15);
  }
}

TEST(NumericNvfp4, EscapedWordsComeBack) {
  constexpr std::uint32_t kSentinel = 0xffff'ffff;
  const std::uint32_t words[] = {0, 1, 2, 0x7777'7777, 0x8888'8888, 0xffff'fffe, kSentinel};
  for (const std::uint32_t low : words)
    for (const std::uint32_t high : words) {
      std::uint32_t a = low, b = high;
      const bool escaped = escape_nvfp4(a, b, kSentinel);
      EXPECT_EQ(escaped, low == kSentinel || high == kSentinel);
      EXPECT_TRUE(a != kSentinel && b != kSentinel) << low << " " << high;
      if (escaped) restore_nvfp4(a, b, kSentinel);
      EXPECT_TRUE(a == low && b == high) << low << " " << high;
    }
}

TEST(NumericMx, TheScaleIsTheSmallestThatSaturatesNoValue) {
  for (std::uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const float amax = to_float(Bf16{static_cast<std::uint16_t>(bits)});
    const MxScale scale = mx_scale(amax);
    const double step = decode_ue8m0(scale.code);
    ASSERT_LE(amax / step, 448) << amax;
    if (scale.code > 0) ASSERT_GT(amax / (step / 2), 448) << amax;
    ASSERT_EQ(scale.quantize * step, 1);
    ASSERT_LT(scale.code, 0xfe) << "a NaN travels as 0xfe";
  }
  EXPECT_EQ(mx_scale(0).code, 0);
  EXPECT_EQ(mx_scale(std::numeric_limits<float>::infinity()).code, 0xff);
  EXPECT_EQ(mx_scale(std::numeric_limits<float>::quiet_NaN()).code, 0xff);
}

/// The largest error of each format against float64, in amax of the channels that share a scale.
TEST(NumericRowFormats, ErrorsAreWithinTheStatedBounds) {
  std::mt19937 random(5);
  constexpr std::size_t kHidden = 64 * 9;
  for (int round = 0; round < 200; ++round) {
    // Heavy tails, as activations have.
    std::student_t_distribution<float> draw(2.0F + static_cast<float>(round % 5));
    std::vector<Bf16> row(kHidden);
    for (Bf16& value : row) value = to_bf16(draw(random) * std::ldexp(1.0F, round % 40 - 20));
    std::vector<std::uint8_t> codes(kHidden), scales(kHidden / 16);
    std::vector<float> back(kHidden);
    const auto worst = [&](std::size_t group) {
      double most = 0;
      for (std::size_t i = 0; i < kHidden; ++i) {
        const std::size_t first = i / group * group;
        const double amax =
            max_magnitude(std::span(row).subspan(first, std::min(group, kHidden - first)));
        most = std::max(most, std::abs(double{back[i]} - to_float(row[i])) / amax);
      }
      return most;
    };
    std::vector<float> inverse(group_count(kHidden));
    for (const auto& [rounding, bound] : {std::pair{ScaleRounding::none, 1.0 / 28},
                                          std::pair{ScaleRounding::power_of_two, 1.0 / 16}}) {
      quantize_row(row, rounding, codes, inverse);
      dequantize_row(codes, inverse, back);
      if (round % 40 > 10) EXPECT_LE(worst(kGroupChannels), bound * 1.0001) << "amax above 1e-4";
    }
    const std::span mx = std::span(scales).first(kHidden / kMxGroup);
    quantize_mxfp8_row(row, codes, mx);
    dequantize_mxfp8_row(codes, mx, back);
    EXPECT_LE(worst(kMxGroup), 1.0 / 16);
    const float amax = max_magnitude(row), global = 448 * 6 / amax;
    quantize_nvfp4_row(row, global, std::span(codes).first(kHidden / 2), scales);
    dequantize_nvfp4_row(std::span(codes).first(kHidden / 2), scales, global, back);
    for (std::size_t i = 0; i < kHidden; ++i)  // a subnormal scale is less exact
      if (decode_e4m3(scales[i / 16]) < 0x1p-6) back[i] = to_float(row[i]);
    EXPECT_LE(worst(kNvfp4Group), 17.0 / 96 * 1.0001);
  }
}

// The divisions of cuda/device/encode.cuh rest on this. Every 17th mantissa of a divisor is tried,
// because all of them take six seconds.
TEST(NumericNvfp4, AQuotientOfBfloat16IsRoundedCorrectlyByOneCorrection) {
  std::uint64_t wrong = 0;
  for (std::uint32_t bits = 0; bits < 1u << 23; bits += 17) {
    const float divisor = float_of(0x3f80'0000u | bits), inverse = div(1, divisor);
    std::uint32_t here = 0;
    for (std::uint32_t of = 0; of < 128; ++of) {
      const float value = float_of(0x3f80'0000u | of << 16), quotient = mul(value, inverse);
      here += fma(fma(-quotient, divisor, value), inverse, quotient) != div(value, divisor);
    }
    wrong += here;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(NumericNvfp4, AnInverseOfBfloat16IsRoundedCorrectlyByOneStep) {
  for (std::uint32_t of = 0; of < 128; ++of) {
    const float value = float_of(0x3f80'0000u | of << 16), inverse = div(1, value);
    for (std::uint32_t off = 0; off <= 8; ++off) {
      const float first = float_of(bits_of(inverse) + off - 4);
      EXPECT_EQ(fma(fma(-value, first, 1), first, first), inverse) << value;
    }
  }
}

}  // namespace
}  // namespace shoal::ep::numeric
