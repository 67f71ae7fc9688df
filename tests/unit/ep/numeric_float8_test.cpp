// SPDX-License-Identifier: Apache-2.0
// The FP8 scales of a group of 128 channels, exhaustively, and rows of them. The codes are those of
// shoal/numeric.hpp (tests/unit/base/numeric_test.cpp).
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ep/numeric/rows.hpp"

namespace shoal::ep::numeric {
namespace {

std::vector<Bf16> random_row(std::size_t hidden, float spread, unsigned seed) {
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
