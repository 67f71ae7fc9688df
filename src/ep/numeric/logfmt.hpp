// SPDX-License-Identifier: Apache-2.0
// logfmt.hpp: LogFMT-10, the logarithmic 10-bit format for rows of a low-latency combine.
//
// A row travels as the metadata of all of its groups of 128 channels (largest and smallest
// magnitude, bfloat16), then its blocks. A block has 512 channels, or 1024 if hidden is a multiple
// of 1024; the last may be shorter. A block is cast to 10 bits per value if every group in it
// allows that, else it stays bfloat16. The receiver derives the positions from the metadata.
//
// Inside a group the logarithms of the magnitudes are cut into 510 equal steps between the smallest
// and the largest one:
//   code 0 is zero, code c >= 1 is 2^(log_min + (c - 1) * step); the threshold between two codes is
//   the arithmetic mean of their values.
// Sixteen values are 20 bytes: 16 codes of 9 bits, little end first, then 16 sign bits. A tail of
// eight values has the same form in 10 bytes. No word of the 20 bytes is all ones
// (without_all_ones), so that a receiver can tell a word that has arrived from an empty one.
//
// A zero counts as the smallest magnitude: its logarithm is minus infinity, so the steps then span
// the whole range of kLogfmtRange octaves.
#pragma once

#include "ep/numeric/elementary.hpp"
#include "ep/numeric/scale.hpp"

namespace shoal::ep::numeric {

inline constexpr std::uint32_t kLogfmtCodes = 512;
inline constexpr float kLogfmtSteps = 510.0f;
/// In octaves: magnitudes below 2^-32 of the largest become zero.
inline constexpr float kLogfmtRange = 32.0f;

/// The metadata of a group on the wire.
struct LogfmtGroup {
  Bf16 largest{};         ///< largest magnitude
  Bf16 smallest{0x7f80};  ///< smallest magnitude; infinity before the first value
};
static_assert(sizeof(LogfmtGroup) == 4);

/// Parameters for encoding and decoding a group. Both sides derive them from LogfmtGroup.
struct LogfmtScale {
  float log_min;
  float step;
  float inverse_step;
  float rounding;  ///< puts the threshold between two codes at the arithmetic mean of their values
  bool castable;   ///< all magnitudes are below 1 and not all are equal
};

SHOAL_HOST_DEVICE constexpr std::size_t logfmt_block_channels(std::size_t hidden) {
  return hidden % 1024 == 0 ? 1024 : 512;
}
/// Bytes of `channels` values in 10 bits; channels is a multiple of 8.
SHOAL_HOST_DEVICE constexpr std::size_t logfmt_bytes(std::size_t channels) {
  return channels / 4 * 5;
}
/// Bytes of a row at most, metadata included: when no block is cast.
SHOAL_HOST_DEVICE constexpr std::size_t logfmt_row_bytes(std::size_t hidden) {
  return group_count(hidden) * sizeof(LogfmtGroup) + hidden * sizeof(Bf16);
}

/// `group` with one more value of its channels. Start from {}. NaN counts as the largest magnitude
/// of all.
SHOAL_HOST_DEVICE inline LogfmtGroup with_value(LogfmtGroup group, Bf16 value) {
  const std::uint16_t magnitude = value.bits & 0x7fffu;
  if (magnitude > group.largest.bits) group.largest.bits = magnitude;
  if (magnitude < group.smallest.bits) group.smallest.bits = magnitude;
  return group;
}

/// LogfmtScale::castable, without the logarithms.
SHOAL_HOST_DEVICE constexpr bool logfmt_castable(LogfmtGroup group) {
  constexpr std::uint16_t kOne = 0x3f80;
  return group.largest.bits < kOne && group.smallest.bits < group.largest.bits;
}

/// The part of LogfmtScale that decoding needs.
struct LogfmtLevels {
  float log_min, step, log_max;
  bool nonzero;  ///< the smallest value has code 1, and none has code 0
};

SHOAL_HOST_DEVICE inline LogfmtLevels logfmt_levels(LogfmtGroup group) {
  const float log_max = log2(to_float(group.largest));
  const float lowest = sub(log_max, kLogfmtRange);
  const float log_smallest = log2(to_float(group.smallest));
  const bool nonzero = log_smallest > lowest;
  const float log_min = nonzero ? log_smallest : lowest;
  return {log_min, div(sub(log_max, log_min), kLogfmtSteps), log_max, nonzero};
}

SHOAL_HOST_DEVICE inline LogfmtScale logfmt_scale(LogfmtGroup group) {
  const LogfmtLevels levels = logfmt_levels(group);
  LogfmtScale scale;
  scale.log_min = levels.log_min;
  scale.castable = levels.log_max < 0.0f && levels.log_min < levels.log_max;
  scale.step = levels.step;
  scale.inverse_step = div(1.0f, scale.step);
  // 2 - log2((1 + 2^step) / 2) / step. The next term of the series is below 1e-6.
  constexpr float kEighthOfLn2 = 0x1.62e430p-4f;
  scale.rounding = fma(-scale.step, kEighthOfLn2, 1.5f);
  return scale;
}

/// The code of a finite value with logarithm `logarithm`.
SHOAL_HOST_DEVICE inline std::uint32_t logfmt_code(float logarithm, const LogfmtScale& scale) {
  const float code = fma(sub(logarithm, scale.log_min), scale.inverse_step, scale.rounding);
#if defined(__CUDA_ARCH__)
  const std::uint32_t whole = __float2uint_rz(code);  // 0 for negative numbers and NaN
  return whole < kLogfmtCodes - 1 ? whole : kLogfmtCodes - 1;
#else
  const float highest = static_cast<float>(kLogfmtCodes - 1);
  const float low = code > 0.0f ? code : 0.0f;
  return static_cast<std::uint32_t>(low < highest ? low : highest);
#endif
}
/// The 9-bit magnitude code of a finite value in a castable group.
SHOAL_HOST_DEVICE inline std::uint32_t encode_logfmt(float value, const LogfmtScale& scale) {
  return logfmt_code(log2(float_of(bits_of(value) & ~kSignBit)), scale);
}

/// The logarithm of a code other than 0.
SHOAL_HOST_DEVICE inline float logfmt_logarithm(std::uint32_t code, float log_min, float step) {
  constexpr std::uint32_t kIntegers = 0x4b00'0000;  // 2^23: the low bits are whole numbers
  return fma(sub(float_of(kIntegers | code), 0x1p23f + 1.0f), step, log_min);
}

SHOAL_HOST_DEVICE inline float decode_logfmt(std::uint32_t code, bool negative, float log_min,
                                             float step) {
  const float magnitude = exp2(logfmt_logarithm(code, log_min, step));
  const float value = code == 0 ? 0.0f : magnitude;
  return float_of(bits_of(value) | (negative ? kSignBit : 0u));
}
SHOAL_HOST_DEVICE inline float decode_logfmt(std::uint32_t code, bool negative,
                                             const LogfmtScale& scale) {
  return decode_logfmt(code, negative, scale.log_min, scale.step);
}

// The same for castable groups whose log_min is at least kLogfmtNormal, with fewer instructions.
// All codes but 0 stand for normal values there. A zero or subnormal is at least an octave below
// log_min, more than 15 steps, and gets code 0 whatever its logarithm.

inline constexpr float kLogfmtNormal = -125.0f;

/// `magnitude` without sign.
SHOAL_HOST_DEVICE inline std::uint32_t encode_logfmt_normal(float magnitude,
                                                            const LogfmtScale& scale) {
  return logfmt_code(log2_of_normal(magnitude), scale);
}
/// The magnitude of a code other than 0.
SHOAL_HOST_DEVICE inline float logfmt_magnitude_normal(std::uint32_t code, float log_min,
                                                       float step) {
  return exp2_to_normal(logfmt_logarithm(code, log_min, step));
}

/// Word `i` of the five words of 16 values, without the value that has all bits set: the code that
/// is the first to begin in the word becomes 510 instead of 511.
SHOAL_HOST_DEVICE constexpr std::uint32_t without_all_ones(std::uint32_t word, std::uint32_t i) {
  const std::uint32_t first_code = (32 * i + 8) / 9;
  return word == 0xffff'ffffu ? word - (1u << (9 * first_code - 32 * i)) : word;
}

/// True if a block with these groups is cast.
SHOAL_HOST_DEVICE inline bool logfmt_can_encode(const LogfmtGroup* groups, std::size_t count) {
  bool castable = true;
  for (std::size_t g = 0; g < count; ++g) castable = castable && logfmt_castable(groups[g]);
  return castable;
}

}  // namespace shoal::ep::numeric
