// SPDX-License-Identifier: Apache-2.0
#include "arrays.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/typing.h>

#include <array>

#include "../arguments.hpp"
#include "../check.hpp"
#include "../docs.hpp"
#include "exchange.hpp"
#include "streams.hpp"

namespace shoal::python {
namespace {

constexpr std::uint8_t kFloat8Code = 10;  // kDLFloat8_e4m3fn of DLPack 1.1

}  // namespace

nb::dlpack::dtype dlpack_type(DataType dtype) {
  using Code = nb::dlpack::dtype_code;
  const auto bits = static_cast<std::uint8_t>(8 * size_of(dtype));
  switch (dtype) {
    case DataType::int8:
    case DataType::int32:
    case DataType::int64:
      return {static_cast<std::uint8_t>(Code::Int), bits, 1};
    case DataType::uint8:
      return {static_cast<std::uint8_t>(Code::UInt), bits, 1};
    case DataType::bfloat16:
      return {static_cast<std::uint8_t>(Code::Bfloat), bits, 1};
    case DataType::float8_e4m3:
      return {kFloat8Code, bits, 1};
    default:
      return {static_cast<std::uint8_t>(Code::Float), bits, 1};
  }
}

namespace {

constexpr std::array kTypes = {DataType::float32,     DataType::float16, DataType::bfloat16,
                               DataType::float8_e4m3, DataType::int8,    DataType::uint8,
                               DataType::int32,       DataType::int64,   DataType::float64};

std::optional<DataType> from_dlpack(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return std::nullopt;
  const auto is = [&](Code code, int bits) {
    return type.code == static_cast<std::uint8_t>(code) && type.bits == bits;
  };
  // Types of low-latency calls come first.
  if (is(Code::Bfloat, 16)) return DataType::bfloat16;
  if (is(Code::Int, 64)) return DataType::int64;
  if (is(Code::Float, 32)) return DataType::float32;
  if (type.code == static_cast<std::uint8_t>(Code::Bool)) return DataType::uint8;
  for (const DataType dtype : kTypes)
    if (dlpack_type(dtype) == type) return dtype;
  return std::nullopt;
}

/// True if it is an Array and of no derived class; faster than isinstance.
bool is_plain_array(nb::handle array) {
  static const PyObject* const type = nb::type<Array>().ptr();
  return reinterpret_cast<PyObject*>(Py_TYPE(array.ptr())) == type;
}

/// The NumPy type of an element type; an unsigned integer of its size where NumPy has none.
nb::dlpack::dtype to_numpy(DataType dtype) {
  const auto unsigned_code = static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt);
  if (dtype == DataType::bfloat16) return {unsigned_code, 16, 1};
  if (dtype == DataType::float8_e4m3) return {unsigned_code, 8, 1};
  return dlpack_type(dtype);
}

/// "uint16", or the number of a kind that NumPy has no name for.
std::string describe(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  for (const auto& [code, name] :
       {std::pair{Code::Int, "int"}, std::pair{Code::UInt, "uint"}, std::pair{Code::Float, "float"},
        std::pair{Code::Complex, "complex"}})
    if (type.code == static_cast<std::uint8_t>(code) && type.lanes == 1)
      return fmt::format("{}{}", name, type.bits);
  return fmt::format("DLPack type code {} of {} bits", type.code, type.bits);
}

/// Advice on how to name the type of integers that hold the bits of another type.
std::string advice(nb::dlpack::dtype type) {
  if (type.code != static_cast<std::uint8_t>(nb::dlpack::dtype_code::UInt) || type.bits != 16)
    return "";
  return "; bits of bfloat16 are named by array.view(ml_dtypes.bfloat16), or by dtype=\"bfloat16\" "
         "in calls that have it";
}

/// Views a NumPy array of an ml_dtypes type, which exports no DLPack, as integers. Returns the name
/// of the type; nullopt for other arrays.
std::optional<DataType> take_ml_dtype(nb::object& array) {
  if (!nb::hasattr(array, "dtype") || !nb::hasattr(array, "view") ||
      !nb::hasattr(array, "__array_interface__"))
    return {};
  const std::string name = nb::cast<std::string>(nb::str(nb::object(array.attr("dtype"))));
  const bool narrow = name == "float8_e4m3fn";
  if (name != "bfloat16" && !narrow) return {};
  array = array.attr("view")(narrow ? "uint8" : "uint16");
  return narrow ? DataType::float8_e4m3 : DataType::bfloat16;
}

/// The name of what dtype= gives: a str, or a dtype of torch or NumPy; nullopt for other objects.
/// Other libraries call Shoal's float8_e4m3 float8_e4m3fn; ml_dtypes has another type of the first
/// name.
std::optional<std::string> dtype_name(nb::handle given) {
  const bool named = nb::isinstance<nb::str>(given);
  std::string name = nb::cast<std::string>(nb::str(given));
  if (name.starts_with("torch.")) {
    name.erase(0, std::size("torch.") - 1);
  } else if (!named) {
    if (given.is_none()) return {};
    try {
      name = nb::cast<std::string>(
          nb::object(nb::module_::import_("numpy").attr("dtype")(given).attr("name")));
    } catch (const nb::python_error&) {
      return {};
    }
    if (name == "float8_e4m3") return "float8_e4m3 of ml_dtypes";
  }
  return name == "float8_e4m3fn" ? "float8_e4m3" : name;
}

void make_contiguous(TensorView& view) {
  std::int64_t stride = 1;
  for (int i = view.rank - 1; i >= 0; --i) {
    view.strides[i] = stride;
    stride *= view.shape[i];
  }
}

template <typename Framework>
nb::object export_view(const Array& self, nb::handle owner, nb::dlpack::dtype type) {
  const TensorView& view = self.tensor;
  std::array<std::size_t, TensorView::kMaxRank> shape{};
  for (int i = 0; i < view.rank; ++i) shape[i] = static_cast<std::size_t>(view.shape[i]);
  const bool cuda = view.device.kind == DeviceKind::cuda;
  nb::ndarray<Framework> array(
      view.data, static_cast<std::size_t>(view.rank), shape.data(), owner, view.strides.data(),
      type, cuda ? nb::device::cuda::value : nb::device::cpu::value, cuda ? view.device.index : 0);
  return nb::cast(std::move(array), nb::rv_policy::reference);
}

/// The type that dtype= names. Throws Error{invalid_argument} unless its elements have `bits` bits.
DataType named_type(const char* what, DataType dtype, std::size_t bits) {
  require(size_of(dtype) * 8 == bits, Code::invalid_argument,
          "{}: dtype=\"{}\" has {} bits, the array has {}", what, name_of(dtype),
          8 * size_of(dtype), bits);
  return dtype;
}

TensorView to_view(const nb::dlpack::dltensor& from, const char* what,
                   std::optional<DataType> dtype) {
  require(from.ndim <= TensorView::kMaxRank, Code::invalid_argument,
          "{} has {} dimensions; allowed: up to {}", what, from.ndim, TensorView::kMaxRank);
  const auto known = dtype ? named_type(what, *dtype, from.dtype.bits) : from_dlpack(from.dtype);
  if (!known)
    fail(Code::invalid_argument, "{} has elements of {}, which Shoal does not have{}", what,
         describe(from.dtype), advice(from.dtype));
  TensorView view;
  view.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  view.dtype = *known;
  view.rank = from.ndim;
  for (int i = 0; i < view.rank; ++i) view.shape[i] = from.shape[i];
  if (from.strides == nullptr || view.size() == 0) {  // strides without elements are arbitrary
    make_contiguous(view);
  } else {
    for (int i = 0; i < view.rank; ++i) view.strides[i] = from.strides[i];
  }
  const std::int32_t kind = from.device.device_type;
  const bool host = kind == nb::device::cpu::value || kind == nb::device::cuda_host::value;
  require(host || kind == nb::device::cuda::value, Code::invalid_argument,
          "{} lies on a device of DLPack type {}; allowed: CPU and CUDA", what, kind);
  view.device = {host ? DeviceKind::host : DeviceKind::cuda, host ? 0 : from.device.device_id};
  return view;
}

nb::object to_capsule(nb::handle_t<Array> self, const nb::kwargs& options) {
  const auto& array = nb::cast<const Array&>(self);
  if (array.tensor.device.kind == DeviceKind::cuda && array.stream != kReady) {
    const nb::object consumer =
        options.contains("stream") ? nb::borrow(options["stream"]) : nb::none();
    order_behind(consumer, array.stream, array.tensor.device.index);
  }
  nb::dict rest;
  for (const auto& [key, value] : options)
    if (nb::cast<std::string>(key) != "stream") rest[key] = value;
  return export_view<nb::array_api>(array, self, dlpack_type(array.tensor.dtype))
      .attr("__dlpack__")(**rest);
}

nb::object to_numpy_array(nb::handle_t<Array> self) {
  const auto& array = nb::cast<const Array&>(self);
  require(
      array.tensor.device.kind == DeviceKind::host, Code::invalid_argument,
      "numpy(): the array lies on cuda:{}, which NumPy cannot read; use torch.from_dlpack(array)",
      array.tensor.device.index);
  return export_view<nb::numpy>(array, self, to_numpy(array.tensor.dtype));
}

nb::object array_protocol(nb::handle self, nb::handle dtype, nb::handle copy) {
  return as_numpy(numpy_values(self, "__array__"), dtype, copy);
}

nb::tuple to_tuple(const std::array<std::int64_t, TensorView::kMaxRank>& values, int count) {
  nb::list list;
  for (int i = 0; i < count; ++i) list.append(values[i]);
  return nb::tuple(list);
}

std::string name_of(Device device) {
  return device.kind == DeviceKind::cuda ? fmt::format("cuda:{}", device.index) : "cpu";
}

std::string device_of(const Array& array) {
  return name_of(array.tensor.device);
}

}  // namespace

DataType dtype_from(std::string_view call, nb::handle given) {
  const auto name = dtype_name(given);
  std::string names;
  for (const DataType dtype : kTypes) {
    if (name && name_of(dtype) == *name) return dtype;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name_of(dtype));
  }
  fail(Code::invalid_argument,
       "{}: dtype \"{}\"; allowed: {}, and the dtypes of these names of NumPy, torch, JAX and "
       "ml_dtypes",
       call, name ? *name : shown(given), names);
}

std::optional<DataType> optional_dtype(std::string_view call, nb::handle given) {
  if (given.is_none()) return std::nullopt;
  return dtype_from(call, given);
}

void refuse_gradient(std::string_view call, std::string_view name, nb::handle array,
                     const char* instead) {
  if (is_plain_array(array) || !exchange_of(Py_TYPE(array.ptr())).has_gradients) return;
  static PyObject* const attribute = PyUnicode_InternFromString("requires_grad");
  const nb::object needed = nb::steal(PyObject_GetAttr(array.ptr(), attribute));
  if (!needed.is_valid()) nb::raise_python_error();
  if (!needed.is(Py_True)) return;
  const nb::object torch = nb::module_::import_("torch");
  if (!nb::cast<bool>(torch.attr("is_grad_enabled")())) return;
  fail(
      Code::invalid_argument,
      "{}: {} requires a gradient, which this call would lose; {}pass {}.detach(), or call it under "
      "torch.no_grad()",
      call, name, instead == nullptr ? "" : fmt::format("use {}, or ", instead), name);
}

namespace {

/// NumPy's view of an array on the host; an invalid object where it needs ml_dtypes, which is not
/// installed.
nb::object values_if_known(nb::handle self) {
  const auto& array = nb::cast<const Array&>(self);
  const DataType dtype = array.tensor.dtype;
  nb::object view = export_view<nb::numpy>(array, self, to_numpy(dtype));
  if (dtype != DataType::bfloat16 && dtype != DataType::float8_e4m3) return view;
  try {
    const nb::module_ types = nb::module_::import_("ml_dtypes");
    return view.attr("view")(
        types.attr(dtype == DataType::bfloat16 ? "bfloat16" : "float8_e4m3fn"));
  } catch (const nb::python_error& error) {
    if (!error.matches(PyExc_ImportError)) throw;
    return {};
  }
}

}  // namespace

nb::object numpy_values(nb::handle self, const char* call) {
  const auto& array = nb::cast<const Array&>(self);
  require(array.tensor.device.kind == DeviceKind::host, Code::invalid_argument,
          "{}: the array lies on cuda:{}, which NumPy cannot read; use torch.from_dlpack(array)",
          call, array.tensor.device.index);
  nb::object values = values_if_known(self);
  require(
      values.is_valid(), Code::unsupported,
      "{}: NumPy has no {}; install ml_dtypes, use torch.from_dlpack(array), or take the bits by "
      "array.numpy()",
      call, name_of(array.tensor.dtype));
  return values;
}

nb::object numpy_or_bits(nb::handle self) {
  nb::object values = values_if_known(self);
  if (values.is_valid()) return values;
  const auto& array = nb::cast<const Array&>(self);
  return export_view<nb::numpy>(array, self, to_numpy(array.tensor.dtype));
}

nb::object as_numpy(const nb::object& values, nb::handle dtype, nb::handle copy) {
  const bool same = dtype.is_none() ||
                    nb::module_::import_("numpy").attr("dtype")(dtype).equal(values.attr("dtype"));
  const bool wanted = !copy.is_none() && nb::cast<bool>(copy);
  if (same) return wanted ? nb::object(values.attr("copy")()) : values;
  if (!copy.is_none() && !wanted)
    throw nb::value_error("__array__: copy=False, but another dtype needs a copy");
  return values.attr("astype")(dtype);
}

bool truth_of(nb::handle array, const char* type) {
  const std::int64_t elements = nb::cast<const Array&>(array).tensor.size();
  if (elements != 1)
    throw nb::value_error(
        fmt::format("the truth value of a {} of {} elements is ambiguous; test `is None`, len(), "
                    "or its values by numpy.any or numpy.all",
                    type, elements)
            .c_str());
  const int truth = PyObject_IsTrue(numpy_values(array, "__bool__").ptr());
  if (truth < 0) nb::raise_python_error();
  return truth != 0;
}

std::string summary_of(const TensorView& view) {
  return fmt::format("{} on {}", view.describe(), name_of(view.device));
}

Input input(nb::handle array, const char* what, std::optional<DataType> dtype) {
  Input result{{}, nb::borrow(array), {}};
  std::optional<nb::dlpack::dltensor> exchanged;
  const Array* known = is_plain_array(array) ? nb::inst_ptr<Array>(array) : nullptr;
  if (known == nullptr) exchanged = exchange_view(array);
  if (known == nullptr && !exchanged && nb::isinstance<Array>(array))
    known = &nb::cast<const Array&>(array);
  if (known != nullptr) {
    result.view = known->tensor;
    if (result.view.device.kind == DeviceKind::cuda) result.stream = known->stream;
    if (dtype) result.view.dtype = named_type(what, *dtype, 8 * size_of(result.view.dtype));
  } else if (exchanged) {
    result.view = to_view(*exchanged, what, dtype);
    if (result.view.device.kind == DeviceKind::cuda)
      result.stream = exchange_stream(array, *exchanged).value_or(kReady);
  } else {
    const std::optional<DataType> own = take_ml_dtype(result.array), named = dtype ? dtype : own;
    if (!nb::try_cast(result.array, result.exported))
      fail(Code::invalid_argument,
           "{} is a {}; allowed: arrays with __dlpack__ (torch, CuPy, JAX, shoal.Array) and NumPy "
           "arrays",
           what, nb::cast<std::string>(array.type().attr("__name__")));
    const auto& from = result.exported;
    result.view = to_view({.data = const_cast<void*>(from.data()),
                           .device = {from.device_type(), from.device_id()},
                           .ndim = static_cast<std::int32_t>(from.ndim()),
                           .dtype = from.dtype(),
                           .shape = const_cast<std::int64_t*>(from.shape_ptr()),
                           .strides = const_cast<std::int64_t*>(from.stride_ptr())},
                          what, named);
  }
  return result;
}

Input writable_input(nb::handle array, const char* what, std::optional<DataType> dtype) {
  if (array.is_none()) return {};
  Input result = input(array, what, dtype);
  nb::ndarray<> writable;
  if (result.exported.is_valid())  // torch tensors and Arrays are never read-only
    require(nb::try_cast(result.array, writable), Code::invalid_argument, "{} is read-only", what);
  return result;
}

Input optional_input(nb::handle array, const char* what, std::optional<DataType> dtype) {
  return array.is_none() ? Input{} : input(array, what, dtype);
}

bool plain_view(TensorView& view, const nb::dlpack::dltensor& from, DataType dtype,
                std::initializer_list<std::int64_t> shape) {
  if (from.ndim != static_cast<std::int32_t>(shape.size()) || from.dtype != dlpack_type(dtype))
    return false;
  view.data = static_cast<std::byte*>(from.data) + from.byte_offset;
  view.dtype = dtype;
  view.rank = from.ndim;
  for (int i = 0; i < view.rank; ++i) {
    view.shape[i] = from.shape[i];
    if (shape.begin()[i] >= 0 && view.shape[i] != shape.begin()[i]) return false;
  }
  make_contiguous(view);
  for (int i = 0; from.strides != nullptr && view.size() != 0 && i < view.rank; ++i)
    if (view.shape[i] != 1 && from.strides[i] != view.strides[i]) return false;
  const bool cuda = from.device.device_type == nb::device::cuda::value;
  view.device = {cuda ? DeviceKind::cuda : DeviceKind::host, cuda ? from.device.device_id : 0};
  return true;
}

nb::object output(Tensor tensor, std::uintptr_t stream) {
  return tensor.defined() ? nb::cast(Array{std::move(tensor), stream}) : nb::none();
}

namespace {

void bind_fields(nb::class_<Array>& array) {
  array
      .def_prop_ro(
          "shape", [](const Array& self) { return to_tuple(self.tensor.shape, self.tensor.rank); },
          nb::sig("def shape(self) -> tuple[int, ...]"), "Elements along each dimension."_doc)
      .def_prop_ro(
          "strides",
          [](const Array& self) { return to_tuple(self.tensor.strides, self.tensor.rank); },
          nb::sig("def strides(self) -> tuple[int, ...]"),
          "Distance between neighbours along each dimension, in elements."_doc)
      .def_prop_ro(
          "dtype", [](const Array& self) { return std::string(name_of(self.tensor.dtype)); },
          "float32, float16, bfloat16, float8_e4m3, float64, int8, uint8, int32 or int64."_doc)
      .def_prop_ro("device", &device_of, "\"cpu\" or \"cuda:N\"."_doc)
      .def_prop_ro(
          "nbytes", [](const Array& self) { return self.tensor.bytes(); },
          "Bytes of all elements."_doc)
      .def_prop_ro(
          "data_ptr",
          [](const Array& self) { return reinterpret_cast<std::uintptr_t>(self.tensor.data); },
          "Address of the first element."_doc)
      .def("__len__",
           [](const Array& self) {
             if (self.tensor.rank == 0)
               throw nb::type_error("len() of an array without dimensions");
             return self.tensor.shape[0];
           })
      .def("__bool__", [](nb::handle_t<Array> self) { return truth_of(self, "shoal.Array"); })
      .def("__repr__", [](const Array& self) {
        return fmt::format("shoal.Array({}, {})", self.tensor.describe(), device_of(self));
      });
}

void bind_protocols(nb::class_<Array>& array) {
  array
      .def("__array__", &array_protocol, nb::arg("dtype") = nb::none(),
           nb::arg("copy") = nb::none(),
           nb::sig(
               "def __array__(self, dtype: shoal.typing.DType | None = None, copy: bool | None = "
               "None) -> numpy.ndarray"))
      .def(
          "__getitem__",
          [](nb::handle_t<Array> self, nb::handle key) {
            return nb::object(numpy_values(self, "__getitem__")[key]);
          },
          nb::arg("key"), nb::sig("def __getitem__(self, key: object, /) -> typing.Any"))
      .def(
          "__setitem__",
          [](nb::handle_t<Array> self, nb::handle key, nb::handle value) {
            numpy_values(self, "__setitem__")[key] = value;
          },
          nb::arg("key"), nb::arg("value"),
          nb::sig("def __setitem__(self, key: object, value: object, /) -> None"))
      .def("__dlpack__", &to_capsule, "A DLPack capsule of the same memory."_doc)
      .def(
          "__dlpack_device__",
          [](const Array& self) {
            const bool cuda = self.tensor.device.kind == DeviceKind::cuda;
            return nb::make_tuple(cuda ? nb::device::cuda::value : nb::device::cpu::value,
                                  self.tensor.device.index);
          },
          nb::sig("def __dlpack_device__(self) -> tuple[int, int]"))
      .def("numpy", &to_numpy_array, nb::sig("def numpy(self) -> numpy.ndarray"),
           "The same memory as a NumPy array. bfloat16 becomes uint16 and float8_e4m3 uint8, "
           "because NumPy has neither. Raises InvalidArgumentError for arrays on a GPU."_doc);
}

}  // namespace

void bind_type_variables(nb::module_& module) {
  const nb::object array = nb::module_::import_("shoal.typing").attr("SupportsDLPack");
  module.attr("A") = nb::type_var("A", nb::arg("bound") = array);
  module.attr("A_co") = nb::type_var("A_co", nb::arg("bound") = array, nb::arg("covariant") = true);
  module.attr("R") = nb::type_var("R");
  module.attr("R_co") = nb::type_var("R_co", nb::arg("covariant") = true);
}

void bind_arrays(nb::module_& module) {
  nb::class_<Array> array(
      module, "Array",
      "An array of Shoal, in ordinary memory, in the symmetric heap or on a GPU, where no array "
      "library is named.\n\n"
      "Exports DLPack: other libraries access the same memory. On the host, numpy.asarray(array) "
      "and array[...] do so too; bfloat16 and float8_e4m3 need ml_dtypes. The memory stays valid "
      "while the array or anything created from it lives."_doc);
  bind_fields(array);
  bind_protocols(array);
}

}  // namespace shoal::python
