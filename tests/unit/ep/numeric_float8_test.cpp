// SPDX-License-Identifier: Apache-2.0
// e4m3 and the FP8 scales of a group of 128 channels, exhaustively.
// @traits one_thread
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ep/numeric/rows.hpp"

namespace shoal::ep::numeric {
namespace {

/// The value of a code by the definition of the format.
double e4m3_value(int code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  if ((code & 0x7f) == 0x7f) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

/// Nearest code by search over all of them; of two at the same distance the even one.
int nearest_e4m3(double x) {
  if (std::isnan(x)) return 0x7f;
  int best = 0;
  double distance = INFINITY;
  const double magnitude = std::min(std::abs(x), 1e6);
  for (int code = 0; code < 0x7f; ++code) {
    const double d = std::abs(e4m3_value(code) - magnitude);
    if (d < distance || (d == distance && code % 2 == 0)) {
      best = code;
      distance = d;
    }
  }
  return std::signbit(x) ? best | 0x80 : best;
}

std::vector<Bf16> random_row(std::size_t hidden, float spread, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, spread);
  std::vector<Bf16> row(hidden);
  for (Bf16& value : row) value = to_bf16(normal(random));
  return row;
}

TEST(NumericE4m3, EveryCodeDecodesToItsValue) {
  for (int code = 0; code < 256; ++code) {
    const float got = decode_e4m3(static_cast<std::uint8_t>(code));
    const double want = e4m3_value(code);
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << code;
    } else {
      EXPECT_EQ(got, want) << code;
      EXPECT_EQ(std::signbit(got), code >= 0x80) << code;
    }
  }
}

TEST(NumericE4m3, EveryCodeSurvivesTheRoundTrip) {
  for (int code = 0; code < 256; ++code) {
    const int back = encode_e4m3(decode_e4m3(static_cast<std::uint8_t>(code)));
    EXPECT_EQ(back, (code & 0x7f) == 0x7f ? 0x7f : code);
  }
}

TEST(NumericE4m3, EveryBfloat16EncodesToTheNearestCode) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(Bf16{static_cast<std::uint16_t>(bits)});
    ASSERT_EQ(encode_e4m3(x), nearest_e4m3(x)) << x;
  }
}

TEST(NumericE4m3, TiesAndTheirNeighboursInFloat32) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    for (const float x : {std::nextafter(middle, 0.0f), middle, std::nextafter(middle, 1e3f)}) {
      EXPECT_EQ(encode_e4m3(x), nearest_e4m3(x)) << x;
      EXPECT_EQ(encode_e4m3(-x), nearest_e4m3(-x)) << -x;
    }
  }
}

TEST(NumericE4m3, Saturates) {
  for (const float x : {448.0f, 463.9f, 464.0f, 1e9f, INFINITY}) {
    EXPECT_EQ(decode_e4m3(encode_e4m3(x)), 448.0f);
    EXPECT_EQ(decode_e4m3(encode_e4m3(-x)), -448.0f);
  }
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

TEST(NumericScale, Ue8m0DecodesAllCodes) {
  for (int code = 0; code < 255; ++code)
    EXPECT_EQ(decode_ue8m0(static_cast<std::uint8_t>(code)), std::ldexp(1.0, code - 127));
  EXPECT_TRUE(std::isnan(decode_ue8m0(255)));
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
        const auto row = random_row(hidden, spread, static_cast<unsigned>(hidden));
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

}  // namespace
}  // namespace shoal::ep::numeric
