// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include "../arrays/arrays.hpp"

namespace shoal::python {
namespace {

nb::dlpack::device home_of(Device device) {
  const bool cuda = device.kind == DeviceKind::cuda;
  return {cuda ? nb::device::cuda::value : nb::device::cpu::value, cuda ? device.index : 0};
}

}  // namespace

PlainTensors::PlainTensors(Device device, nb::handle tensor_type)
    : on_gpu_(device.kind == DeviceKind::cuda),
      type_(nb::borrow(tensor_type)),
      exchange_(exchange_of(type())),
      home_(home_of(device)),
      usable_(exchange_.view != nullptr && (!on_gpu_ || exchange_.current_stream != nullptr)) {}

bool PlainTensors::look(nb::dlpack::dltensor& found, nb::handle array) const {
  if (Py_TYPE(array.ptr()) != type()) return false;
  if (exchange_.view(array.ptr(), &found) != 0) {
    PyErr_Clear();
    return false;
  }
  return found.device.device_type == home_.device_type && found.device.device_id == home_.device_id;
}

bool PlainTensors::take(TensorView& view, nb::handle array, DataType dtype,
                        std::initializer_list<std::int64_t> shape) const {
  nb::dlpack::dltensor from;
  return look(from, array) && plain_view(view, from, dtype, shape);
}

bool PlainTensors::take_scales(TensorView& view, nb::handle array, std::int64_t rows) const {
  nb::dlpack::dltensor from;
  if (!look(from, array) || from.ndim != 2 || from.shape[0] != rows) return false;
  for (const DataType dtype : {DataType::float32, DataType::int32}) {
    if (from.dtype != dlpack_type(dtype)) continue;
    view.data = static_cast<std::byte*>(from.data) + from.byte_offset;
    view.dtype = dtype;
    view.rank = 2;
    for (int i = 0; i < 2; ++i) {
      view.shape[i] = from.shape[i];
      view.strides[i] = from.strides != nullptr ? from.strides[i] : i == 0 ? from.shape[1] : 1;
    }
    view.device = {on_gpu_ ? DeviceKind::cuda : DeviceKind::host, on_gpu_ ? home_.device_id : 0};
    return true;
  }
  return false;
}

bool PlainTensors::follow(ep::Launch& launch) const {
  if (!on_gpu_) return true;
  void* stream = nullptr;
  if (exchange_.current_stream(home_.device_type, home_.device_id, &stream) != 0) {
    PyErr_Clear();
    return false;
  }
  launch.stream =
      stream == nullptr ? reinterpret_cast<Stream>(kLegacyStream) : static_cast<Stream>(stream);
  return true;
}

std::optional<std::int64_t> PlainTensors::host_scalar(nb::handle array) const {
  nb::dlpack::dltensor from;
  if (Py_TYPE(array.ptr()) != type()) return {};
  if (exchange_.view(array.ptr(), &from) != 0) {
    PyErr_Clear();
    return {};
  }
  if (from.ndim != 0 || from.device.device_type != nb::device::cpu::value ||
      from.dtype != dlpack_type(DataType::int64))
    return {};
  return *reinterpret_cast<const std::int64_t*>(static_cast<const std::byte*>(from.data) +
                                                from.byte_offset);
}

nb::object TensorMaker::make(std::int64_t rows, std::int64_t columns, nb::handle dtype) {
  constexpr std::size_t kKept = 16;
  const Arguments* found = nullptr;
  for (const Arguments& one : recent_)
    if (one.rows == rows && one.columns == columns && one.dtype == dtype.ptr()) found = &one;
  if (found == nullptr) {
    const nb::tuple shape = columns < 0 ? nb::make_tuple(rows) : nb::make_tuple(rows, columns);
    const nb::tuple strides = columns < 0 ? nb::make_tuple(1) : nb::make_tuple(columns, 1);
    Arguments made{rows, columns, dtype.ptr(), nb::make_tuple(shape, strides, dtype)};
    if (recent_.size() < kKept)
      found = &recent_.emplace_back(std::move(made));
    else
      found = &(recent_[oldest_++ % kKept] = std::move(made));
  }
  // A copy, because the allocator may run a finalizer that comes back here.
  const nb::object arguments = found->tuple;
  const nb::object tensor = nb::steal(PyObject_Call(function_.ptr(), arguments.ptr(), nullptr));
  if (!tensor.is_valid()) nb::raise_python_error();
  return tensor;
}

}  // namespace shoal::python
