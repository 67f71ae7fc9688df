// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/row_format.hpp"

namespace shoal::ep::detail {

TensorView rows_view(void* data, Quantize quantize, const Shape& shape) {
  const std::int64_t experts = shape.local_experts, rows = shape.low_latency_rows();
  return {data,
          code_dtype(quantize),
          {experts, rows, quantize == Quantize::nvfp4 ? shape.hidden / 2 : shape.hidden}};
}

TensorView scales_view(void* data, Quantize quantize, ScaleLayout layout, const Shape& shape) {
  const std::int64_t experts = shape.local_experts, rows = shape.low_latency_rows();
  const ScaleWords scales(quantize, layout, shape.hidden, rows);
  const std::int64_t words = scales.words;
  const bool bytes = has_byte_scales(quantize);
  if (scales.layout == ScaleLayout::columns) {
    TensorView view(data, bytes ? DataType::int32 : DataType::float32, {experts, rows, words});
    view.strides = {words * rows, 1, rows};
    return view;
  }
  if (!bytes) return {data, DataType::float32, {experts, rows, words}};
  const DataType dtype = scale_dtype(quantize);
  if (scales.layout == ScaleLayout::tiles) {
    const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    return {data, dtype, {experts, tiles, words, kTileRows * 4}};
  }
  TensorView view(data, dtype, {experts, rows, RowFormat(quantize).groups(shape.hidden)});
  view.strides = {rows * words * 4, words * 4, 1};
  return view;
}

}  // namespace shoal::ep::detail
