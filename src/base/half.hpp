// SPDX-License-Identifier: Apache-2.0
// half.hpp: bfloat16 and float16 (IEEE 754 binary16) as bit patterns, converted from and to float.
// Exact where the result can be exact, else rounded to nearest, ties to even; infinities, signed
// zeros and subnormals are kept, a NaN stays a NaN with its sign.
//
// Every function is a handful of selects without branches, so that loops over them vectorise.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/host_device.hpp"

namespace shoal {

namespace detail {

// std::bit_cast is no device function in all CUDA versions that we support.
SHOAL_HOST_DEVICE inline float float_of_bits(std::uint32_t bits) noexcept {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

SHOAL_HOST_DEVICE inline std::uint32_t bits_of_float(float value) noexcept {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

}  // namespace detail

SHOAL_HOST_DEVICE inline float float_from_bfloat16(std::uint16_t value) noexcept {
  return detail::float_of_bits(static_cast<std::uint32_t>(value) << 16);
}

SHOAL_HOST_DEVICE inline std::uint16_t bfloat16_from_float(float value) noexcept {
  const std::uint32_t bits = detail::bits_of_float(value);
  const std::uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  // A NaN whose upper bits are zero would turn into infinity: set the quiet bit.
  const std::uint32_t nan = (bits >> 16) | 0x40;
  return static_cast<std::uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? nan : rounded);
}

SHOAL_HOST_DEVICE inline float float_from_float16(std::uint16_t value) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(value & 0x8000) << 16;
  const std::uint32_t magnitude = static_cast<std::uint32_t>(value & 0x7fff) << 13;
  // The exponent bias differs by 112; multiplying corrects it for subnormals as well, exactly.
  const std::uint32_t scaled = detail::bits_of_float(detail::float_of_bits(magnitude) * 0x1p112f);
  const std::uint32_t special = magnitude >= 0x0f800000 ? 0x7f800000 : 0;
  return detail::float_of_bits(sign | scaled | special);
}

SHOAL_HOST_DEVICE inline std::uint16_t float16_from_float(float value) noexcept {
  constexpr std::uint32_t kSmallestNormal = 0x38800000;  // 2^-14
  constexpr std::uint32_t kRoundsToInfinity =
      0x477ff000;  // 65520, half way between the largest float16 and 2^16
  const std::uint32_t bits = detail::bits_of_float(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000;
  const std::uint32_t magnitude = bits & 0x7fffffff;
  // The unit in the last place of 0.5f is 2^-24, that of float16 subnormals: the addition rounds as
  // float16 would.
  const std::uint32_t subnormal =
      detail::bits_of_float(detail::float_of_bits(magnitude) + 0.5f) - 0x3f000000;
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfff + ((magnitude >> 13) & 1)) >> 13;
  const std::uint32_t nan = 0x7e00 | ((magnitude >> 13) & 0x3ff);
  std::uint32_t result = magnitude < kSmallestNormal ? subnormal : normal;
  result = magnitude >= kRoundsToInfinity ? 0x7c00 : result;
  result = magnitude > 0x7f800000 ? nan : result;
  return static_cast<std::uint16_t>(sign | result);
}

}  // namespace shoal
