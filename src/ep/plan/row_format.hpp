// SPDX-License-Identifier: Apache-2.0
// row_format.hpp: the encodings of dispatched rows (Quantize): how a row travels, and where its
// scales lie in a result (ScaleLayout). Pure; for the host and for kernels.
//
// In low-latency mode a row travels as its codes, then, on multiples of 16 bytes, its scales, and
// the global scale where the format has one. In normal mode the scales travel as words beside it,
// and the notices have the global scale.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <iterator>

#include "base/align.hpp"
#include "ep/plan/shape.hpp"
#include "shoal/config.hpp"
#include "shoal/ep/formats.hpp"
#include "shoal/tensor.hpp"

namespace shoal::ep::detail {

inline constexpr std::size_t kWireChunk = 16;  ///< bytes to which parts of a row are aligned

struct RowFormat {
  std::uint32_t channel_bits;  ///< of a code
  std::uint32_t group;         ///< channels that share a scale; 0: there are no scales
  std::uint32_t scale_bytes;   ///< of a scale as it travels
  bool has_global;             ///< a float32 scale for all groups travels too

  constexpr explicit RowFormat(Quantize quantize)
      : channel_bits(quantize == Quantize::none    ? 16
                     : quantize == Quantize::nvfp4 ? 4
                                                   : 8),
        group(quantize == Quantize::none    ? 0
              : quantize == Quantize::mxfp8 ? 32
              : quantize == Quantize::nvfp4 ? 16
                                            : 128),
        scale_bytes(quantize == Quantize::mxfp8 || quantize == Quantize::nvfp4 ? 1 : 4),
        has_global(quantize == Quantize::nvfp4) {}

  constexpr bool quantized() const { return group != 0; }
  constexpr std::size_t row_bytes(std::int64_t hidden) const {
    return static_cast<std::size_t>(hidden) * channel_bits / 8;
  }
  constexpr std::int64_t groups(std::int64_t hidden) const {
    return quantized() ? (hidden + group - 1) / group : 0;
  }
  /// Words of four bytes that hold the scales of a row of a result.
  constexpr std::int64_t scale_words(std::int64_t hidden, bool bytes) const {
    return bytes ? (groups(hidden) + 3) / 4 : groups(hidden);
  }
  /// Offsets in a row as it travels, and its size.
  constexpr std::size_t scales_at(std::int64_t hidden) const {
    return align_up(row_bytes(hidden), kWireChunk);
  }
  constexpr std::size_t global_at(std::int64_t hidden) const {
    return scales_at(hidden) +
           align_up(static_cast<std::size_t>(groups(hidden)) * scale_bytes, kWireChunk);
  }
  constexpr std::size_t wire_bytes(std::int64_t hidden) const {
    return quantized() ? global_at(hidden) + (has_global ? kWireChunk : 0) : row_bytes(hidden);
  }
};

/// The name as written in the enumeration; "?" for other values.
constexpr const char* name_of(Quantize quantize) {
  constexpr const char* kNames[] = {"none",      "fp8",   "fp8_power_of_two",
                                    "fp8_ue8m0", "mxfp8", "nvfp4"};
  const auto at = static_cast<std::size_t>(quantize);
  return at < std::size(kNames) ? kNames[at] : "?";
}

/// True if scales of a result are bytes: four of them, of neighbouring groups, are a word.
constexpr bool has_byte_scales(Quantize quantize) {
  return quantize >= Quantize::fp8_ue8m0;
}

/// The dtype of the codes of a result.
constexpr DataType code_dtype(Quantize quantize) {
  return quantize == Quantize::none    ? DataType::bfloat16
         : quantize == Quantize::nvfp4 ? DataType::uint8
                                       : DataType::float8_e4m3;
}
/// The dtype of its scales, one by one.
constexpr DataType scale_dtype(Quantize quantize) {
  return quantize == Quantize::nvfp4 ? DataType::float8_e4m3
         : has_byte_scales(quantize) ? DataType::uint8
                                     : DataType::float32;
}

/// ScaleLayout::automatic as the layout that it stands for.
constexpr ScaleLayout layout_of(Quantize quantize, ScaleLayout given) {
  if (given != ScaleLayout::automatic) return given;
  return quantize == Quantize::nvfp4 ? ScaleLayout::tiles : ScaleLayout::columns;
}

inline constexpr std::uint32_t kTileRows = 128;  ///< of a tile of scales
inline constexpr std::uint32_t kTileLanes = 32;  ///< rows whose words lie 16 bytes apart

/// Index of the first word of row `row` of scales in tiles, `words` words a row. The next ones
/// follow kTileRows words apart.
SHOAL_HOST_DEVICE constexpr std::uint64_t first_tile_word(std::uint64_t row, std::uint32_t words) {
  return row / kTileRows * kTileRows * words + row % kTileLanes * (kTileRows / kTileLanes) +
         row % kTileRows / kTileLanes;
}

/// Where the elements of a caller's array lie: at strides, or as words of scales in tiles.
struct RowPlaces {
  std::int64_t row_stride = 0, step = 1;  ///< elements, from row to row and within a row
  std::uint32_t tile_words = 0;           ///< words of a row; 0: no tiles

  RowPlaces() = default;
  /// `array`: one or two dimensions, or the three of tiles.
  explicit RowPlaces(const ConstTensorView& array)
      : row_stride(array.strides[0]),
        step(array.rank == 3   ? kTileRows
             : array.rank == 1 ? 1
                               : array.strides[1]),
        tile_words(array.rank == 3 ? static_cast<std::uint32_t>(array.shape[1]) : 0) {}
  /// Index of the first element of a row. The next ones follow `step` apart.
  SHOAL_HOST_DEVICE constexpr std::int64_t first(std::int64_t row) const {
    return tile_words == 0 ? row * row_stride
                           : static_cast<std::int64_t>(
                                 first_tile_word(static_cast<std::uint64_t>(row), tile_words));
  }
};

/// Where the scales of a result lie, in words of 4 bytes: a float32 scale, or four bytes.
struct ScaleWords {
  ScaleLayout layout = ScaleLayout::automatic;
  std::uint32_t words = 0;  ///< of a row
  /// Words from a word of a row to the next; from a row to the next, but in tiles.
  std::uint32_t word_stride = 0, row_stride = 0;
  std::uint64_t expert_stride = 0;

  ScaleWords() = default;
  constexpr ScaleWords(Quantize quantize, ScaleLayout given, std::int64_t hidden,
                       std::int64_t expert_rows)
      : layout(layout_of(quantize, given)),
        words(static_cast<std::uint32_t>(
            RowFormat(quantize).scale_words(hidden, has_byte_scales(quantize)))) {
    const auto rows = static_cast<std::uint32_t>(expert_rows);
    const bool tiles = layout == ScaleLayout::tiles, columns = layout == ScaleLayout::columns;
    word_stride = tiles ? kTileRows : columns ? rows : 1;
    row_stride = columns ? 1 : words;
    expert_stride = (tiles ? align_up(rows, kTileRows) : rows) * std::uint64_t{words};
  }

  /// Index of the first word of row `row` of an expert.
  SHOAL_HOST_DEVICE constexpr std::uint64_t first(std::uint32_t expert, std::uint32_t row) const {
    return expert * expert_stride + (layout == ScaleLayout::tiles
                                         ? first_tile_word(row, words)
                                         : std::uint64_t{row} * row_stride);
  }
  SHOAL_HOST_DEVICE constexpr std::uint64_t index(std::uint32_t expert, std::uint32_t row,
                                                  std::uint32_t word) const {
    return first(expert, row) + std::uint64_t{word} * word_stride;
  }
  /// The size of the scales of `experts` experts.
  constexpr std::size_t bytes(std::int64_t experts) const {
    return static_cast<std::size_t>(experts) * expert_stride * sizeof(std::uint32_t);
  }
};

/// All encodings, for what has to have room for each.
inline constexpr Quantize kQuantizations[] = {
    Quantize::none,      Quantize::fp8,   Quantize::fp8_power_of_two,
    Quantize::fp8_ue8m0, Quantize::mxfp8, Quantize::nvfp4};

/// Bytes of the scales of a result, in the layout that takes most.
constexpr std::size_t most_scale_bytes(Quantize quantize, const Shape& shape) {
  if (quantize == Quantize::none) return 0;
  const ScaleLayout layout = has_byte_scales(quantize) ? ScaleLayout::tiles : ScaleLayout::columns;
  return ScaleWords(quantize, layout, shape.hidden, shape.low_latency_rows())
      .bytes(shape.local_experts);
}

/// The same for the encoding that takes most.
constexpr std::size_t most_scale_bytes(const Shape& shape) {
  std::size_t bytes = 0;
  for (const Quantize quantize : kQuantizations)
    bytes = std::max(bytes, most_scale_bytes(quantize, shape));
  return bytes;
}

/// True if each expert has a global scale of its own.
template <typename Options>
bool has_scale_per_expert(const Options& options) {
  return options.global_scale.defined() && options.global_scale.shape[0] > 1;
}
/// The global scale of the options of a call with host tensors, 1 without one.
template <typename Options>
float global_scale_of(const Options& options, std::int64_t expert = 0) {
  if (!options.global_scale.defined()) return 1.0F;
  return options.global_scale.template as<float>()[has_scale_per_expert(options) ? expert : 0];
}

/// Ranks compare a hash of the global scales of all experts: folded_hash of the sum of these, in
/// any order. `bits` are those of the float32.
SHOAL_HOST_DEVICE constexpr std::uint32_t hash_of_scale(std::uint32_t expert, std::uint32_t bits) {
  std::uint32_t hash = bits ^ (expert + 1) * 0x9e37'79b9U;
  hash = (hash ^ hash >> 16) * 0x85eb'ca6bU;
  hash = (hash ^ hash >> 13) * 0xc2b2'ae35U;
  return hash ^ hash >> 16;
}
/// The bits of a positive, finite float32, as a single scale has.
SHOAL_HOST_DEVICE constexpr std::uint32_t folded_hash(std::uint32_t sum) {
  return sum % 0x7f7f'ffffU + 1;
}
/// The global scale that a rank announces.
template <typename Options>
float announced_scale_of(const Options& options) {
  if (!has_scale_per_expert(options)) return global_scale_of(options);
  std::uint32_t sum = 0;
  for (std::int64_t e = 0; e < options.global_scale.shape[0]; ++e)
    sum += hash_of_scale(static_cast<std::uint32_t>(e),
                         std::bit_cast<std::uint32_t>(global_scale_of(options, e)));
  return std::bit_cast<float>(folded_hash(sum));
}

/// Bytes of the codes and scales of a row in the encoding that takes most, each on multiples of 16.
constexpr std::size_t most_encoded_bytes(std::int64_t hidden) {
  std::size_t most = 0;
  for (const Quantize quantize : kQuantizations) {
    if (quantize == Quantize::none) continue;
    const RowFormat format(quantize);
    const auto words =
        static_cast<std::size_t>(format.scale_words(hidden, has_byte_scales(quantize)));
    most = std::max(
        most, align_up(format.row_bytes(hidden), kWireChunk) + align_up(4 * words, kWireChunk));
  }
  return most;
}

/// The rows of a result in host memory at `data`, as LowLatencyReceived describes them.
TensorView rows_view(void* data, Quantize quantize, const Shape& shape);
/// Its scales; not without quantization.
TensorView scales_view(void* data, Quantize quantize, ScaleLayout layout, const Shape& shape);

/// Channels of which rows must be a multiple, in this encoding.
constexpr std::int64_t hidden_multiple(Quantize quantize) {
  return quantize == Quantize::none    ? 1
         : quantize == Quantize::nvfp4 ? 64
         : quantize == Quantize::mxfp8 ? 32
                                       : 16;
}

}  // namespace shoal::ep::detail
