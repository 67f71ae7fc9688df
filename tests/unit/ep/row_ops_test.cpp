// SPDX-License-Identifier: Apache-2.0
// Row operations of the host backend against plain loops over numeric/, bit for bit, for every
// instruction set of this machine: sums in float32 in a fixed order, rounded once; FP8 with a scale
// per 128 channels.
// @traits slow, one_thread
#include "ep/host/rows/row_ops.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "ep/numeric/numeric.hpp"
#include "ep/numeric/rows.hpp"
#include "support/made_up.hpp"

namespace shoal::ep::host {
namespace {

constexpr std::size_t kChannelCounts[] = {8,   16,  24,  56,   64,   120,  128,
                                          136, 200, 256, 1000, 1024, 7168, 8192};
constexpr int kRowCounts[] = {0, 1, 2, 3, 7, 8, 16, 32, 33};
constexpr Store kStores[] = {Store::cached, Store::streamed};

/// `count` elements that start `offset` bytes after a multiple of 64, with a guard on both sides.
template <typename T>
class Row {
 public:
  explicit Row(std::size_t count, std::size_t offset = 0)
      : bytes_(count * sizeof(T)), memory_(bytes_ + 256, kGuard) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_.data());
    start_ = 128 - address % 64 + offset;
  }
  T* data() { return reinterpret_cast<T*>(memory_.data() + start_); }
  const T* data() const { return reinterpret_cast<const T*>(memory_.data() + start_); }
  T& operator[](std::size_t i) { return data()[i]; }
  const T& operator[](std::size_t i) const { return data()[i]; }

  bool guards_intact() const {
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if ((i < start_ || i >= start_ + bytes_) && memory_[i] != kGuard) return false;
    return true;
  }

 private:
  static constexpr std::uint8_t kGuard = 0xa5;
  std::size_t bytes_, start_;
  std::vector<std::uint8_t> memory_;
};

/// Bit patterns of a 16-bit float that are difficult to round: specials, subnormals, ties, any
/// exponent.
class Patterns {
 public:
  explicit Patterns(bool specials) : specials_(specials) {}

  std::uint16_t bfloat16() {
    static constexpr std::uint16_t kSpecials[] = {0x0000, 0x8000, 0x7f80, 0xff80, 0x7fc0,
                                                  0xffc1, 0x0001, 0x807f, 0x7f7f, 0xff7f};
    if (specials_ && random_() % 16 == 0) return kSpecials[random_() % std::size(kSpecials)];
    if (specials_ && random_() % 4 == 0) return static_cast<std::uint16_t>(random_());
    return numeric::to_bf16(ordinary()).bits;
  }
  std::uint16_t float16() {
    static constexpr std::uint16_t kSpecials[] = {0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00,
                                                  0xfe01, 0x0001, 0x83ff, 0x7bff, 0xfbff};
    if (specials_ && random_() % 16 == 0) return kSpecials[random_() % std::size(kSpecials)];
    if (specials_ && random_() % 4 == 0) return static_cast<std::uint16_t>(random_());
    return numeric::to_fp16(ordinary()).bits;
  }
  float float32() {
    return specials_ && random_() % 4 == 0
               ? numeric::float_of(static_cast<std::uint32_t>(random_()))
               : ordinary();
  }
  float weight() { return fraction(random_()); }
  std::size_t below(std::size_t limit) { return random_() % limit; }

 private:
  /// A fraction of 24 bits, in [-1, 1).
  static float fraction(std::uint64_t bits) {
    return static_cast<float>(static_cast<std::int64_t>(bits >> 40) - (1 << 23)) / (1 << 23);
  }
  float ordinary() {  // up to 8, of several magnitudes
    const std::uint64_t bits = random_();
    return 8 * fraction(bits) / static_cast<float>(1 << (bits % 8));
  }

  struct Random {  // cheaper than the generators of the standard library
    std::uint64_t state = 20;
    std::uint64_t operator()() { return test::mix(++state); }
  };

  bool specials_;
  Random random_;
};

// Each format: element type, a random element, and the conversions of numeric/.
struct Bfloat16Format {
  using Element = std::uint16_t;
  static constexpr DataType kType = DataType::bfloat16;
  static Element random(Patterns& patterns) { return patterns.bfloat16(); }
  static float widen(Element value) { return numeric::to_float(numeric::Bf16{value}); }
  static Element narrow(float value) { return numeric::to_bf16(value).bits; }
};
struct Float16Format {
  using Element = std::uint16_t;
  static constexpr DataType kType = DataType::float16;
  static Element random(Patterns& patterns) { return patterns.float16(); }
  static float widen(Element value) { return numeric::to_float(numeric::Fp16{value}); }
  static Element narrow(float value) { return numeric::to_fp16(value).bits; }
};
struct Float32Format {
  using Element = float;
  static constexpr DataType kType = DataType::float32;
  static Element random(Patterns& patterns) { return patterns.float32(); }
  static float widen(Element value) { return value; }
  static Element narrow(float value) { return value; }
};

/// Equal bits, or both NaN: which of several NaN survives an addition is not specified.
template <class Format>
::testing::AssertionResult same(const Row<typename Format::Element>& got,
                                const std::vector<typename Format::Element>& expected) {
  if (!got.guards_intact()) return ::testing::AssertionFailure() << "wrote outside the row";
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const float a = Format::widen(got[i]), b = Format::widen(expected[i]);
    if (std::isnan(a) && std::isnan(b)) continue;
    if (std::memcmp(&got[i], &expected[i], sizeof expected[i]) != 0)
      return ::testing::AssertionFailure() << "channel " << i << ": " << a << " instead of " << b;
  }
  return ::testing::AssertionSuccess();
}

template <class Format>
std::vector<Row<typename Format::Element>> random_rows(Patterns& patterns, std::size_t count,
                                                       std::size_t channels) {
  std::vector<Row<typename Format::Element>> rows;
  for (std::size_t r = 0; r < count; ++r) {
    rows.emplace_back(channels, 16 * patterns.below(4));
    for (std::size_t i = 0; i < channels; ++i) rows.back()[i] = Format::random(patterns);
  }
  return rows;
}

/// One test run per instruction set.
class RowOps : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (!use_instruction_set(GetParam()))
      GTEST_SKIP() << "this machine has no " << GetParam() + 1 << " instruction sets";
    RecordProperty("instruction_set", instruction_set());
  }
  void TearDown() override { use_instruction_set(0); }

  template <class Format>
  void check_sums(bool specials) {
    Patterns patterns(specials);
    for (const std::size_t channels : kChannelCounts)
      for (const int count : kRowCounts)
        for (const Store store : kStores)
          check_sum<Format>(patterns, channels, static_cast<std::size_t>(count), store);
  }

 private:
  template <class Format>
  void check_sum(Patterns& patterns, std::size_t channels, std::size_t count, Store store) {
    using Element = typename Format::Element;
    const auto rows = random_rows<Format>(patterns, count + 2, channels);
    const std::size_t biases = patterns.below(3);
    const void* const bias0 = biases > 0 ? rows[count].data() : nullptr;
    const void* const bias1 = biases > 1 ? rows[count + 1].data() : nullptr;
    std::vector<const void*> pointers;
    for (std::size_t r = 0; r < count; ++r) pointers.push_back(rows[r].data());

    std::vector<Element> expected(channels);
    for (std::size_t i = 0; i < channels; ++i) {
      float sum = 0;
      for (std::size_t b = 0; b < biases; ++b)
        sum = numeric::add(sum, Format::widen(rows[count + b][i]));
      for (std::size_t r = 0; r < count; ++r) sum = numeric::add(sum, Format::widen(rows[r][i]));
      expected[i] = Format::narrow(sum);
    }
    Row<Element> target(channels, 16 * patterns.below(4));
    sum_rows(Format::kType, target.data(), pointers, bias0, bias1, channels, store);
    flush_streamed_rows();
    ASSERT_TRUE(same<Format>(target, expected))
        << channels << " channels, " << count << " rows, " << biases << " biases";
  }
};

INSTANTIATE_TEST_SUITE_P(InstructionSet, RowOps, ::testing::Range(0, 5));

TEST_P(RowOps, CopiesExactlyTheRow) {
  Patterns patterns(true);
  for (const std::size_t bytes : {0, 1, 8, 16, 48, 64, 80, 272, 1040, 4096, 7392, 14336})
    for (const std::size_t offset : {0, 16, 32, 48})
      for (const Store store : kStores) {
        Row<std::uint8_t> source(bytes, 16 * patterns.below(4)), target(bytes, offset);
        for (std::size_t i = 0; i < bytes; ++i)
          source[i] = static_cast<std::uint8_t>(patterns.below(256));
        copy_row(target.data(), source.data(), bytes, store);
        flush_streamed_rows();
        ASSERT_EQ(std::memcmp(target.data(), source.data(), bytes), 0)
            << bytes << " bytes at " << offset;
        ASSERT_TRUE(target.guards_intact()) << bytes << " bytes at " << offset;
      }
}

TEST_P(RowOps, ScattersToEveryTarget) {
  Patterns patterns(true);
  const std::size_t bytes = 1040;
  for (std::size_t count = 0; count <= 9; ++count)
    for (const Store store : kStores) {
      Row<std::uint8_t> source(bytes, 16);
      for (std::size_t i = 0; i < bytes; ++i)
        source[i] = static_cast<std::uint8_t>(patterns.below(256));
      std::vector<Row<std::uint8_t>> targets;
      std::vector<void*> pointers;
      for (std::size_t t = 0; t < count; ++t) targets.emplace_back(bytes, 16 * (t % 4));
      for (auto& target : targets) pointers.push_back(target.data());
      scatter_row(pointers, source.data(), bytes, store);
      flush_streamed_rows();
      for (const auto& target : targets) {
        ASSERT_EQ(std::memcmp(target.data(), source.data(), bytes), 0);
        ASSERT_TRUE(target.guards_intact());
      }
    }
}

TEST_P(RowOps, SumsAsNumericDoes) {
  check_sums<Bfloat16Format>(false);
  check_sums<Float16Format>(false);
  check_sums<Float32Format>(false);
}

TEST_P(RowOps, SumsSpecialValuesAsNumericDoes) {
  check_sums<Bfloat16Format>(true);
  check_sums<Float16Format>(true);
  check_sums<Float32Format>(true);
}

TEST_P(RowOps, SumOfNothingIsZero) {
  Row<std::uint16_t> target(200);
  sum_rows(DataType::bfloat16, target.data(), {}, nullptr, nullptr, 200, Store::cached);
  EXPECT_TRUE(same<Bfloat16Format>(target, std::vector<std::uint16_t>(200, 0)));
}

// Every float16 through the widening and, in steps, float32 values around all of them through the
// rounding.
TEST_P(RowOps, Float16ConversionsAreExact) {
  const std::size_t count = 65536;
  Row<std::uint16_t> all(count), target(count), half_unit(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[i] = static_cast<std::uint16_t>(i);
    half_unit[i] = static_cast<std::uint16_t>((i * 40503) ^ 0x1234);
  }
  for (const std::uint16_t* other : {static_cast<const std::uint16_t*>(nullptr),
                                     static_cast<const std::uint16_t*>(half_unit.data())}) {
    const void* const rows[] = {all.data()};
    sum_rows(DataType::float16, target.data(), rows, other, nullptr, count, Store::cached);
    std::vector<std::uint16_t> expected(count);
    for (std::size_t i = 0; i < count; ++i)
      expected[i] =
          Float16Format::narrow((other == nullptr ? 0.0f : Float16Format::widen(other[i])) +
                                Float16Format::widen(all[i]));
    ASSERT_TRUE(same<Float16Format>(target, expected));
  }
}

/// Ends of consecutive groups of `count` rows, some empty; nothing for `levels` 0.
std::vector<std::int32_t> random_level_ends(Patterns& patterns, std::size_t count,
                                            std::size_t levels) {
  std::vector<std::int32_t> ends;
  std::size_t end = 0;
  for (std::size_t level = 0; level < levels; ++level) {
    end = level + 1 == levels ? count : end + patterns.below(count - end + 1);
    ends.push_back(static_cast<std::int32_t>(end));
  }
  return ends;
}

std::vector<std::uint16_t> expected_weighted_sum(const std::vector<Row<std::uint16_t>>& rows,
                                                 const std::vector<float>& weights,
                                                 const std::vector<std::int32_t>& ends,
                                                 std::size_t channels) {
  const auto group = [&](std::size_t i, std::size_t first, std::size_t end) {
    float sum = 0;
    for (std::size_t r = first; r < end; ++r)
      sum = numeric::accumulate(sum, weights[r], Bfloat16Format::widen(rows[r][i]));
    return Bfloat16Format::narrow(sum);
  };
  std::vector<std::uint16_t> expected(channels);
  for (std::size_t i = 0; i < channels; ++i) {
    if (ends.empty()) {
      expected[i] = group(i, 0, rows.size());
      continue;
    }
    float sum = 0;
    std::size_t first = 0;
    for (const std::int32_t end : ends) {
      sum =
          numeric::add(sum, Bfloat16Format::widen(group(i, first, static_cast<std::size_t>(end))));
      first = static_cast<std::size_t>(end);
    }
    expected[i] = Bfloat16Format::narrow(sum);
  }
  return expected;
}

// Fails where multiply and add are fused: build this layer with -ffp-contract=off.
TEST_P(RowOps, WeightedSumRoundsEveryStep) {
  for (const bool specials : {false, true}) {
    Patterns patterns(specials);
    for (const std::size_t channels : kChannelCounts)
      for (const std::size_t count : {0, 1, 2, 5, 8, 17, 32})
        for (const std::size_t levels : {0, 1, 3}) {
          const Store store = kStores[patterns.below(2)];
          const auto rows = random_rows<Bfloat16Format>(patterns, count, channels);
          std::vector<const std::uint16_t*> pointers;
          for (const auto& row : rows) pointers.push_back(row.data());
          std::vector<float> weights(count);
          for (float& weight : weights) weight = patterns.weight();
          const auto ends = random_level_ends(patterns, count, levels);
          Row<std::uint16_t> target(channels, 16 * patterns.below(4));
          weighted_sum_rows(target.data(), pointers, weights, ends, channels, store);
          flush_streamed_rows();
          ASSERT_TRUE(
              same<Bfloat16Format>(target, expected_weighted_sum(rows, weights, ends, channels)))
              << channels << " channels, " << count << " rows, " << levels << " levels";
        }
  }
}

TEST_P(RowOps, QuantizesAsNumericDoes) {
  for (const bool specials : {false, true}) {
    Patterns patterns(specials);
    for (const std::size_t channels : kChannelCounts)
      for (const ScaleForm form : {ScaleForm::plain, ScaleForm::power_of_two}) {
        const auto source = std::move(random_rows<Bfloat16Format>(patterns, 1, channels)[0]);
        std::vector<numeric::Bf16> row(channels);
        for (std::size_t i = 0; i < channels; ++i) row[i] = {source[i]};
        const std::size_t groups = numeric::group_count(channels);
        std::vector<std::uint8_t> codes(channels);
        std::vector<float> scales(groups);
        numeric::quantize_row(row,
                              form == ScaleForm::plain ? numeric::ScaleRounding::none
                                                       : numeric::ScaleRounding::power_of_two,
                              codes, scales);

        Row<std::uint8_t> target(channels);
        Row<float> target_scales(groups);
        quantize_row(target.data(), target_scales.data(), source.data(), channels, form);
        ASSERT_TRUE(target.guards_intact() && target_scales.guards_intact()) << channels;
        ASSERT_EQ(std::memcmp(target_scales.data(), scales.data(), groups * sizeof(float)), 0)
            << channels;
        ASSERT_EQ(std::memcmp(target.data(), codes.data(), channels), 0) << channels;
      }
  }
}

TEST_P(RowOps, QuantizesBlocksAsNumericDoes) {
  for (const bool specials : {false, true}) {
    Patterns patterns(specials);
    for (const std::size_t channels : {32, 64, 96, 320, 2880, 7168})
      for (const float global : {1.0F, 448 * 6 / 300.0F}) {
        const auto source = std::move(random_rows<Bfloat16Format>(patterns, 1, channels)[0]);
        std::vector<numeric::Bf16> row(channels);
        for (std::size_t i = 0; i < channels; ++i) row[i] = {source[i]};
        std::vector<std::uint8_t> codes(channels), scales(channels / 32);
        Row<std::uint8_t> target(channels), target_scales(channels / 32);
        numeric::quantize_mxfp8_row(row, codes, scales);
        quantize_mxfp8_row(target.data(), target_scales.data(), source.data(), channels);
        ASSERT_TRUE(target.guards_intact() && target_scales.guards_intact()) << channels;
        ASSERT_EQ(std::memcmp(target_scales.data(), scales.data(), scales.size()), 0) << channels;
        ASSERT_EQ(std::memcmp(target.data(), codes.data(), codes.size()), 0) << channels;

        codes.resize(channels / 2);
        scales.resize(channels / 16);
        Row<std::uint8_t> halves(channels / 2), half_scales(channels / 16);
        numeric::quantize_nvfp4_row(row, global, codes, scales);
        quantize_nvfp4_row(halves.data(), half_scales.data(), source.data(), channels, global);
        ASSERT_TRUE(halves.guards_intact() && half_scales.guards_intact()) << channels;
        ASSERT_EQ(std::memcmp(half_scales.data(), scales.data(), scales.size()), 0) << channels;
        ASSERT_EQ(std::memcmp(halves.data(), codes.data(), codes.size()), 0) << channels;
      }
  }
}

TEST_P(RowOps, QuantizesEveryPatternInBlocks) {
  std::vector<std::uint8_t> codes(256), scales(16);
  std::vector<numeric::Bf16> row(256);
  Row<std::uint16_t> source(256);
  for (std::uint32_t first = 0; first < 65536; first += 256)
    for (const float global : {1.0F, 0x1p40F, 0x1p-40F}) {
      for (std::uint32_t i = 0; i < 256; ++i) {
        source[i] = static_cast<std::uint16_t>(first + i);
        row[i] = {source[i]};
      }
      Row<std::uint8_t> target(128), target_scales(16);
      numeric::quantize_nvfp4_row(row, global, std::span(codes).first(128), scales);
      quantize_nvfp4_row(target.data(), target_scales.data(), source.data(), 256, global);
      ASSERT_EQ(std::memcmp(target_scales.data(), scales.data(), 16), 0) << first;
      ASSERT_EQ(std::memcmp(target.data(), codes.data(), 128), 0) << first;
    }
}

// Every bfloat16 magnitude reaches the encoder: groups with one large value and the rest far below
// it.
TEST_P(RowOps, QuantizesEveryFinitePattern) {
  Row<std::uint16_t> source(128);
  std::vector<numeric::Bf16> row(128);
  std::vector<std::uint8_t> codes(128);
  for (std::uint32_t first = 0; first < 65536; first += 127) {
    for (std::uint32_t i = 0; i < 128; ++i) {
      const auto pattern = static_cast<std::uint16_t>(first + i);
      row[i] = {(pattern & 0x7f80) == 0x7f80 ? static_cast<std::uint16_t>(0x3f80) : pattern};
      source[i] = row[i].bits;
    }
    float scale = 0;
    numeric::quantize_row(row, numeric::ScaleRounding::none, codes, {&scale, 1});
    Row<std::uint8_t> target(128);
    float target_scale = 0;
    quantize_row(target.data(), &target_scale, source.data(), 128, ScaleForm::plain);
    ASSERT_EQ(target_scale, scale) << first;
    ASSERT_EQ(std::memcmp(target.data(), codes.data(), 128), 0) << first;
  }
}

TEST_P(RowOps, DequantizesAsNumericDoes) {
  Patterns patterns(true);
  for (const std::size_t channels : kChannelCounts) {
    const std::size_t groups = numeric::group_count(channels);
    Row<std::uint8_t> source(channels);
    Row<float> scales(groups);
    for (std::size_t i = 0; i < channels; ++i)
      source[i] = static_cast<std::uint8_t>(patterns.below(256));
    for (std::size_t g = 0; g < groups; ++g)
      scales[g] = g % 7 == 3 ? numeric::float_of(numeric::kQuietNanBits) : patterns.weight();
    std::vector<numeric::Bf16> expected(channels);
    numeric::dequantize_row(std::span(source.data(), channels),
                            std::span<const float>(scales.data(), groups), expected);
    std::vector<std::uint16_t> expected_bits(channels);
    for (std::size_t i = 0; i < channels; ++i) expected_bits[i] = expected[i].bits;
    Row<std::uint16_t> target(channels);
    dequantize_row(target.data(), source.data(), scales.data(), channels);
    ASSERT_TRUE(same<Bfloat16Format>(target, expected_bits)) << channels;
  }
}

}  // namespace
}  // namespace shoal::ep::host
