// SPDX-License-Identifier: Apache-2.0
// float8.hpp: e4m3, the 8-bit floating point format of the OCP specification: 4 exponent bits with
// bias 7, 3 mantissa bits, no infinities, largest value 448, smallest 2^-9; codes 0x7f and 0xff are
// NaN.
#pragma once

#include "ep/numeric/arithmetic.hpp"

namespace shoal::ep::numeric {

inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint8_t kE4m3Nan = 0x7f;

SHOAL_HOST_DEVICE inline float decode_e4m3(std::uint8_t code) {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const std::uint32_t subnormal = bits_of(mul(static_cast<float>(magnitude), 0x1p-9f));
  const std::uint32_t finite = magnitude < 8u ? subnormal : normal;
  return float_of(sign | (magnitude == kE4m3Nan ? kQuietNanBits : finite));
}

/// Nearest e4m3 value, ties to even; beyond +-448, infinities included, +-448; NaN gives 0x7f.
SHOAL_HOST_DEVICE inline std::uint8_t encode_e4m3(float value) {
  const std::uint32_t u = bits_of(value);
  const std::uint32_t magnitude = u & ~kSignBit;
  const std::uint32_t largest = 0x43e0'0000u;  // 448
  const std::uint32_t clamped = magnitude < largest ? magnitude : largest;
  const std::uint32_t normal = (clamped - (120u << 23) + 0x7'ffffu + ((clamped >> 20) & 1u)) >> 20;
  // A unit in the last place of 2^14 is 2^-9, the unit of e4m3's subnormals: the addition rounds at
  // the right bit.
  const std::uint32_t subnormal = bits_of(add(float_of(clamped), 0x1p14f)) - bits_of(0x1p14f);
  const std::uint32_t finite = clamped < 0x3c80'0000u ? subnormal : normal;
  const std::uint32_t sign = (u >> 24) & 0x80u;
  return static_cast<std::uint8_t>(magnitude > kInfinityBits ? kE4m3Nan : sign | finite);
}

}  // namespace shoal::ep::numeric
