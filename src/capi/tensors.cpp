// SPDX-License-Identifier: Apache-2.0
// tensors.cpp: shoal_tensor to TensorView and back.
#include "capi/tensors.hpp"

#include <algorithm>

namespace shoal::capi {

namespace {

/// Checks everything but the memory. Returns the bytes of a contiguous tensor of this shape.
std::int64_t checked_bytes(const shoal_tensor& given, const char* call, const char* name) {
  require(given.dtype >= SHOAL_FLOAT32 && given.dtype <= SHOAL_FLOAT64, Code::invalid_argument,
          "SHOAL-N887: {}: {}.dtype is {}; allowed: {} (SHOAL_FLOAT32) to {} (SHOAL_FLOAT64)", call,
          name, given.dtype, static_cast<int>(SHOAL_FLOAT32), static_cast<int>(SHOAL_FLOAT64));
  require(given.rank >= 1 && given.rank <= TensorView::kMaxRank, Code::invalid_argument,
          "SHOAL-N887: {}: {}.rank is {}; allowed: 1 to {}", call, name, given.rank,
          TensorView::kMaxRank);
  auto bytes = static_cast<std::int64_t>(size_of(static_cast<DataType>(given.dtype)));
  bool fits = true, empty = false;
  for (int i = 0; i < given.rank; ++i) {
    require(given.shape[i] >= 0, Code::invalid_argument,
            "SHOAL-N887: {}: {}.shape[{}] is {}; it must not be negative", call, name, i,
            given.shape[i]);
    empty = empty || given.shape[i] == 0;
    // An extent of 0 counts as 1: strides are products of some extents.
    fits =
        fits && !__builtin_mul_overflow(bytes, std::max<std::int64_t>(given.shape[i], 1), &bytes);
  }
  require(fits, Code::invalid_argument, "SHOAL-N887: {}: {} has more than 2^63 - 1 bytes", call,
          name);
  return empty ? 0 : bytes;
}

}  // namespace

TensorView view_of(const shoal_tensor* tensor, const char* call, const char* name) {
  const shoal_tensor& given = required(tensor, call, name);
  const std::int64_t bytes = checked_bytes(given, call, name);
  require(given.data != nullptr || bytes == 0, Code::invalid_argument,
          "SHOAL-N887: {}: {}.data is NULL; a tensor of this shape has {} bytes", call, name,
          bytes);
  TensorView view;
  view.data = given.data;
  view.dtype = static_cast<DataType>(given.dtype);
  view.rank = given.rank;
  std::copy_n(given.shape, given.rank, view.shape.begin());
  std::copy_n(given.strides, given.rank, view.strides.begin());
  view.device = {enumeration(given.device, DeviceKind::cuda, call, "the device of a tensor"),
                 given.device_index};
  return view;
}

TensorView optional_view_of(const shoal_tensor* tensor, const char* call, const char* name) {
  return tensor == nullptr ? TensorView() : view_of(tensor, call, name);
}

shoal_tensor tensor_of(const TensorView& view) {
  shoal_tensor tensor = SHOAL_TENSOR_NONE;
  if (!view.defined()) return tensor;
  tensor.data = view.data;
  tensor.dtype = static_cast<std::int32_t>(view.dtype);
  tensor.rank = view.rank;
  std::copy_n(view.shape.begin(), view.rank, tensor.shape);
  std::copy_n(view.strides.begin(), view.rank, tensor.strides);
  tensor.device = static_cast<std::int32_t>(view.device.kind);
  tensor.device_index = view.device.index;
  return tensor;
}

}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_tensor_init(shoal_tensor* tensor, void* data, int32_t dtype, int32_t rank,
                               const int64_t* shape) {
  return guarded([&] {
    const char* call = "shoal_tensor_init";
    const std::int64_t* extents = &required(shape, call, "shape");
    shoal_tensor made = SHOAL_TENSOR_NONE;
    made.data = data;
    made.dtype = dtype;
    made.rank = rank;
    const int dimensions = std::clamp(rank, 0, shoal::TensorView::kMaxRank);
    std::copy_n(extents, dimensions, made.shape);
    checked_bytes(made, call, "tensor");
    std::int64_t stride = 1;
    for (int i = rank - 1; i >= 0; --i) {
      made.strides[i] = stride;
      stride *= made.shape[i];
    }
    required(tensor, call, "tensor") = made;
  });
}
