// SPDX-License-Identifier: Apache-2.0
// bfloat16 and float16 conversions, which reductions use to accumulate in float32 and round once,
// against arithmetic in double.
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "shoal/numeric.hpp"

namespace shoal {
namespace {

/// `value` rounded to a binary format with `mantissa_bits` stored bits and smallest exponent
/// `min_exponent`.
double round_to_format(double value, int mantissa_bits, int min_exponent, double overflow) {
  if (value == 0 || !std::isfinite(value)) return value;
  const double unit = std::ldexp(1.0, std::max(std::ilogb(value), min_exponent) - mantissa_bits);
  const double rounded = std::nearbyint(value / unit) * unit;
  return std::abs(rounded) >= overflow
             ? std::copysign(std::numeric_limits<double>::infinity(), value)
             : rounded;
}
double round_to_float16(double value) {
  return round_to_format(value, 10, -14, 0x1p16);
}
double round_to_bfloat16(double value) {
  return round_to_format(value, 7, -126, 0x1p128);
}

/// Each number of a 16-bit format, the midpoint to the next number, the floats next to both, and
/// random floats.
std::vector<float> interesting_floats(float (*decode)(std::uint16_t)) {
  std::vector<float> values = {0.0f, std::numeric_limits<float>::infinity(),
                               std::numeric_limits<float>::max(),
                               std::numeric_limits<float>::denorm_min()};
  for (std::uint32_t bits = 0; bits < 0x7fff; ++bits) {
    const float low = decode(static_cast<std::uint16_t>(bits));
    const float high = decode(static_cast<std::uint16_t>(bits + 1));
    if (!std::isfinite(low)) continue;
    const float middle = std::isfinite(high)
                             ? static_cast<float>((static_cast<double>(low) + high) / 2)
                             : low + (low - decode(static_cast<std::uint16_t>(bits - 1))) / 2;
    for (float value : {low, middle})
      for (float near : {std::nextafter(value, 0.0f), value,
                         std::nextafter(value, std::numeric_limits<float>::infinity())})
        values.push_back(near);
  }
  std::mt19937 random(1);
  for (int i = 0; i < 200'000; ++i) {
    const float value = detail::float_of_bits(random());
    if (!std::isnan(value)) values.push_back(value);
  }
  return values;
}

TEST(Half, DecodesEveryFloat16) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const int exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
    const float value = float_from_float16(static_cast<std::uint16_t>(bits));
    EXPECT_EQ(std::signbit(value), bits >> 15 != 0) << std::hex << bits;
    if (exponent == 31) {
      EXPECT_TRUE(mantissa ? std::isnan(value) : std::isinf(value)) << std::hex << bits;
    } else {
      const double expected =
          exponent ? std::ldexp(1024 + mantissa, exponent - 25) : std::ldexp(mantissa, -24);
      EXPECT_EQ(std::abs(static_cast<double>(value)), expected) << std::hex << bits;
    }
  }
}

TEST(Half, RoundsToNearestEvenFloat16) {
  for (float value : interesting_floats(float_from_float16)) {
    for (float x : {value, -value}) {
      const double got = float_from_float16(float16_from_float(x));
      ASSERT_EQ(got, round_to_float16(x)) << std::hexfloat << x;
      ASSERT_EQ(std::signbit(got), std::signbit(x)) << std::hexfloat << x;
    }
  }
}

TEST(Half, RoundsToNearestEvenBfloat16) {
  for (float value : interesting_floats(float_from_bfloat16)) {
    for (float x : {value, -value}) {
      const double got = float_from_bfloat16(bfloat16_from_float(x));
      ASSERT_EQ(got, round_to_bfloat16(x)) << std::hexfloat << x;
      ASSERT_EQ(std::signbit(got), std::signbit(x)) << std::hexfloat << x;
    }
  }
}

TEST(Half, KeepsEveryValueThatFits) {
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float a = float_from_float16(half), b = float_from_bfloat16(half);
    EXPECT_TRUE(std::isnan(a) || float16_from_float(a) == half) << std::hex << bits;
    EXPECT_TRUE(std::isnan(b) || bfloat16_from_float(b) == half) << std::hex << bits;
  }
}

TEST(Half, KeepsNanAndItsSign) {
  for (std::uint32_t bits :
       {0x7f800001u, 0x7fffffffu, 0x7fc00000u, 0xff800001u, 0xffffffffu, 0x7f80ffffu}) {
    const float nan = detail::float_of_bits(bits);
    for (float back : {float_from_float16(float16_from_float(nan)),
                       float_from_bfloat16(bfloat16_from_float(nan))}) {
      EXPECT_TRUE(std::isnan(back)) << std::hex << bits;
      EXPECT_EQ(std::signbit(back), bits >> 31 != 0) << std::hex << bits;
    }
  }
}

}  // namespace
}  // namespace shoal
