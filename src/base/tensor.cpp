// SPDX-License-Identifier: Apache-2.0
// tensor.cpp: sizes, names and texts of tensors; host memory for them.
#include "shoal/tensor.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <new>

#include "base/check.hpp"

namespace shoal {

std::size_t size_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::none:
      return 0;
    case DataType::float8_e4m3:
    case DataType::int8:
    case DataType::uint8:
      return 1;
    case DataType::float16:
    case DataType::bfloat16:
      return 2;
    case DataType::float32:
    case DataType::int32:
      return 4;
    case DataType::int64:
    case DataType::float64:
      return 8;
  }
  return 0;
}

std::string_view name_of(DataType dtype) noexcept {
  switch (dtype) {
    case DataType::none:
      return "none";
    case DataType::float32:
      return "float32";
    case DataType::float16:
      return "float16";
    case DataType::bfloat16:
      return "bfloat16";
    case DataType::float8_e4m3:
      return "float8_e4m3";
    case DataType::int8:
      return "int8";
    case DataType::uint8:
      return "uint8";
    case DataType::int32:
      return "int32";
    case DataType::int64:
      return "int64";
    case DataType::float64:
      return "float64";
  }
  return "unknown";
}

TensorLayout::TensorLayout(DataType dtype_in, std::initializer_list<std::int64_t> shape_in)
    : TensorLayout(dtype_in, std::span(shape_in.begin(), shape_in.size())) {}

TensorLayout::TensorLayout(DataType dtype_in, std::span<const std::int64_t> shape_in)
    : dtype(dtype_in), rank(static_cast<int>(shape_in.size())) {
  require(shape_in.size() <= kMaxRank, Code::invalid_argument,
          "SHOAL-N107: a tensor of {} dimensions; at most {} are allowed", shape_in.size(),
          kMaxRank);
  int i = 0;
  for (std::int64_t extent : shape_in) {
    require(extent >= 0, Code::invalid_argument,
            "SHOAL-N107: dimension {} of a tensor is {}; it must not be negative", i, extent);
    shape[i++] = extent;
  }
  auto total = static_cast<std::int64_t>(size_of(dtype));
  bool fits = true;  // an extent of 0 counts as 1: strides are products of some extents
  for (const std::int64_t extent : shape_in)
    fits = fits && !__builtin_mul_overflow(total, std::max<std::int64_t>(extent, 1), &total);
  require(fits, Code::invalid_argument, "SHOAL-N107: the tensor {} has more than 2^63 - 1 bytes",
          [&] { return describe(); });
  std::int64_t stride = 1;
  for (i = rank - 1; i >= 0; --i) {
    strides[i] = stride;
    stride *= shape[i];
  }
}

std::int64_t TensorLayout::size() const noexcept {
  std::int64_t n = 1;
  for (int i = 0; i < rank; ++i) n *= shape[i];
  return n;
}

std::size_t TensorLayout::bytes() const noexcept {
  return static_cast<std::size_t>(size()) * size_of(dtype);
}

bool TensorLayout::contiguous() const noexcept {
  std::int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != stride) return false;
    stride *= shape[i];
  }
  return true;
}

std::string TensorLayout::describe() const {
  if (!defined()) return "undefined";
  return fmt::format("{} [{}]", name_of(dtype),
                     fmt::join(shape.begin(), shape.begin() + rank, ", "));
}

Tensor Tensor::empty(DataType dtype, std::initializer_list<std::int64_t> shape) {
  return empty(dtype, std::span(shape.begin(), shape.size()));
}

Tensor Tensor::empty(DataType dtype, std::span<const std::int64_t> shape) {
  TensorView view(nullptr, dtype, shape);
  const std::size_t bytes = view.bytes();
  void* memory = ::operator new(bytes == 0 ? 64 : bytes, std::align_val_t{64}, std::nothrow);
  require(
      memory != nullptr, Code::exhausted, "SHOAL-N108: no host memory for the tensor {}: {} bytes",
      [&] { return view.describe(); }, bytes);
  view.data = memory;
  return Tensor(view, std::shared_ptr<void>(
                          memory, [](void* p) { ::operator delete(p, std::align_val_t{64}); }));
}

}  // namespace shoal
