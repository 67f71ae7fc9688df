// SPDX-License-Identifier: Apache-2.0
// The conversions of shoal/numeric.hpp, for every code of each format, against values computed from
// the formats' definitions.
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "shoal/numeric.hpp"

namespace shoal {
namespace {

/// A binary format: sign, exponent with bias, mantissa.
struct Format {
  int exponent_bits, mantissa_bits, bias;
  bool has_infinity;

  int bits() const { return 1 + exponent_bits + mantissa_bits; }
  std::uint32_t sign_bit() const { return 1u << (bits() - 1); }
  std::uint32_t highest_exponent() const { return (1u << exponent_bits) - 1; }

  /// The value of `code` by the definition of IEEE 754 or, without infinity, of OCP's e4m3.
  double value(std::uint32_t code) const {
    const std::uint32_t mantissa = code & ((1u << mantissa_bits) - 1);
    const std::uint32_t exponent = code >> mantissa_bits & highest_exponent();
    const double sign = (code & sign_bit()) != 0 ? -1 : 1;
    if (exponent == highest_exponent()) {
      if (has_infinity)
        return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
      if (mantissa == (1u << mantissa_bits) - 1) return std::nan("");
    }
    const int implicit = exponent == 0 ? 0 : 1;
    const int power = (exponent == 0 ? 1 : static_cast<int>(exponent)) - bias - mantissa_bits;
    return sign * std::ldexp(static_cast<double>(mantissa) + (implicit << mantissa_bits), power);
  }
};
constexpr Format kBfloat16{8, 7, 127, true};
constexpr Format kFloat16{5, 10, 15, true};
constexpr Format kE4m3{4, 3, 7, false};

/// Every code gives its value, and its value gives the code.
template <typename Code>
void check_all(const Format& format, float (*decode)(Code), Code (*encode)(float)) {
  for (std::uint32_t i = 0; i < 1u << format.bits(); ++i) {
    const auto code = static_cast<Code>(i);
    const double expected = format.value(i);
    const float decoded = decode(code);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(decoded)) << i;
      EXPECT_EQ(std::signbit(decoded), (i & format.sign_bit()) != 0) << i;
      EXPECT_TRUE(std::isnan(format.value(encode(decoded)))) << i;
      // A signalling NaN becomes quiet and keeps its payload.
      if (format.has_infinity) EXPECT_EQ(encode(decoded), i | 1u << (format.mantissa_bits - 1));
      continue;
    }
    EXPECT_EQ(static_cast<double>(decoded), expected) << i;
    EXPECT_EQ(std::signbit(decoded), (i & format.sign_bit()) != 0) << i;
    EXPECT_EQ(encode(decoded), code) << i;
  }
}

/// Between any two neighbours: what lies just below and just above the middle, and the middle
/// itself, which goes to the even code.
template <typename Code>
void check_rounding(const Format& format, float (*decode)(Code), Code (*encode)(float)) {
  for (std::uint32_t i = 0; i + 1 < format.sign_bit(); ++i) {
    const float low = decode(static_cast<Code>(i)), high = decode(static_cast<Code>(i + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const float middle = low + (high - low) / 2;  // exact: float has more mantissa bits
    for (const std::uint32_t sign : {0u, format.sign_bit()}) {
      const float factor = sign != 0 ? -1.0f : 1.0f;
      EXPECT_EQ(encode(factor * middle), sign | (i + i % 2)) << i;
      EXPECT_EQ(encode(factor * std::nextafter(middle, low)), sign | i) << i;
      EXPECT_EQ(encode(factor * std::nextafter(middle, high)), sign | (i + 1)) << i;
    }
  }
}

/// Every exponent with mantissas around every rounding boundary, and random ones: the nearest value
/// of an IEEE format, ties to even, computed in double. A NaN stays one.
template <typename Code>
void check_all_exponents(const Format& format, float (*decode)(Code), Code (*encode)(float)) {
  const double largest = std::ldexp(2.0, format.bias),
               overflow = 1 - std::ldexp(1.0, -format.mantissa_bits - 2);
  const auto nearest = [&](double x) {
    if (x == 0 || std::isinf(x)) return x;
    if (std::abs(x) >= largest * overflow) return std::copysign(INFINITY, x);
    const int exponent = std::max(std::ilogb(x), 1 - format.bias);
    const double unit = std::ldexp(1.0, exponent - format.mantissa_bits);
    return std::nearbyint(x / unit) * unit;
  };
  const auto check = [&](std::uint32_t bits) {
    const float value = detail::float_of_bits(bits);
    const double got = decode(encode(value));
    ASSERT_EQ(std::signbit(got), std::signbit(value)) << std::hex << bits;
    ASSERT_EQ(std::isnan(got), std::isnan(value)) << std::hex << bits;
    if (!std::isnan(value)) ASSERT_EQ(got, nearest(value)) << std::hex << bits;
  };
  std::mt19937 random(1);
  for (std::uint32_t base = 0; base < 512 && !testing::Test::HasFatalFailure(); ++base) {
    for (std::uint32_t mantissa = 1; mantissa < 16; mantissa += 2)
      for (int shift = 0; shift < 23; ++shift)
        for (std::uint32_t around = 0; around < 5; ++around)
          check(base << 23 | (((mantissa << shift) + around - 2) & 0x7f'ffffu));
    for (int i = 0; i < 1000; ++i) check(base << 23 | (random() & 0x7f'ffffu));
  }
}

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

TEST(Numeric, Bfloat16) {
  check_all(kBfloat16, float_from_bfloat16, bfloat16_from_float);
  check_rounding(kBfloat16, float_from_bfloat16, bfloat16_from_float);
  check_all_exponents(kBfloat16, float_from_bfloat16, bfloat16_from_float);
  EXPECT_EQ(bfloat16_from_float(kLargest), 0x7f80);
  EXPECT_EQ(bfloat16_from_float(-kLargest), 0xff80);
  EXPECT_EQ(bfloat16_from_float(detail::float_of_bits(0x7f800001)), 0x7fc0)
      << "a NaN whose payload does not fit stays a NaN";
}

TEST(Numeric, Float16) {
  check_all(kFloat16, float_from_float16, float16_from_float);
  check_rounding(kFloat16, float_from_float16, float16_from_float);
  check_all_exponents(kFloat16, float_from_float16, float16_from_float);
  EXPECT_EQ(float16_from_float(65519.996f), 0x7bff);
  EXPECT_EQ(float16_from_float(65520.0f), 0x7c00);
  EXPECT_EQ(float16_from_float(-kLargest), 0xfc00);
  EXPECT_EQ(float16_from_float(0x1p-25f), 0) << "half of the smallest value goes to even";
  EXPECT_EQ(float16_from_float(std::nextafter(0x1p-25f, 1.0f)), 1);
  EXPECT_EQ(float16_from_float(std::numeric_limits<float>::denorm_min()), 0);
}

TEST(Numeric, E4m3) {
  check_all(kE4m3, float_from_e4m3, e4m3_from_float);
  check_rounding(kE4m3, float_from_e4m3, e4m3_from_float);
  EXPECT_EQ(float_from_e4m3(0x7e), kE4m3Max);
  EXPECT_EQ(float_from_e4m3(1), 0x1p-9f);
  for (const float large : {448.0f, 464.0f, 1e6f, kLargest, kInfinity}) {
    EXPECT_EQ(e4m3_from_float(large), 0x7e) << large;
    EXPECT_EQ(e4m3_from_float(-large), 0xfe) << large;
  }
  EXPECT_EQ(e4m3_from_float(std::nanf("")), kE4m3Nan);
}

TEST(Numeric, Ue8m0) {
  for (int code = 0; code < 255; ++code) {
    const float value = float_from_ue8m0(static_cast<std::uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), std::ldexp(1.0, code - 127)) << code;
    EXPECT_EQ(ue8m0_from_float(value), code);
    EXPECT_EQ(ue8m0_from_float(-value), code);
    if (code > 0) {
      EXPECT_EQ(ue8m0_from_float(std::nextafter(2 * value, 0.0f)), code);
    }
  }
  EXPECT_TRUE(std::isnan(float_from_ue8m0(0xff)));
  EXPECT_EQ(ue8m0_from_float(std::nanf("")), 0xff);
  EXPECT_EQ(ue8m0_from_float(kInfinity), 0xff);
  EXPECT_EQ(ue8m0_from_float(0.0f), 0);
}

// All of them can be evaluated by the compiler.
static_assert(float_from_bfloat16(bfloat16_from_float(1.5f)) == 1.5f);
static_assert(float_from_float16(float16_from_float(0x1p-24f)) == 0x1p-24f);
static_assert(float_from_e4m3(e4m3_from_float(448.0f)) == 448.0f);
static_assert(float_from_ue8m0(ue8m0_from_float(0.25f)) == 0.25f);

}  // namespace
}  // namespace shoal
