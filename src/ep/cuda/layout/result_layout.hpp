// SPDX-License-Identifier: Apache-2.0
// result_layout.hpp: where the arrays of a low-latency result lie, and how much memory results
// take. Pure.
#pragma once

#include <algorithm>

#include "ep/plan/cursor.hpp"
#include "ep/plan/row_format.hpp"

namespace shoal::ep::detail {

/// Offsets of the arrays of a result: x and scales in memory that results take when they need it
/// (result_memory.hpp), the others in memory of the half of their dispatch.
struct ResultLayout {
  std::size_t x, scales, rows_end;
  std::size_t counts, source_token, layout, half_end;

  ResultLayout(const Shape& shape, Quantize quantize) {
    const std::size_t experts = shape.local_experts, rows = experts * shape.low_latency_rows();
    Cursor of_rows, of_half;
    x = of_rows.take(rows * RowFormat(quantize).row_bytes(shape.hidden));
    scales = of_rows.take(most_scale_bytes(quantize, shape));
    rows_end = align_up(of_rows.at, Cursor::kAlignment);
    counts = of_half.take(experts * sizeof(std::int32_t));
    source_token = of_half.take(rows * sizeof(std::int32_t));
    layout = of_half.take(experts * shape.ranks * sizeof(std::int64_t));
    half_end = align_up(of_half.at, Cursor::kAlignment);
  }
};

/// Bytes of the rows of a result: in bfloat16, and in the other encoding that takes most.
struct ResultSizes {
  std::size_t wide, narrow = 0;

  explicit ResultSizes(const Shape& shape) : wide(ResultLayout(shape, Quantize::none).rows_end) {
    for (const Quantize quantize : kQuantizations)
      if (quantize != Quantize::none)
        narrow = std::max(narrow, ResultLayout(shape, quantize).rows_end);
  }
  /// The memory that results have at first: for one in bfloat16, or two in other encodings.
  [[nodiscard]] std::size_t first() const { return std::max(wide, 2 * narrow); }
  /// The memory that is added when that is occupied, for one in any encoding.
  [[nodiscard]] std::size_t second() const { return std::max(wide, narrow); }
};

/// All memory of results that a group takes before one in bfloat16 is held while the next is made.
inline std::size_t first_result_bytes(const Shape& shape) {
  return ResultSizes(shape).first() + 2 * ResultLayout(shape, Quantize::none).half_end;
}

}  // namespace shoal::ep::detail
