// SPDX-License-Identifier: Apache-2.0
// log2 and exp2 against libm in float64, exp against libm in long double; products that are not
// fused with additions.
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "ep/numeric/elementary.hpp"
#include "ep/numeric/exponential.hpp"

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

}  // namespace
}  // namespace shoal::ep::numeric
