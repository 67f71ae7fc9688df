// SPDX-License-Identifier: Apache-2.0
// encoded_units.cuh: rows of a combine in fp8 or mxfp8 (detail::RowFormat: codes, then scales), 16
// channels a lane: their values, and sums that pass through the encoding.
#pragma once

#include "ep/cuda/device/decode.cuh"
#include "ep/cuda/normal/device/encode_rows.cuh"

namespace shoal::ep::cuda {
namespace {

/// Bfloat16 rows that travel encoded, as a format of kernels.
template <Quantize kFormat>
struct EncodedRows : Bfloat16Vector {
  static constexpr Quantize kQuantize = kFormat;
};
template <class Format>
inline constexpr bool kIsEncoded = requires { Format::kQuantize; };

/// The sum of 16 channels of a lane.
struct UnitSum {
  float halves[2][Bfloat16Vector::kCount] = {};

  /// Adds bfloat16 values.
  __device__ void add(const uint4& low, const uint4& high) {
    add_vector<Bfloat16Vector>(halves[0], low);
    add_vector<Bfloat16Vector>(halves[1], high);
  }
  __device__ uint4 low() const { return Bfloat16Vector::narrow(halves[0]); }
  __device__ uint4 high() const { return Bfloat16Vector::narrow(halves[1]); }

  /// Adds codes with their scale: the bits of a float32, or UE8M0.
  template <Quantize kQuantize>
  __device__ void add_codes(const uint4& codes, std::uint32_t scale_bits) {
    const float scale = kQuantize == Quantize::fp8
                            ? __uint_as_float(scale_bits)
                            : numeric::decode_ue8m0(static_cast<std::uint8_t>(scale_bits));
    const std::uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
    for (std::uint32_t w = 0; w < 4; ++w)
      decode_e4m3(words[w], scale, [&](std::uint32_t i, float value) {
        float& sum = halves[w / 2][w % 2 * 4 + i];
        sum = numeric::add(sum, value);
      });
  }

  /// Adds bfloat16 values as they arrive after their way in the encoding. The whole warp calls; its
  /// lanes have neighbouring units.
  template <Quantize kQuantize>
  __device__ void add_passed(const uint4& low, const uint4& high) {
    std::uint32_t largest = largest_magnitude(low, high);
#pragma unroll
    for (std::uint32_t distance = kScaleLanes<kQuantize> / 2; distance > 0; distance /= 2)
      largest = max(largest, __shfl_xor_sync(~0u, largest, distance));
    uint4 codes = low;
    const std::uint32_t scale = encode_part<kQuantize>(codes, high, largest, GlobalScale(1.0F));
    add_codes<kQuantize>(codes, scale);
  }
};

/// Codes and scale of a lane's unit of an encoded row, on their way.
template <Quantize kQuantize>
struct EncodedUnit {
  uint4 codes;
  std::uint32_t word;  ///< of the scales of 128 channels: a float32, or four in UE8M0

  /// `load` reads a word or a vector.
  template <typename Load>
  __device__ void load(const std::byte* row, std::uint32_t hidden, std::uint32_t unit,
                       const Load& load) {
    constexpr std::uint32_t kUnitsOfWord = 128 / kUnit;
    codes = load(reinterpret_cast<const uint4*>(row) + unit);
    word = load(reinterpret_cast<const std::uint32_t*>(row + hidden) + unit / kUnitsOfWord);
  }
  __device__ void add_to(UnitSum& sum, std::uint32_t unit) const {
    sum.add_codes<kQuantize>(codes, kQuantize == Quantize::fp8
                                        ? word
                                        : word >> unit / kScaleLanes<kQuantize> % 4 * 8 & 0xffu);
  }
};

}  // namespace
}  // namespace shoal::ep::cuda
