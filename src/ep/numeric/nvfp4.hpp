// SPDX-License-Identifier: Apache-2.0
// nvfp4.hpp: 4-bit values (e2m1) whose groups of 16 channels share an e4m3 scale, and all groups a
// float32 scale of the caller: value = e2m1 * scale / global scale.
//
// e2m1 has a sign, the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4 and 6, no infinity and no NaN.
#pragma once

#include "ep/numeric/float8.hpp"

namespace shoal::ep::numeric {

inline constexpr std::uint32_t kNvfp4Group = 16;  ///< channels that share a scale
inline constexpr float kE2m1Max = 6.0F;

/// The code of a magnitude, without sign: to nearest, ties to the even code, saturated. NaN and
/// negative values give 0.
SHOAL_HOST_DEVICE inline std::uint32_t encode_e2m1(float magnitude) {
  constexpr float kSaturated = 2 * kE2m1Max;
  float bounded = magnitude >= 0 ? magnitude : 0;
  bounded = bounded < kSaturated ? bounded : kSaturated;
  // The distance of neighbours is 0.5, 1, then 2. Half-way cases of the unit that is scaled to 1
  // round to even, which is the even code; 1.75 and 3.5 round to the first code of the next unit.
  const float scale = bounded < 2 ? 2.0F : bounded < 4 ? 1.0F : 0.5F;
  const std::uint32_t first = bounded < 2 ? 0 : bounded < 4 ? 2 : 4;
  constexpr float kIntegers = 0x1.8p23F;  // the unit in the last place is 1
  const std::uint32_t code = shoal::detail::bits_of_float(add(mul(bounded, scale), kIntegers)) -
                             shoal::detail::bits_of_float(kIntegers) + first;
  return code < 7 ? code : 7;
}

/// The scale of a group, by its largest magnitude, and the factor from values to e2m1.
struct Nvfp4Scale {
  std::uint8_t code;  ///< e4m3
  float factor;       ///< 0 where the scale is 0 or NaN
};
/// `global`: the caller's scale, or 1.
SHOAL_HOST_DEVICE inline Nvfp4Scale nvfp4_scale(float largest, float global) {
  const std::uint8_t code = encode_e4m3(mul(div(largest, kE2m1Max), global));
  const float scale = div(decode_e4m3(code), global);
  return {code, scale > 0 ? div(1.0F, scale) : 0.0F};
}

}  // namespace shoal::ep::numeric
