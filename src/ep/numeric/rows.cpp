// SPDX-License-Identifier: Apache-2.0
#include "ep/numeric/rows.hpp"

#include <algorithm>
#include <cstring>

namespace shoal::ep::numeric {

namespace {

/// Values whose codes, then signs, are packed together; the tail of a row may have half as many.
constexpr std::size_t kUnit = 16;

template <typename Output, typename Convert>
void dequantize(std::span<const std::uint8_t> codes, std::span<const float> inverse_scales,
                std::span<Output> row, Convert convert) {
  for (std::size_t group = 0; group < inverse_scales.size(); ++group) {
    const std::size_t first = group * kGroupChannels;
    const std::size_t end = first + group_channels(codes.size(), group);
    for (std::size_t i = first; i < end; ++i)
      row[i] = convert(mul(decode_e4m3(codes[i]), inverse_scales[group]));
  }
}

/// Appends and takes bit fields, least significant bit first.
class BitWriter {
 public:
  explicit BitWriter(std::byte* bytes) : bytes_(bytes) {}
  void put(std::uint32_t value, int bits) {
    pending_ |= static_cast<std::uint64_t>(value) << used_;
    for (used_ += bits; used_ >= 8; used_ -= 8, pending_ >>= 8)
      *bytes_++ = static_cast<std::byte>(pending_ & 0xff);
  }

 private:
  std::byte* bytes_;
  std::uint64_t pending_ = 0;
  int used_ = 0;
};

class BitReader {
 public:
  explicit BitReader(const std::byte* bytes) : bytes_(bytes) {}
  std::uint32_t take(int bits) {
    for (; available_ < bits; available_ += 8)
      pending_ |= static_cast<std::uint64_t>(*bytes_++) << available_;
    const auto value = static_cast<std::uint32_t>(pending_ & ((std::uint64_t{1} << bits) - 1));
    pending_ >>= bits;
    available_ -= bits;
    return value;
  }

 private:
  const std::byte* bytes_;
  std::uint64_t pending_ = 0;
  int available_ = 0;
};

/// Blocks of a row, each with its groups.
struct LogfmtBlock {
  std::size_t first, channels, first_group, groups;
};

LogfmtBlock block_of(std::size_t hidden, std::size_t first) {
  const std::size_t channels = std::min(logfmt_block_channels(hidden), hidden - first);
  return {first, channels, first / kGroupChannels, group_count(channels)};
}

}  // namespace

void quantize_row(std::span<const Bf16> row, ScaleRounding rounding, std::span<std::uint8_t> codes,
                  std::span<float> inverse_scales) {
  for (std::size_t group = 0; group < inverse_scales.size(); ++group) {
    const std::size_t first = group * kGroupChannels;
    const std::size_t end = first + group_channels(row.size(), group);
    const Scale scale = scale_of(max_magnitude(row.subspan(first, end - first)), rounding);
    inverse_scales[group] = scale.dequantize;
    for (std::size_t i = first; i < end; ++i)
      codes[i] = encode_e4m3(mul(to_float(row[i]), scale.quantize));
  }
}

void dequantize_row(std::span<const std::uint8_t> codes, std::span<const float> inverse_scales,
                    std::span<float> row) {
  dequantize(codes, inverse_scales, row, [](float value) { return value; });
}

void dequantize_row(std::span<const std::uint8_t> codes, std::span<const float> inverse_scales,
                    std::span<Bf16> row) {
  dequantize(codes, inverse_scales, row, [](float value) { return to_bf16(value); });
}

void pack_ue8m0(std::span<const float> inverse_scales, std::span<std::int32_t> words) {
  std::ranges::fill(words, 0);
  for (std::size_t g = 0; g < inverse_scales.size(); ++g)
    words[g / 4] = with_ue8m0(words[g / 4], g, inverse_scales[g]);
}

void unpack_ue8m0(std::span<const std::int32_t> words, std::span<float> inverse_scales) {
  for (std::size_t g = 0; g < inverse_scales.size(); ++g)
    inverse_scales[g] = ue8m0_scale(words[g / 4], g);
}

void quantize_mxfp8_row(std::span<const Bf16> row, std::span<std::uint8_t> codes,
                        std::span<std::uint8_t> scales) {
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const std::size_t first = group * kMxGroup, end = std::min(first + kMxGroup, row.size());
    const MxScale scale = mx_scale(max_magnitude(row.subspan(first, end - first)));
    scales[group] = scale.code;
    for (std::size_t i = first; i < end; ++i)
      codes[i] = encode_e4m3(mul(to_float(row[i]), scale.quantize));
  }
}

void dequantize_mxfp8_row(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                          std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = mul(decode_e4m3(codes[i]), decode_ue8m0(scales[i / kMxGroup]));
}

void quantize_nvfp4_row(std::span<const Bf16> row, float global, std::span<std::uint8_t> codes,
                        std::span<std::uint8_t> scales) {
  for (std::size_t group = 0; group < scales.size(); ++group) {
    const std::size_t first = group * kNvfp4Group;
    const Nvfp4Scale scale = nvfp4_scale(max_magnitude(row.subspan(first, kNvfp4Group)), global);
    scales[group] = scale.code;
    for (std::size_t i = first; i < first + kNvfp4Group; i += 2)
      codes[i / 2] = static_cast<std::uint8_t>(encode_nvfp4(row[i].bits, scale.divisor) |
                                               encode_nvfp4(row[i + 1].bits, scale.divisor) << 4);
  }
}

void dequantize_nvfp4_row(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                          float global, std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i)
    row[i] = mul(decode_e2m1(codes[i / 2] >> (4 * (i % 2)) & 0xfU),
                 div(decode_e4m3(scales[i / kNvfp4Group]), global));
}

void logfmt_encode_block(std::span<const Bf16> values, std::span<const LogfmtGroup> groups,
                         std::byte* bytes) {
  LogfmtScale scale{};
  for (std::size_t first = 0; first < values.size(); first += kUnit) {
    if (first % kGroupChannels == 0) scale = logfmt_scale(groups[first / kGroupChannels]);
    const auto unit = values.subspan(first, std::min(kUnit, values.size() - first));
    std::byte* const at = bytes + logfmt_bytes(first);
    BitWriter writer(at);
    for (const Bf16 value : unit) writer.put(encode_logfmt(to_float(value), scale), 9);
    for (const Bf16 value : unit) writer.put(value.bits >> 15, 1);
    for (std::uint32_t i = 0; i < logfmt_bytes(unit.size()) / 4; ++i) {
      std::uint32_t word = 0;
      std::memcpy(&word, at + 4 * i, sizeof word);
      word = without_all_ones(word, i);
      std::memcpy(at + 4 * i, &word, sizeof word);
    }
  }
}

void logfmt_decode_block(const std::byte* bytes, std::span<const LogfmtGroup> groups,
                         std::span<float> values) {
  BitReader reader(bytes);
  LogfmtScale scale{};
  for (std::size_t first = 0; first < values.size(); first += kUnit) {
    if (first % kGroupChannels == 0) scale = logfmt_scale(groups[first / kGroupChannels]);
    const std::size_t count = std::min(kUnit, values.size() - first);
    std::uint32_t codes[kUnit];
    for (std::size_t i = 0; i < count; ++i) codes[i] = reader.take(9);
    for (std::size_t i = 0; i < count; ++i)
      values[first + i] = decode_logfmt(codes[i], reader.take(1) != 0, scale);
  }
}

std::size_t logfmt_encode_row(std::span<const Bf16> row, std::byte* bytes) {
  auto* groups = reinterpret_cast<LogfmtGroup*>(bytes);
  for (std::size_t g = 0; g < group_count(row.size()); ++g) {
    LogfmtGroup group;
    for (const Bf16 value : row.subspan(g * kGroupChannels, group_channels(row.size(), g)))
      group = with_value(group, value);
    groups[g] = group;
  }
  std::byte* out = bytes + group_count(row.size()) * sizeof(LogfmtGroup);
  for (std::size_t first = 0; first < row.size(); first += logfmt_block_channels(row.size())) {
    const LogfmtBlock block = block_of(row.size(), first);
    const auto values = row.subspan(first, block.channels);
    if (logfmt_can_encode(groups + block.first_group, block.groups)) {
      logfmt_encode_block(values, {groups + block.first_group, block.groups}, out);
      out += logfmt_bytes(block.channels);
    } else {
      std::memcpy(out, values.data(), values.size_bytes());
      out += values.size_bytes();
    }
  }
  return static_cast<std::size_t>(out - bytes);
}

std::size_t logfmt_decode_row(const std::byte* bytes, std::span<float> row) {
  const auto* groups = reinterpret_cast<const LogfmtGroup*>(bytes);
  const std::byte* in = bytes + group_count(row.size()) * sizeof(LogfmtGroup);
  for (std::size_t first = 0; first < row.size(); first += logfmt_block_channels(row.size())) {
    const LogfmtBlock block = block_of(row.size(), first);
    if (logfmt_can_encode(groups + block.first_group, block.groups)) {
      logfmt_decode_block(in, {groups + block.first_group, block.groups},
                          row.subspan(first, block.channels));
      in += logfmt_bytes(block.channels);
      continue;
    }
    for (std::size_t i = 0; i < block.channels; ++i, in += sizeof(Bf16)) {
      Bf16 value;
      std::memcpy(&value, in, sizeof value);
      row[first + i] = to_float(value);
    }
  }
  return static_cast<std::size_t>(in - bytes);
}

}  // namespace shoal::ep::numeric
