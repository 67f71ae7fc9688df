// SPDX-License-Identifier: Apache-2.0
// aligned_rows.hpp: rows of the caller at addresses that a backend does not take.
//
// Backends move rows in units of 16 bytes. GPUs require that alignment of the caller; host arrays,
// such as static arrays of C, may lie anywhere and are copied where they do not have it.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "shoal/tensor.hpp"

namespace shoal::ep::detail {

/// Bytes. Tensor::empty has at least this alignment.
inline constexpr std::uintptr_t kRowAlignment = 16;

inline bool rows_aligned(const ConstTensorView& rows) noexcept {
  return reinterpret_cast<std::uintptr_t>(rows.data) % kRowAlignment == 0;
}

/// A Tensor, of other memory or of none of its own, that is only read.
inline Tensor for_reading(const ConstTensorView& view) {
  return Tensor(TensorView(const_cast<void*>(view.data), view), nullptr);
}

/// `rows` themselves where they are aligned, else undefined host memory of that size.
inline Tensor room_for_rows(const TensorView& rows) {
  if (rows_aligned(rows)) return Tensor(rows, nullptr);
  const Tensor memory = Tensor::empty(DataType::uint8, {static_cast<std::int64_t>(rows.bytes())});
  return Tensor(TensorView(memory.data, rows), memory.owner);
}

/// Contiguous `rows` themselves where they are aligned, else a copy. For reading.
inline Tensor aligned_rows(const ConstTensorView& rows) {
  Tensor result = room_for_rows(for_reading(rows));
  if (result.data != rows.data && rows.bytes() > 0)
    std::memcpy(result.data, rows.data, rows.bytes());
  return result;
}

/// Copies `result`, which lies in `room`, to the memory `out` that room_for_rows stands in for.
inline void move_to_caller(Tensor& result, const Tensor& room, const TensorView& out) {
  if (room.data == out.data) return;
  if (out.bytes() > 0) std::memcpy(out.data, room.data, out.bytes());
  result = Tensor(out, nullptr);
}

}  // namespace shoal::ep::detail
