// SPDX-License-Identifier: Apache-2.0
#include "tensors.hpp"

#include "../arrays/arrays.hpp"
#include "../docs.hpp"
#include "shoal/world.hpp"

namespace shoal::python {
namespace {

nb::dlpack::device home_of(const Group& group) {
  const Device device = group.group.team().world().heap().device();
  const bool cuda = device.kind == DeviceKind::cuda;
  return {cuda ? nb::device::cuda::value : nb::device::cpu::value, cuda ? device.index : 0};
}

}  // namespace

PlainTensors::PlainTensors(const Group& group, nb::handle tensor_type)
    : on_gpu_(group.on_gpu),
      type_(nb::borrow(tensor_type)),
      exchange_(exchange_of(type())),
      home_(home_of(group)),
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
  launch.stream = stream == nullptr ? reinterpret_cast<void*>(kLegacyStream) : stream;
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

nb::object table_scalar(nb::handle tensor_type, nb::dict table, nb::handle entry) {
  struct Memory {
    std::int64_t number;
    nb::dict table;
  };
  static std::int64_t last = 0;  // the GIL is held
  const auto release = [](Memory* memory) {
    if (!nb::is_alive()) return;  // the interpreter has ended: its objects stay
    const nb::gil_scoped_acquire acquired;
    const nb::error_scope kept;
    const nb::object number = nb::int_(memory->number);
    if (PyDict_DelItem(memory->table.ptr(), number.ptr()) != 0) PyErr_Clear();
    delete memory;
  };
  const std::shared_ptr<Memory> memory(new Memory{++last, std::move(table)}, release);
  memory->table[nb::int_(memory->number)] = entry;
  Tensor tensor(TensorView(&memory->number, DataType::int64, {}), memory);
  nb::object made =
      exchange_object(reinterpret_cast<PyTypeObject*>(tensor_type.ptr()), std::move(tensor));
  return made.is_valid() ? made : nb::none();
}

nb::object table_entry(const PlainTensors& tensors, const nb::dict& table, nb::handle scalar) {
  const auto number = tensors.host_scalar(scalar);
  if (!number) return {};
  const nb::object key = nb::int_(*number);
  PyObject* const found = PyDict_GetItemWithError(table.ptr(), key.ptr());
  if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
  return nb::borrow(found);
}

void bind_tensors(nb::module_& module) {
  module.def(
      "table_scalar", &table_scalar, nb::arg("tensor_type"), nb::arg("table"), nb::arg("entry"),
      nb::sig("def table_scalar(tensor_type: type, table: dict, entry: object) -> typing.Any"),
      "An int64 scalar tensor on the host, the number under which `table` holds `entry` as long as "
      "its memory lives, for shoal.torch; None where the library has no exchange table of "
      "DLPack."_doc);
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
