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
  const float given = magnitude > 0 ? magnitude : 0;
  // From 1 on: the bits of a float32 after its first bit of mantissa are rounded away, which
  // carries into the exponent; 252 is twice the exponent of 1, less its code.
  const std::uint32_t bits = bits_of(given);
  const std::uint32_t rounded = ((bits + 0x1f'ffffu + (bits >> 22 & 1u)) >> 22) - 252;
  constexpr float kHalves = 0x1.8p22F;  // the unit in the last place is 0.5
  const std::uint32_t below_one = bits_of(add(given, kHalves)) - bits_of(kHalves);
  const std::uint32_t code = given < 1 ? below_one : rounded;
  return code < 7 ? code : 7;
}

/// The scale of a group, by its largest magnitude, and what divides values to give e2m1.
struct Nvfp4Scale {
  std::uint8_t code;  ///< e4m3, positive
  float divisor;      ///< infinity where the scale is 0 or NaN, so that all codes are 0
};
/// `global`: the caller's scale, or 1.
SHOAL_HOST_DEVICE inline Nvfp4Scale nvfp4_scale(float largest, float global) {
  const bool finite = bits_of(largest) < kInfinityBits;
  const std::uint8_t code = finite ? encode_e4m3(mul(div(largest, kE2m1Max), global)) : kE4m3Nan;
  const float scale = div(decode_e4m3(code), global);
  return {code, scale > 0 ? scale : float_of(kInfinityBits)};
}

/// The code of a bfloat16 value, whose sign is bit 15 of `bits`.
SHOAL_HOST_DEVICE inline std::uint32_t encode_nvfp4(std::uint32_t bits, float divisor) {
  const float magnitude = float_of((bits & 0x7fffU) << 16);
  return encode_e2m1(div(magnitude, divisor)) | (bits >> 12 & 0x8U);
}

/// The value of a code, without the scales.
SHOAL_HOST_DEVICE inline float decode_e2m1(std::uint32_t code) {
  const std::uint32_t steps = code & 7;  // of 0.5 up to 2, of 1 up to 4, then of 2
  const float magnitude = steps < 4   ? static_cast<float>(steps) * 0.5F
                          : steps < 6 ? static_cast<float>(steps) - 2.0F
                                      : static_cast<float>(steps) * 2.0F - 8.0F;
  return (code & 8) != 0 ? -magnitude : magnitude;
}

// Where an empty row holds a sentinel, a word of codes must not look like it. Eight codes of -6 do.
// The two words of such a group then travel as what restore_nvfp4 reads, and the sign of its scale,
// which is positive, says so. Nothing is lost, and rows need no flags.

inline constexpr std::uint32_t kNvfp4Escaped = 0x80;  ///< in the code of a scale

/// Replaces the words of a group, if one of them is `sentinel`; true if so.
SHOAL_HOST_DEVICE inline bool escape_nvfp4(std::uint32_t& low, std::uint32_t& high,
                                           std::uint32_t sentinel) {
  if (low != sentinel && high != sentinel) return false;
  const std::uint32_t which = low != sentinel ? 1 : high != sentinel ? 0 : 2;
  high = which == 0 ? high : which == 1 ? low : 0;
  low = which;
  return true;
}
SHOAL_HOST_DEVICE inline void restore_nvfp4(std::uint32_t& low, std::uint32_t& high,
                                            std::uint32_t sentinel) {
  const std::uint32_t which = low, other = high;
  low = which == 1 ? other : sentinel;
  high = which == 0 ? other : sentinel;
}

}  // namespace shoal::ep::numeric
