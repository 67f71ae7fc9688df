// SPDX-License-Identifier: Apache-2.0
// shoal/numeric.hpp: conversions between float and the number formats of tensors: bfloat16,
// float16 (IEEE 754-2019 binary16), float8 e4m3 and the scale format UE8M0 (OCP 8-bit Floating
// Point Specification 1.0; OCP Microscaling Formats Specification 1.0).
//
// Values are bit patterns in std::uint16_t and std::uint8_t, as they lie in a Tensor. All functions
// are pure, total and without branches, so that loops over them vectorize; they are the same on
// host and device. -ffast-math may flush subnormals to zero.
//
//   std::span<const std::uint16_t> row{received.x.as<std::uint16_t>(), hidden};
//   float sum = 0;
//   for (std::uint16_t value : row) sum += shoal::float_from_bfloat16(value);
//   const std::uint16_t mean = shoal::bfloat16_from_float(sum / hidden);
//
// Conversions to float are exact. Conversions from float round to nearest, ties to even.
#pragma once

#include <cstdint>

#include <shoal/config.hpp>

namespace shoal {

namespace detail {

// std::bit_cast is no device function in all CUDA versions that we support.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr float float_of_bits(std::uint32_t bits) noexcept {
  return __builtin_bit_cast(float, bits);
}
[[nodiscard]] SHOAL_HOST_DEVICE constexpr std::uint32_t bits_of_float(float value) noexcept {
  return __builtin_bit_cast(std::uint32_t, value);
}

inline constexpr std::uint32_t kFloatSign = 0x8000'0000;
inline constexpr std::uint32_t kFloatInfinity = 0x7f80'0000;
inline constexpr std::uint32_t kFloatQuietNan = 0x7fc0'0000;

}  // namespace detail

/// Keeps infinities, signed zeros and subnormals, and the sign and payload of a NaN.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr float float_from_bfloat16(std::uint16_t value) noexcept {
  return detail::float_of_bits(static_cast<std::uint32_t>(value) << 16);
}

/// Overflow gives infinity. A NaN becomes quiet and keeps its sign and the upper part of its
/// payload.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr std::uint16_t bfloat16_from_float(float value) noexcept {
  const std::uint32_t bits = detail::bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // A NaN whose upper bits are zero would become infinity: set the quiet bit.
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>(
      (bits & ~detail::kFloatSign) > detail::kFloatInfinity ? nan : rounded);
}

/// Keeps infinities, signed zeros and subnormals, and the sign and payload of a NaN.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr float float_from_float16(std::uint16_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value & 0x7fff) << 13;
  // The exponent bias differs by 112. Multiplying by 2^112 corrects it exactly, for subnormals too.
  const std::uint32_t scaled = detail::bits_of_float(detail::float_of_bits(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude >= 0x0f800000 ? detail::kFloatInfinity : 0;
  return detail::float_of_bits(sign | scaled | special);
}

/// Magnitudes from 65520 give infinity. A NaN becomes quiet and keeps its sign and the upper part
/// of its payload.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr std::uint16_t float16_from_float(float value) noexcept {
  constexpr std::uint32_t kSmallestNormal = 0x38800000;    // 2^-14
  constexpr std::uint32_t kRoundsToInfinity = 0x477ff000;  // 65520, half way from 65504 to 2^16
  const std::uint32_t bits = detail::bits_of_float(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // The unit in the last place of 0.5f is 2^-24, that of float16 subnormals: the addition rounds at
  // the right bit.
  const std::uint32_t subnormal =
      detail::bits_of_float(detail::float_of_bits(magnitude) + 0.5f) - 0x3f000000;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const std::uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  std::uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  result = magnitude >= kRoundsToInfinity ? 0x7c00 : result;
  result = magnitude > detail::kFloatInfinity ? nan : result;
  return static_cast<std::uint16_t>(sign | result);
}

/// e4m3 has 4 exponent bits with bias 7 and 3 mantissa bits, no infinity, and one NaN per sign
/// (0x7f, 0xff). Its largest value is 448, its smallest positive one 2^-9.
inline constexpr float kE4m3Max = 448.0f;
inline constexpr std::uint8_t kE4m3Nan = 0x7f;

/// 0x7f and 0xff give a quiet NaN with that sign.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr float float_from_e4m3(std::uint8_t code) noexcept {
  const std::uint32_t magnitude = code & 0x7fu;
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t normal = (magnitude << 20) + (120u << 23);
  const std::uint32_t subnormal = detail::bits_of_float(static_cast<float>(magnitude) * 0x1p-9f);
  const std::uint32_t finite = magnitude < 8u ? subnormal : normal;
  return detail::float_of_bits(sign | (magnitude == kE4m3Nan ? detail::kFloatQuietNan : finite));
}

/// Saturates: magnitudes above 448, infinity included, give 448 with the sign of the value. A NaN
/// gives 0x7f.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr std::uint8_t e4m3_from_float(float value) noexcept {
  constexpr std::uint32_t kLargest = 0x43e0'0000;         // 448
  constexpr std::uint32_t kSmallestNormal = 0x3c80'0000;  // 2^-6
  const std::uint32_t bits = detail::bits_of_float(value);
  const std::uint32_t magnitude = bits & ~detail::kFloatSign;
  const std::uint32_t clamped = magnitude < kLargest ? magnitude : kLargest;
  const std::uint32_t normal = (clamped - (120u << 23) + 0x7'ffffu + ((clamped >> 20) & 1u)) >> 20;
  // The unit in the last place of 2^14 is 2^-9, that of e4m3 subnormals: the addition rounds at the
  // right bit.
  const std::uint32_t subnormal = detail::bits_of_float(detail::float_of_bits(clamped) + 0x1p14f) -
                                  detail::bits_of_float(0x1p14f);
  const std::uint32_t finite = clamped < kSmallestNormal ? subnormal : normal;
  const std::uint32_t sign = (bits >> 24) & 0x80u;
  return static_cast<std::uint8_t>(magnitude > detail::kFloatInfinity ? kE4m3Nan : sign | finite);
}

/// UE8M0, the scale format of block-scaled FP8: code c is 2^(c - 127); 0xff is NaN. Low-latency
/// dispatch packs four codes into an int32, the first group in the lowest byte.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr float float_from_ue8m0(std::uint8_t code) noexcept {
  constexpr std::uint32_t kLowest = 0x40'0000;  // 2^-127, a subnormal float
  const std::uint32_t exponent = static_cast<std::uint32_t>(code) << 23;
  return detail::float_of_bits(code == 0xff ? detail::kFloatQuietNan
                               : code == 0  ? kLowest
                                            : exponent);
}

/// The exponent of |value|: exact for powers of two from 2^-127 to 2^127, else rounded down to one.
/// 0 and other magnitudes below 2^-126 give 2^-127; infinity and NaN give NaN.
[[nodiscard]] SHOAL_HOST_DEVICE constexpr std::uint8_t ue8m0_from_float(float value) noexcept {
  return static_cast<std::uint8_t>(detail::bits_of_float(value) >> 23);
}

}  // namespace shoal
