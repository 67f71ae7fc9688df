// SPDX-License-Identifier: Apache-2.0
// rows.hpp: whole rows on the host. Tests compare faster code with it, bit by bit.
//
// Plain loops over the element functions. Sizes are preconditions: spans of codes and rows have
// `hidden` elements, spans of scales group_count(hidden).
#pragma once

#include <span>

#include "ep/numeric/logfmt.hpp"
#include "ep/numeric/nvfp4.hpp"

namespace shoal::ep::numeric {

/// Largest magnitude of `values`; NaN when one of them is NaN.
inline float max_magnitude(std::span<const Bf16> values) {
  std::uint16_t largest = 0;
  for (const Bf16 value : values) {
    const std::uint16_t magnitude = value.bits & 0x7fffu;
    largest = magnitude > largest ? magnitude : largest;
  }
  return to_float(Bf16{largest});
}

/// Quantizes a row to e4m3 with one scale per group and writes the inverse scales.
void quantize_row(std::span<const Bf16> row, ScaleRounding rounding, std::span<std::uint8_t> codes,
                  std::span<float> inverse_scales);

/// The values of a quantized row.
void dequantize_row(std::span<const std::uint8_t> codes, std::span<const float> inverse_scales,
                    std::span<float> row);
void dequantize_row(std::span<const std::uint8_t> codes, std::span<const float> inverse_scales,
                    std::span<Bf16> row);

/// Scales as UE8M0: ue8m0_words(hidden) words. The scales must be powers of two
/// (ScaleRounding::power_of_two).
void pack_ue8m0(std::span<const float> inverse_scales, std::span<std::int32_t> words);
void unpack_ue8m0(std::span<const std::int32_t> words, std::span<float> inverse_scales);

/// Quantizes a row to MXFP8: a code for each channel, a scale for each kMxGroup of them.
void quantize_mxfp8_row(std::span<const Bf16> row, std::span<std::uint8_t> codes,
                        std::span<std::uint8_t> scales);
void dequantize_mxfp8_row(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                          std::span<float> row);

/// Quantizes a row to NVFP4: two channels in a byte of `codes`, the first one in the lower half,
/// and a scale for each kNvfp4Group of channels.
void quantize_nvfp4_row(std::span<const Bf16> row, float global, std::span<std::uint8_t> codes,
                        std::span<std::uint8_t> scales);
void dequantize_nvfp4_row(std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                          float global, std::span<float> row);

/// Packs one block of a castable row: logfmt_bytes(values.size()) bytes. `groups` are those of the
/// block.
void logfmt_encode_block(std::span<const Bf16> values, std::span<const LogfmtGroup> groups,
                         std::byte* bytes);
void logfmt_decode_block(const std::byte* bytes, std::span<const LogfmtGroup> groups,
                         std::span<float> values);

/// Writes the LogFMT-10 form of a row (hidden a multiple of 8) to `bytes`, which has room for
/// logfmt_row_bytes(hidden) and the alignment of LogfmtGroup. Returns the bytes written.
std::size_t logfmt_encode_row(std::span<const Bf16> row, std::byte* bytes);
/// The values of such a row. Returns the bytes read.
std::size_t logfmt_decode_row(const std::byte* bytes, std::span<float> row);

}  // namespace shoal::ep::numeric
