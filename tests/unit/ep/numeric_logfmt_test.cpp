// SPDX-License-Identifier: Apache-2.0
// LogFMT-10: error bounds, zeros, signs, layout, and blocks that must stay bfloat16.
// @traits one_thread
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "ep/numeric/rows.hpp"

namespace shoal::ep::numeric {
namespace {

std::vector<Bf16> random_row(std::size_t hidden, float largest, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(-largest, largest);
  std::vector<Bf16> row(hidden);
  for (Bf16& value : row) value = to_bf16(uniform(random));
  return row;
}

struct Encoded {
  std::size_t written = 0, read = 0;
  std::vector<std::uint32_t> storage;  // aligned
  std::vector<float> values;
};

Encoded round_trip(std::span<const Bf16> row) {
  Encoded result;
  result.storage.assign(logfmt_row_bytes(row.size()) / 4, 0xa5a5'a5a5u);
  auto* bytes = reinterpret_cast<std::byte*>(result.storage.data());
  result.written = logfmt_encode_row(row, bytes);
  result.values.resize(row.size());
  result.read = logfmt_decode_row(bytes, result.values);
  return result;
}

LogfmtScale scale_of_group(std::span<const Bf16> row, std::size_t group) {
  LogfmtGroup summary;
  for (const Bf16 value : row.subspan(group * 128, group_channels(row.size(), group)))
    summary = with_value(summary, value);
  return logfmt_scale(summary);
}

/// Half the distance to the neighbouring code, and the error of log2, exp2 and float32 arithmetic,
/// which is far smaller.
double relative_bound(const LogfmtScale& scale) {
  return (std::exp2(scale.step) - 1) / 2 * 1.001 + 1e-5;
}

TEST(NumericLogfmt, RoundTripErrorIsHalfAStep) {
  for (const std::size_t hidden : {8u, 128u, 136u, 512u, 2048u, 2560u, 7168u})
    for (const float largest : {0.99f, 1e-3f, 1e-25f}) {
      const auto row = random_row(hidden, largest, static_cast<unsigned>(hidden));
      const Encoded got = round_trip(row);
      ASSERT_EQ(got.written, got.read);
      ASSERT_EQ(got.written, 4 * group_count(hidden) + hidden * 10 / 8) << "all blocks are cast";
      for (std::size_t i = 0; i < hidden; ++i) {
        const double x = to_float(row[i]);
        ASSERT_NEAR(got.values[i], x, std::abs(x) * relative_bound(scale_of_group(row, i / 128)))
            << hidden << " " << i;
        ASSERT_EQ(std::signbit(got.values[i]), std::signbit(x));
      }
    }
}

TEST(NumericLogfmt, LargestAndSmallestAreHitWithinRounding) {
  const auto row = random_row(128, 0.9f, 7);
  const LogfmtScale scale = scale_of_group(row, 0);
  EXPECT_EQ(encode_logfmt(std::exp2(scale.log_min), scale), 1u);
  const float largest = std::exp2(scale.log_min + 510 * scale.step);
  EXPECT_EQ(encode_logfmt(largest, scale), 511u);
  EXPECT_NEAR(decode_logfmt(511, true, scale), -largest, largest * 1e-5);
}

TEST(NumericLogfmt, ThresholdIsTheArithmeticMean) {
  const auto row = random_row(128, 0.9f, 8);
  const LogfmtScale scale = scale_of_group(row, 0);
  for (std::uint32_t code = 1; code < 511; code += 17) {
    const double middle = (static_cast<double>(decode_logfmt(code, false, scale)) +
                           decode_logfmt(code + 1, false, scale)) /
                          2;
    EXPECT_EQ(encode_logfmt(static_cast<float>(middle * (1 - 1e-4)), scale), code);
    EXPECT_EQ(encode_logfmt(static_cast<float>(middle * (1 + 1e-4)), scale), code + 1);
  }
}

TEST(NumericLogfmt, ZerosStayZeroAndDoNotStretchTheSteps) {
  auto row = random_row(1024, 0.5f, 3);
  for (std::size_t i = 0; i < row.size(); i += 3) row[i].bits = i % 2 ? 0x8000 : 0;
  const Encoded got = round_trip(row);
  EXPECT_LT(got.written, 2u * 1024u);
  for (std::size_t i = 0; i < row.size(); i += 3) {
    ASSERT_EQ(got.values[i], 0.0f);
    ASSERT_EQ(std::signbit(got.values[i]), i % 2 == 1);
  }
  const LogfmtScale scale = scale_of_group(row, 0);
  EXPECT_LT(scale.step, kLogfmtRange / kLogfmtSteps);
  for (std::size_t i = 0; i < 128; ++i)
    ASSERT_NEAR(got.values[i], to_float(row[i]),
                std::abs(to_float(row[i])) * relative_bound(scale));
}

TEST(NumericLogfmt, ValuesFarBelowTheLargestBecomeZero) {
  auto row = random_row(128, 0.5f, 4);
  row[0] = to_bf16(0x1p-60f);
  const Encoded got = round_trip(row);
  EXPECT_EQ(got.values[0], 0.0f);
}

/// A block is cast only when all of its groups allow it; other blocks of the row are unaffected.
TEST(NumericLogfmt, BlocksThatMustNotBeCastAreExact) {
  const std::vector<void (*)(Bf16*)> spoilers = {
      [](Bf16* group) { group[5] = to_bf16(1.0f); },                        // not below 1
      [](Bf16* group) { group[5].bits = 0x7f80; },                          // infinity
      [](Bf16* group) { group[5].bits = 0xffc1; },                          // NaN
      [](Bf16* group) { std::fill(group, group + 128, Bf16{0}); },          // all zero
      [](Bf16* group) { std::fill(group, group + 128, to_bf16(-0.25f)); },  // one magnitude
  };
  for (const auto& spoil : spoilers) {
    auto row = random_row(2048, 0.9f, 5);
    spoil(&row[1024 + 3 * 128]);
    const Encoded got = round_trip(row);
    ASSERT_EQ(got.written, 16 * 4 + 1280u + 2048u);
    for (std::size_t i = 1024; i < 2048; ++i)
      ASSERT_EQ(bits_of(got.values[i]), bits_of(to_float(row[i]))) << i;
  }
}

TEST(NumericLogfmt, BlockSizesFollowHidden) {
  EXPECT_EQ(logfmt_block_channels(7168), 1024u);
  EXPECT_EQ(logfmt_block_channels(2560), 512u);
  EXPECT_EQ(logfmt_bytes(16), 20u);
  EXPECT_EQ(logfmt_bytes(8), 10u);
  EXPECT_EQ(logfmt_row_bytes(7168), 7168u * 2 + 56 * 4);
}

// Log2(amin)' = max(log2 amin, log2 amax - 32).
TEST(NumericLogfmt, AZeroStretchesTheRangeToThirtyTwoOctaves) {
  LogfmtGroup group;
  for (const float value : {0.5f, 0.25f}) group = with_value(group, to_bf16(value));
  EXPECT_EQ(logfmt_scale(group).log_min, -2.0f);
  group = with_value(group, to_bf16(-0.0f));
  EXPECT_EQ(logfmt_scale(group).log_min, -33.0f);
  EXPECT_EQ(logfmt_scale(group).step, 32.0f / 510.0f);
  EXPECT_TRUE(logfmt_scale(group).castable);
}

TEST(NumericLogfmt, LayoutIsNineBitCodesThenSigns) {
  // A group of two magnitudes: the larger has code 511, the smaller 1.
  std::vector<Bf16> values(16, to_bf16(0.25f));
  values[1] = to_bf16(-0.5f);
  values[15] = to_bf16(-0.25f);
  LogfmtGroup group;
  for (const Bf16 value : values) group = with_value(group, value);
  std::vector<std::byte> bytes(logfmt_bytes(16));
  logfmt_encode_block(values, {&group, 1}, bytes.data());
  auto bit = [&](std::size_t i) { return std::to_integer<int>(bytes[i / 8] >> (i % 8)) & 1; };
  for (std::size_t i = 0; i < 16; ++i) {
    int code = 0;
    for (std::size_t b = 0; b < 9; ++b) code |= bit(9 * i + b) << b;
    EXPECT_EQ(code, i == 1 ? 511 : 1) << i;
    EXPECT_EQ(bit(144 + i), i == 1 || i == 15) << i;
  }
}

Bf16 magnitude_of(std::uint32_t bits) {
  return {static_cast<std::uint16_t>(bits)};
}

TEST(NumericLogfmt, CastableNeedsNoLogarithm) {
  for (std::uint32_t largest = 0; largest < 0x8000; ++largest)
    for (const std::uint32_t smallest :
         {0u, 1u, 0x7fu, 0x80u, largest / 2, largest - 1, largest, largest + 1, 0x7f80u}) {
      if (smallest > 0x7f80) continue;
      const LogfmtGroup group{magnitude_of(largest), magnitude_of(smallest)};
      ASSERT_EQ(logfmt_castable(group), logfmt_scale(group).castable) << largest << " " << smallest;
    }
}

/// Groups whose smallest value is within the range have no code 0, so receivers do not test for it.
TEST(NumericLogfmt, TheSmallestValueHasCodeOne) {
  std::size_t groups = 0;
  for (std::uint32_t largest = 0x3f7f; largest > 0; --largest)
    for (const std::uint32_t smallest :
         {1u, 0x80u, largest / 2, largest - 300, largest - 128, largest - 2, largest - 1}) {
      const LogfmtGroup group{magnitude_of(largest), magnitude_of(smallest)};
      if (smallest == 0 || !logfmt_castable(group) || !logfmt_levels(group).nonzero) continue;
      ++groups;
      ASSERT_EQ(encode_logfmt(to_float(group.smallest), logfmt_scale(group)), 1u)
          << largest << " " << smallest;
      ASSERT_EQ(encode_logfmt(to_float(group.largest), logfmt_scale(group)), 511u)
          << largest << " " << smallest;
    }
  EXPECT_GT(groups, 10'000u);
}

// Words of 32 ones would be taken for words that have not arrived.
TEST(NumericLogfmt, NoWordIsAllOnes) {
  std::vector<Bf16> values(128, to_bf16(-0.5f));
  values[127] = to_bf16(-0.25f);
  LogfmtGroup group;
  for (const Bf16 value : values) group = with_value(group, value);
  std::vector<std::uint32_t> words(logfmt_bytes(values.size()) / 4);
  logfmt_encode_block(values, {&group, 1}, reinterpret_cast<std::byte*>(words.data()));
  std::vector<float> decoded(values.size());
  logfmt_decode_block(reinterpret_cast<const std::byte*>(words.data()), {&group, 1}, decoded);
  const LogfmtScale scale = logfmt_scale(group);
  const float top = decode_logfmt(511, true, scale), below = decode_logfmt(510, true, scale);
  for (std::size_t unit = 0; unit < 8; ++unit) {
    for (std::size_t i = 0; i < 5; ++i)
      EXPECT_NE(words[5 * unit + i], 0xffff'ffffu) << unit << " " << i;
    // One code of each word is lower by one: the first that begins there.
    for (std::size_t i = 0; i < 16 && unit < 7; ++i) {
      const bool first = i == 0 || i == 4 || i == 8 || i == 11 || i == 15;
      EXPECT_EQ(decoded[16 * unit + i], first ? below : top) << unit << " " << i;
    }
  }
}

/// The shorter functions agree with the others bit by bit: for every magnitude that a group can
/// hold, zeros and subnormals included, and for every code.
TEST(NumericLogfmt, ShorterFunctionsGiveTheSameBits) {
  const std::uint32_t kFirstNormal = 0x0080, kBelowOne = 0x3f7f;
  std::size_t groups = 0;
  for (std::uint32_t largest = kBelowOne; largest > kFirstNormal; largest -= 37)
    for (const std::uint32_t smallest :
         {0u, 3u, kFirstNormal, kFirstNormal + 70, kFirstNormal + 128, largest / 2, largest - 128,
          largest - 1}) {
      if (smallest >= largest) continue;
      const LogfmtScale scale = logfmt_scale({magnitude_of(largest), magnitude_of(smallest)});
      if (scale.log_min < kLogfmtNormal) continue;
      ++groups;
      for (std::uint32_t bits = 0; bits <= largest; bits += bits < 0x180 ? 1 : 13) {
        const float value = to_float(magnitude_of(bits));
        ASSERT_EQ(encode_logfmt_normal(value, scale), encode_logfmt(value, scale))
            << largest << " " << smallest << " " << bits;
      }
      for (std::uint32_t code = 1; code < kLogfmtCodes; ++code)
        ASSERT_EQ(bits_of(logfmt_magnitude_normal(code, scale.log_min, scale.step)),
                  bits_of(decode_logfmt(code, false, scale)))
            << largest << " " << smallest << " " << code;
    }
  EXPECT_GT(groups, 1000u);
  for (std::uint32_t bits = kFirstNormal; bits < 0x7f80; ++bits) {
    const float value = to_float(magnitude_of(bits));
    ASSERT_EQ(bits_of(log2_of_normal(value)), bits_of(log2(value))) << bits;
  }
}

}  // namespace
}  // namespace shoal::ep::numeric
