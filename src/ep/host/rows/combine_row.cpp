// SPDX-License-Identifier: Apache-2.0
#include "ep/host/rows/combine_row.hpp"

#include <algorithm>

#include "ep/host/rows/row_ops.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::ep::host {

using detail::CombineEncoding;

void encode_combine_row(CombineEncoding encoding, std::span<const std::uint16_t> row,
                        std::byte* target) {
  const auto* const values = reinterpret_cast<const numeric::Bf16*>(row.data());
  auto* const codes = reinterpret_cast<std::uint8_t*>(target);
  std::byte* const scales = target + row.size();
  if (encoding == CombineEncoding::log_fmt)
    numeric::logfmt_encode_row({values, row.size()}, target);
  else
    encode_row(encoding == CombineEncoding::fp8 ? Quantize::fp8 : Quantize::mxfp8, 1, codes, scales,
               row.data(), row.size());
}

void decode_combine_row(CombineEncoding encoding, const std::byte* row, std::span<float> values) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(row);
  const std::span codes(bytes, values.size());
  const std::uint8_t* const scales = bytes + values.size();
  switch (encoding) {
    case CombineEncoding::fp8:
      return numeric::dequantize_row(
          codes, {reinterpret_cast<const float*>(scales), numeric::group_count(values.size())},
          values);
    case CombineEncoding::mxfp8:
      return numeric::dequantize_mxfp8_row(codes, {scales, values.size() / numeric::kMxGroup},
                                           values);
    default:
      numeric::logfmt_decode_row(row, values);
  }
}

void EncodedSums::sum(std::uint16_t* target, std::span<const void* const> rows, const void* bias0,
                      const void* bias1) {
  std::ranges::fill(sum_, 0.0F);
  for (const void* bias : {bias0, bias1}) {
    const auto* const values = static_cast<const numeric::Bf16*>(bias);
    for (std::size_t c = 0; bias != nullptr && c < sum_.size(); ++c)
      sum_[c] += numeric::to_float(values[c]);
  }
  for (const void* row : rows) {
    decode_combine_row(encoding_, static_cast<const std::byte*>(row), row_);
    for (std::size_t c = 0; c < sum_.size(); ++c) sum_[c] += row_[c];
  }
  for (std::size_t c = 0; c < sum_.size(); ++c) target[c] = numeric::to_bf16(sum_[c]).bits;
}

}  // namespace shoal::ep::host
