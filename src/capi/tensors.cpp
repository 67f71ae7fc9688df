// SPDX-License-Identifier: Apache-2.0
#include "capi/tensors.hpp"

#include <algorithm>

namespace shoal::capi {

TensorView view_of(const shoal_tensor* tensor, const char* call, const char* name) {
  const shoal_tensor& given = required(tensor, call, name);
  require(given.dtype >= SHOAL_FLOAT32 && given.dtype <= SHOAL_FLOAT64, Code::invalid_argument,
          "{}: {}.dtype is {}; allowed: {} (SHOAL_FLOAT32) to {} (SHOAL_FLOAT64)", call, name,
          given.dtype, static_cast<int>(SHOAL_FLOAT32), static_cast<int>(SHOAL_FLOAT64));
  require(given.rank >= 1 && given.rank <= TensorView::kMaxRank, Code::invalid_argument,
          "{}: {}.rank is {}; allowed: 1 to {}", call, name, given.rank, TensorView::kMaxRank);
  TensorView view;
  view.data = given.data;
  view.dtype = static_cast<DataType>(given.dtype);
  view.rank = given.rank;
  for (int i = 0; i < given.rank; ++i) {
    require(given.shape[i] >= 0, Code::invalid_argument,
            "{}: {}.shape[{}] is {}; it must not be negative", call, name, i, given.shape[i]);
    view.shape[i] = given.shape[i];
    view.strides[i] = given.strides[i];
  }
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

using shoal::capi::guarded;

shoal_status shoal_tensor_init(shoal_tensor* tensor, void* data, int32_t dtype, int32_t rank,
                               const int64_t* shape) {
  return guarded([&] {
    shoal_tensor made = SHOAL_TENSOR_NONE;
    made.data = data;
    made.dtype = dtype;
    made.rank = rank;
    shoal::capi::required(shape, "shoal_tensor_init", "shape");
    std::int64_t stride = 1;
    for (std::int32_t i = std::min(rank, 4) - 1; i >= 0; --i) {
      made.shape[i] = shape[i];
      made.strides[i] = stride;
      stride *= shape[i];
    }
    shoal::capi::view_of(&made, "shoal_tensor_init", "tensor");
    shoal::capi::required(tensor, "shoal_tensor_init", "tensor") = made;
  });
}
