// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 against exact float64 references.
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ep/numeric/numeric.hpp"

namespace shoal::ep::numeric {
namespace {

/// A binary format by its parameters; float64 holds all of its values and all float32 exactly.
struct Format {
  int mantissa_bits;
  int lowest_exponent;  // of normal numbers
  double overflow;      // magnitudes from here on round to infinity
};
constexpr Format kBf16Format{7, -126, 0x1.ffp127};
constexpr Format kFp16Format{10, -14, 65520.0};

/// Nearest value of the format, ties to even: std::nearbyint on multiples of the unit in the last
/// place.
double round_to(const Format& format, double x) {
  if (!std::isfinite(x) || x == 0) return x;
  if (std::abs(x) >= format.overflow) return std::copysign(INFINITY, x);
  const int exponent = std::max(std::ilogb(x), format.lowest_exponent);
  const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
  return std::nearbyint(x / unit) * unit;
}

template <typename Convert>
void expect_rounds(const Format& format, std::uint32_t bits, Convert convert) {
  const float x = float_of(bits);
  const double got = convert(x);
  if (std::isnan(x)) {
    ASSERT_TRUE(std::isnan(got)) << std::hex << bits;
    return;
  }
  const double want = round_to(format, x);
  ASSERT_EQ(got, want) << std::hex << bits;
  ASSERT_EQ(std::signbit(got), std::signbit(x)) << std::hex << bits;
}

/// Every exponent with mantissas around every rounding boundary, and random values.
std::vector<std::uint32_t> interesting_bits() {
  std::vector<std::uint32_t> bits;
  std::mt19937 random(1);
  for (std::uint32_t sign = 0; sign < 2; ++sign)
    for (std::uint32_t exponent = 0; exponent < 256; ++exponent) {
      const std::uint32_t base = sign << 31 | exponent << 23;
      for (int shift = 0; shift < 23; ++shift)
        for (std::int32_t around = -2; around <= 2; ++around)
          for (std::uint32_t odd = 0; odd < 4; ++odd)
            bits.push_back(
                base |
                ((((1u + 2 * odd) << shift) + static_cast<std::uint32_t>(around)) & 0x7f'ffffu));
      for (int i = 0; i < 1000; ++i) bits.push_back(base | (random() & 0x7f'ffffu));
    }
  return bits;
}

TEST(NumericFloat16, EveryBfloat16SurvivesTheRoundTrip) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const Bf16 value{static_cast<std::uint16_t>(code)};
    const Bf16 back = to_bf16(to_float(value));
    if (std::isnan(to_float(value)))
      ASSERT_EQ(back.bits, code | 0x40u);  // quiet, otherwise unchanged
    else
      ASSERT_EQ(back.bits, code);
  }
}

TEST(NumericFloat16, EveryFloat16SurvivesTheRoundTripAndHasItsValue) {
  for (std::uint32_t code = 0; code < 0x10000; ++code) {
    const Fp16 value{static_cast<std::uint16_t>(code)};
    const float x = to_float(value);
    const int exponent = static_cast<int>(code >> 10 & 31);
    const double mantissa = code & 1023;
    const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                             : exponent == 0 ? std::ldexp(mantissa, -24)
                                             : std::ldexp(1024 + mantissa, exponent - 25);
    if (std::isnan(magnitude)) {
      ASSERT_TRUE(std::isnan(x)) << code;
      ASSERT_TRUE(std::isnan(to_float(to_fp16(x)))) << code;
      continue;
    }
    ASSERT_EQ(x, (code & 0x8000u) ? -magnitude : magnitude) << code;
    ASSERT_EQ(to_fp16(x).bits, code);
  }
}

TEST(NumericFloat16, RoundsToNearestEven) {
  for (const std::uint32_t bits : interesting_bits()) {
    expect_rounds(kBf16Format, bits, [](float x) { return to_float(to_bf16(x)); });
    expect_rounds(kFp16Format, bits, [](float x) { return to_float(to_fp16(x)); });
    if (HasFatalFailure()) return;
  }
}

TEST(NumericFloat16, KnownTiesAndLimits) {
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, to_bf16(1.0f).bits);            // tie, down to even
  EXPECT_EQ(to_bf16(1.0f + 0x3p-8f).bits, to_bf16(1.0f + 0x4p-8f).bits);  // tie, up to even
  EXPECT_EQ(to_bf16(float_of(0x7f7f'ffff)).bits, 0x7f80);  // largest float32: infinity
  EXPECT_EQ(to_bf16(-INFINITY).bits, 0xff80);
  EXPECT_EQ(to_bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(to_fp16(65519.99f).bits, 0x7bff);
  EXPECT_EQ(to_fp16(65520.0f).bits, 0x7c00);
  EXPECT_EQ(to_fp16(0x1p-25f).bits, 0x0000);  // tie with zero
  EXPECT_EQ(to_fp16(float_of(bits_of(0x1p-25f) + 1)).bits, 0x0001);
}

TEST(NumericFloat16, AccumulateRoundsTheProductFirst) {
  // 1 + 2^-12 squared is 1 + 2^-11 + 2^-24: the last term is lost when the product is rounded, kept
  // when it is fused. This fails when the build contracts expressions (-ffp-contract=off is
  // missing).
  volatile float x = 1.0f + 0x1p-12f;
  volatile float minus = -(1.0f + 0x1p-11f);
  EXPECT_EQ(accumulate(minus, x, x), 0.0f);
  EXPECT_EQ(fma(x, x, minus), 0x1p-24f);
}

}  // namespace
}  // namespace shoal::ep::numeric
