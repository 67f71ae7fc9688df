// SPDX-License-Identifier: Apache-2.0
#include "call_tensors.hpp"

namespace shoal::python {
namespace {

Device device_from(nb::handle device) {
  const bool cuda = text_of_object(attribute(device, "type")) == "cuda";
  return {cuda ? DeviceKind::cuda : DeviceKind::host,
          cuda ? nb::cast<std::int32_t>(attribute(device, "index")) : 0};
}

}  // namespace

void expect(bool condition, std::string_view message) {
  if (condition) [[likely]]
    return;
  PyErr_SetString(PyExc_AssertionError, fmt::format("deep_ep: {}", message).c_str());
  throw nb::python_error();
}

nb::object attribute(nb::handle object, const char* name) {
  nb::object value = nb::steal(PyObject_GetAttrString(object.ptr(), name));
  if (!value.is_valid()) nb::raise_python_error();
  return value;
}

std::string text_of_object(nb::handle value) {
  return nb::cast<std::string>(nb::str(value));
}

std::int64_t value_of(nb::handle number) {
  int overflow = 0;
  const std::int64_t value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  if (value == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  return overflow != 0 ? 0 : value;
}

std::int64_t experts_of(const char* call, const char* name, nb::handle number) {
  constexpr std::int64_t kMostExperts = 1 << 16;
  const std::int64_t experts = value_of(number);
  if (experts <= 0 || experts > kMostExperts)
    native_assert(false, "{}: {} is {}; allowed: positive numbers up to {}", call, name,
                  text_of_object(number), kMostExperts);
  return experts;
}

CallTensors::CallTensors(const nb::dict& given)
    : device_(given["device"]),
      bool_(given["bool"]),
      int32_(given["int32"]),
      int64_(given["int64"]),
      float32_(given["float32"]),
      bfloat16_(given["bfloat16"]),
      float8_(given["float8"]),
      index_(given["index"]),
      current_stream_(given["current_stream"]),
      capturing_(given["capturing"]),
      require_tensor_(given["require_tensor"]),
      describe_(given["describe"]),
      as_rows_(given["as_rows"]),
      no_event_(given["no_event"]),
      begin_(given["begin"]),
      end_(given["end"]),
      profiler_(given["profiler"]),
      plain_(device_from(device_), nb::object(given["tensor_type"])) {}

nb::handle CallTensors::dtype(DataType of) const {
  switch (of) {
    case DataType::int32:
      return int32_;
    case DataType::int64:
      return int64_;
    case DataType::float32:
      return float32_;
    case DataType::float8_e4m3:
      return float8_;
    default:
      return bfloat16_;
  }
}

void CallTensors::check(const char* call, const char* name, nb::handle tensor, nb::handle dtype,
                        std::initializer_list<std::int64_t> shape) const {
  nb::list extents;
  for (const std::int64_t extent : shape)
    extents.append(extent < 0 ? nb::none() : nb::object(nb::int_(extent)));
  require_tensor_(call, name, tensor, nb::make_tuple(dtype), nb::tuple(extents), device_);
}

Argument CallTensors::take(const char* call, const char* name, nb::handle tensor, DataType dtype,
                           std::initializer_list<std::int64_t> shape) const {
  Argument argument;
  if (plain_.take(argument.view, tensor, dtype, shape)) return argument;
  check(call, name, tensor, this->dtype(dtype), shape);
  // A subclass of torch.Tensor, or a version of torch without the exchange table.
  argument.kept = input(as_rows_(tensor), name);
  argument.view = argument.kept.view;
  argument.view.dtype = dtype;
  return argument;
}

std::vector<Argument> CallTensors::take_biases(const char* call, nb::handle bias,
                                               std::initializer_list<std::int64_t> shape,
                                               std::vector<ConstTensorView>& views) const {
  constexpr std::size_t kMost = 2;
  const nb::tuple all =
      PyTuple_Check(bias.ptr()) ? nb::borrow<nb::tuple>(bias) : nb::make_tuple(bias);
  native_assert(all.size() <= kMost, "{}: bias has {} tensors; at most {} are allowed", call,
                all.size(), kMost);
  std::vector<Argument> kept;
  for (const nb::handle one : all) {
    if (one.is_none()) continue;
    kept.push_back(take(call, "bias", one, DataType::bfloat16, shape));
    views.push_back(kept.back().view);
  }
  return kept;
}

Rows CallTensors::take_rows(const char* call, nb::handle x) const {
  Rows rows{x, nb::handle(Py_None), {}, {}};
  if (PyTuple_Check(x.ptr())) {
    native_assert(PyTuple_GET_SIZE(x.ptr()) == 2,
                  "{}: x is a tuple of {}; allowed: a tensor, or (rows, scales)", call,
                  PyTuple_GET_SIZE(x.ptr()));
    rows.x = PyTuple_GET_ITEM(x.ptr(), 0);
    rows.scales = PyTuple_GET_ITEM(x.ptr(), 1);
  }
  const DataType dtype = rows.scaled() ? DataType::float8_e4m3 : DataType::bfloat16;
  rows.rows = take(call, "x", rows.x, dtype, {kAny, kAny});
  const std::int64_t bytes = rows.hidden() * static_cast<std::int64_t>(size_of(dtype));
  native_assert(bytes % 16 == 0, "{}: rows of x have {} bytes; allowed: multiples of 16", call,
                bytes);
  TensorView& scales = rows.scale_values.view;
  if (!rows.scaled() || plain_.take_scales(scales, rows.scales, rows.tokens())) return rows;
  rows.scale_values.kept = input(as_rows_(rows.scales), "scales");
  scales = rows.scale_values.kept.view;
  native_assert(scales.rank == 2 && scales.shape[0] == rows.tokens() &&
                    (scales.dtype == DataType::float32 || scales.dtype == DataType::int32),
                "{}: scales are {}; allowed: float32 or int32 [{}, *]", call, describe(rows.scales),
                rows.tokens());
  return rows;
}

void CallTensors::follow(ep::Launch& launch) const {
  if (plain_.usable() && plain_.follow(launch)) return;
  const nb::object stream = current_stream_();
  if (!stream.is_none()) launch.stream = reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(stream));
}

bool CallTensors::captured() const {
  return !capturing_.is_none() && nb::cast<bool>(nb::object(capturing_()));
}

bool CallTensors::is_plain(const Events& events) const {
  if (!events.previous.is_valid()) return true;
  return !is_true(events.previous) && !is_true(events.before_epilogue) &&
         !is_true(events.async_finish) && !is_true(events.on_comm_stream) &&
         (profiler_.is_none() || !is_true(attribute(profiler_, "_is_profiler_enabled")));
}

}  // namespace shoal::python
