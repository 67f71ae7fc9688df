// SPDX-License-Identifier: Apache-2.0
// scale.hpp: the FP8 scales of a group of 128 channels.
//
// A group is quantized as e4m3(x * scale) and dequantized as e4m3 * inverse. The inverse is sent,
// as float32 or as its 8 exponent bits (UE8M0). If a group contains an infinity or a NaN, its
// scales are NaN, so that the whole group becomes NaN.
#pragma once

#include <cstddef>

#include "ep/numeric/float16.hpp"
#include "ep/numeric/float8.hpp"

namespace shoal::ep::numeric {

inline constexpr std::size_t kGroupChannels = 128;
inline constexpr std::size_t kMxGroup = 32;    ///< channels that share a scale in MXFP8
inline constexpr float kSmallestAmax = 1e-4f;  ///< keeps the scale finite for groups of zeros

/// Groups of a row of `hidden` channels; the last one may be shorter.
SHOAL_HOST_DEVICE constexpr std::size_t group_count(std::size_t hidden) {
  return (hidden + kGroupChannels - 1) / kGroupChannels;
}
/// Channels in group `group` of a row.
SHOAL_HOST_DEVICE constexpr std::size_t group_channels(std::size_t hidden, std::size_t group) {
  const std::size_t rest = hidden - group * kGroupChannels;
  return rest < kGroupChannels ? rest : kGroupChannels;
}

enum class ScaleRounding : std::uint8_t {
  none,          ///< inverse = amax / 448
  power_of_two,  ///< inverse = the smallest power of two not below amax / 448
};

struct Scale {
  float quantize;    ///< multiplies values before encoding
  float dequantize;  ///< the inverse scale: multiplies decoded values
};

/// The larger of `largest` and |value|, or NaN when either is NaN: magnitudes compare like their
/// bit patterns.
SHOAL_HOST_DEVICE inline float max_magnitude(float largest, float value) {
  const std::uint32_t a = bits_of(largest), b = bits_of(value) & ~kSignBit;
  return float_of(a > b ? a : b);
}

/// ceil(log2(amax / 448)) for a normal positive amax, exact: 448 is 1.75 * 2^8.
SHOAL_HOST_DEVICE inline std::int32_t scale_exponent(float amax) {
  const std::uint32_t u = bits_of(amax);
  const std::int32_t above = (u & 0x7f'ffffu) > 0x60'0000u ? 1 : 0;
  return static_cast<std::int32_t>(u >> 23) - 127 - 8 + above;
}

/// 2^exponent for -126 <= exponent <= 127.
SHOAL_HOST_DEVICE inline float power_of_two(std::int32_t exponent) {
  return float_of(static_cast<std::uint32_t>(exponent + 127) << 23);
}

/// Scales of a group whose largest magnitude is `amax` (raised to 1e-4 where it is smaller).
SHOAL_HOST_DEVICE inline Scale scale_of(float amax, ScaleRounding rounding) {
  const float raised = max_magnitude(kSmallestAmax, amax);
  if (bits_of(raised) >= kInfinityBits) return {float_of(kQuietNanBits), float_of(kQuietNanBits)};
  if (rounding == ScaleRounding::none) return {div(kE4m3Max, raised), div(raised, kE4m3Max)};
  const std::int32_t exponent = scale_exponent(raised);
  return {power_of_two(-exponent), power_of_two(exponent)};
}

/// The scale of a group of MXFP8 (OCP Microscaling Formats 1.0, with the exponent rounded up so
/// that no value saturates), by its largest magnitude.
struct MxScale {
  std::uint8_t code;  ///< UE8M0
  float quantize;     ///< multiplies values before encoding
};
SHOAL_HOST_DEVICE inline MxScale mx_scale(float amax) {
  if (bits_of(amax) >= kInfinityBits) return {0xff, float_of(kQuietNanBits)};
  // Subnormal magnitudes have the exponent of the smallest scale, or a lower one.
  const std::int32_t exponent = scale_exponent(amax) < -127 ? -127 : scale_exponent(amax);
  return {static_cast<std::uint8_t>(exponent + 127), power_of_two(-exponent)};
}

/// UE8M0: the exponent bits of a power of two; 0xff for NaN.
SHOAL_HOST_DEVICE inline std::uint8_t encode_ue8m0(float inverse) {
  return ue8m0_from_float(inverse);
}
SHOAL_HOST_DEVICE inline float decode_ue8m0(std::uint8_t code) {
  return float_from_ue8m0(code);
}

/// 32-bit words that hold the UE8M0 scales of a row: four per word, the first group in the lowest
/// byte; bytes without a group are 0.
SHOAL_HOST_DEVICE constexpr std::size_t ue8m0_words(std::size_t hidden) {
  return (group_count(hidden) + 3) / 4;
}

/// Adds the scale of group `group` to its word, group / 4. The word must start at 0.
SHOAL_HOST_DEVICE inline std::int32_t with_ue8m0(std::int32_t word, std::size_t group,
                                                 float inverse) {
  const std::uint32_t byte = static_cast<std::uint32_t>(encode_ue8m0(inverse)) << (8 * (group % 4));
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | byte);
}
SHOAL_HOST_DEVICE inline float ue8m0_scale(std::int32_t word, std::size_t group) {
  return decode_ue8m0(
      static_cast<std::uint8_t>(static_cast<std::uint32_t>(word) >> (8 * (group % 4))));
}

}  // namespace shoal::ep::numeric
