// SPDX-License-Identifier: Apache-2.0
// NVFP4: e2m1 codes of every bfloat16 magnitude and around every midpoint, and scales of groups.
// @traits one_thread
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ep/numeric/float16.hpp"
#include "ep/numeric/nvfp4.hpp"

namespace shoal::ep::numeric {
namespace {

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
      EXPECT_EQ(scale.factor, 1 / (static_cast<float>(code) / global));
      if (code >= 0x1p-6) EXPECT_EQ(encode_e2m1(largest * scale.factor), 7U) << largest;
    }
}

TEST(NumericNvfp4, GroupsWithoutAScale) {
  EXPECT_EQ(nvfp4_scale(0, 100).code, 0);
  EXPECT_EQ(nvfp4_scale(0, 100).factor, 0);
  EXPECT_EQ(nvfp4_scale(std::numeric_limits<float>::quiet_NaN(), 1).factor, 0);
  EXPECT_EQ(nvfp4_scale(1e6F, 1).code, encode_e4m3(kE4m3Max)) << "saturates";
}

}  // namespace
}  // namespace shoal::ep::numeric
