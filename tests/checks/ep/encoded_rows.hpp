// SPDX-License-Identifier: Apache-2.0
// encoded_rows.hpp: rows of dispatches and combines as numeric/ encodes them, and rows whose codes
// or scales are all ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "ep/numeric/rows.hpp"
#include "ep/plan/notices.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep {

/// LowLatencyDispatchOptions.global_scale of NVFP4 rows.
inline constexpr float kGlobalScale = 37.5F;

/// Empty for bfloat16, whose rows are their own codes.
struct EncodedRow {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint32_t> scales;  ///< words of detail::ScaleWords

  EncodedRow(Quantize quantize, std::span<const std::uint16_t> given, float global = kGlobalScale) {
    const std::span row(reinterpret_cast<const numeric::Bf16*>(given.data()), given.size());
    const detail::RowFormat format(quantize);
    const auto hidden = static_cast<std::int64_t>(given.size());
    const auto groups = static_cast<std::size_t>(format.groups(hidden));
    codes.resize(format.row_bytes(hidden));
    std::vector<std::uint8_t> bytes((groups + 3) / 4 * 4);
    const std::span scale_bytes = std::span(bytes).first(groups);
    scales.resize(detail::ScaleWords(quantize, ScaleLayout::columns, hidden, 1).words);
    switch (quantize) {
      case Quantize::none:
        std::memcpy(codes.data(), given.data(), codes.size());
        return;
      case Quantize::mxfp8:
        numeric::quantize_mxfp8_row(row, codes, scale_bytes);
        break;
      case Quantize::nvfp4:
        numeric::quantize_nvfp4_row(row, global, codes, scale_bytes);
        break;
      default: {
        std::vector<float> floats(groups);
        numeric::quantize_row(row,
                              quantize == Quantize::fp8 ? numeric::ScaleRounding::none
                                                        : numeric::ScaleRounding::power_of_two,
                              codes, floats);
        if (!detail::has_byte_scales(quantize)) {
          std::memcpy(scales.data(), floats.data(), groups * sizeof(float));
          return;
        }
        for (std::size_t g = 0; g < groups; ++g) bytes[g] = numeric::encode_ue8m0(floats[g]);
      }
    }
    std::memcpy(scales.data(), bytes.data(), bytes.size());
  }
};

/// The values of a row after its way as a combine row in this encoding.
inline std::vector<float> after_combine(detail::CombineEncoding encoding,
                                        std::span<const std::uint16_t> given) {
  const std::span row(reinterpret_cast<const numeric::Bf16*>(given.data()), given.size());
  std::vector<float> values(row.size());
  std::vector<std::uint8_t> codes(row.size());
  switch (encoding) {
    case detail::CombineEncoding::bfloat16:
      std::ranges::transform(row, values.begin(), [](auto v) { return numeric::to_float(v); });
      break;
    case detail::CombineEncoding::log_fmt: {
      std::vector<std::uint32_t> words(numeric::logfmt_row_bytes(row.size()) / 4 + 1);
      numeric::logfmt_encode_row(row, reinterpret_cast<std::byte*>(words.data()));
      numeric::logfmt_decode_row(reinterpret_cast<const std::byte*>(words.data()), values);
      break;
    }
    case detail::CombineEncoding::fp8: {
      std::vector<float> scales(numeric::group_count(row.size()));
      numeric::quantize_row(row, numeric::ScaleRounding::none, codes, scales);
      numeric::dequantize_row(codes, scales, std::span(values));
      break;
    }
    case detail::CombineEncoding::mxfp8: {
      std::vector<std::uint8_t> scales(row.size() / numeric::kMxGroup);
      numeric::quantize_mxfp8_row(row, codes, scales);
      numeric::dequantize_mxfp8_row(codes, scales, values);
      break;
    }
  }
  return values;
}

/// Float32 sums, rounded to bfloat16, as they arrive after their way as a combine row.
inline void pass_combine(Quantize quantize, std::vector<float>& row) {
  std::vector<std::uint16_t> rounded(row.size());
  std::ranges::transform(row, rounded.begin(), [](float v) { return numeric::to_bf16(v).bits; });
  row = after_combine(detail::encoding_of(quantize), rounded);
}

/// Writes groups of one magnitude, whose codes are all ones in NVFP4, and such with NaNs, whose
/// scales are all ones in MXFP8.
template <typename Random>
void draw_extremes(std::span<std::uint16_t> row, Random& random) {
  for (std::size_t first = 0; first < row.size(); first += 8) {
    const std::uint64_t kind = random() % 8, same = random() % 4;
    for (std::uint16_t& value : row.subspan(first, std::min<std::size_t>(8, row.size() - first)))
      value = kind < 4    ? 0xbf80  // -1
              : kind == 4 ? 0x3f80
              : same == 0 ? 0x7fff
              : same == 1 ? 0xff80
                          : value;
  }
}

}  // namespace shoal::ep
