// SPDX-License-Identifier: Apache-2.0
#include "libraries.hpp"

#include <nanobind/stl/string.h>

#include <map>
#include <optional>

#include "../arguments.hpp"
#include "arrays.hpp"
#include "exchange.hpp"
#include "streams.hpp"

namespace shoal::python {

struct Library {
  enum class Kind { torch, numpy, other } kind;
  nb::object from_dlpack;               ///< invalid for NumPy
  PyTypeObject* tensor_type = nullptr;  ///< torch.Tensor
};

namespace {

struct Known {
  const char* module;  ///< has from_dlpack
  Library::Kind kind;
};

/// The module of the library to which a package belongs.
std::optional<Known> known_library(std::string_view package) {
  using Kind = Library::Kind;
  if (package == "torch") return Known{"torch", Kind::torch};
  if (package == "numpy" || package == "ml_dtypes") return Known{"numpy", Kind::numpy};
  if (package == "jax" || package == "jaxlib") return Known{"jax.dlpack", Kind::other};
  if (package == "cupy") return Known{"cupy", Kind::other};
  return {};
}

/// `name`: of a module or a package.
const Library* library_named(const nb::object& name) {
  if (!nb::isinstance<nb::str>(name)) return nullptr;
  const auto text = nb::cast<std::string>(name);
  const auto known = known_library(std::string_view(text).substr(0, text.find('.')));
  if (!known) return nullptr;
  // Entries stay where they are, and keep Python objects until the process ends.
  static auto& libraries = *new std::map<std::string_view, Library>;
  const auto found = libraries.find(known->module);
  if (found != libraries.end()) return &found->second;
  Library library{known->kind, {}};
  if (known->kind != Library::Kind::numpy) {
    const nb::module_ module = nb::module_::import_(known->module);
    library.from_dlpack = module.attr("from_dlpack");
    if (known->kind == Library::Kind::torch)
      library.tensor_type = reinterpret_cast<PyTypeObject*>(module.attr("Tensor").ptr());
  }
  return &libraries.emplace(known->module, std::move(library)).first->second;
}

nb::object module_of(nb::handle object) {
  return nb::getattr(object, "__module__", nb::none());
}

/// Makes torch's current stream wait for the work queued on `stream`.
void wait_on_current(const Library& library, Device device, std::uintptr_t stream) {
  const auto current_stream = exchange_of(library.tensor_type).current_stream;
  void* current = nullptr;
  if (current_stream(nb::device::cuda::value, device.index, &current) != 0)
    throw nb::python_error();
  const auto number =
      current == nullptr ? kLegacyStream : reinterpret_cast<std::uintptr_t>(current);
  if (number != stream) order_behind(nb::int_(number), stream, device.index);
}

/// Whether torch's C table makes its tensors (torch 2.10 and newer).
bool has_table(const Library& library) {
  if (library.kind != Library::Kind::torch) return false;
  const Exchange& exchange = exchange_of(library.tensor_type);
  return exchange.to_object != nullptr && exchange.current_stream != nullptr;
}

}  // namespace

const Library* library_of_type(nb::handle type) {
  for (const nb::handle base : nb::borrow<nb::tuple>(type.attr("__mro__")))
    if (const Library* const found = library_named(module_of(base))) return found;
  return nullptr;
}

const Library* library_of(nb::handle array) {
  return exchange_of(Py_TYPE(array.ptr())).library;
}

const Library* library_of_dtype(nb::handle dtype) {
  // numpy.float32 and jax.numpy.float32 are types, torch.float32 and numpy.dtype("f4") objects.
  return library_named(module_of(PyType_Check(dtype.ptr()) != 0 ? dtype : dtype.type()));
}

const Library* library_like(std::string_view call, nb::handle like) {
  if (like.is_none()) return nullptr;
  const Library* const found =
      PyModule_Check(like.ptr()) != 0 ? library_named(like.attr("__name__")) : library_of(like);
  if (found == nullptr)
    wrong_type(call, "like", like,
               "an array of torch, NumPy, JAX or CuPy, or one of these modules");
  return found;
}

nb::object make_array(const Library* library, Tensor tensor, std::uintptr_t stream) {
  if (!tensor.defined()) return nb::none();
  const Device device = tensor.device;
  if (library == nullptr ||
      (library->kind == Library::Kind::numpy && device.kind == DeviceKind::cuda))
    return output(std::move(tensor), stream);
  if (has_table(*library)) {
    if (device.kind == DeviceKind::cuda && stream != kReady)
      wait_on_current(*library, device, stream);
    return exchange_object(library->tensor_type, std::move(tensor));
  }
  const nb::object array = output(std::move(tensor), stream);
  return library->kind == Library::Kind::numpy ? numpy_or_bits(array) : library->from_dlpack(array);
}

nb::object Result::get() const {
  const bool on_stream = tensor_.defined() && tensor_.device.kind == DeviceKind::cuda &&
                         stream_ != kReady && library_ != nullptr;
  if (array_.is_valid()) {
    if (on_stream) wait_on_current(*library_, tensor_.device, stream_);
    return array_;
  }
  if (!tensor_.defined()) return nb::none();
  nb::object made = make_array(library_, tensor_, stream_);
  // Without the table, only from_dlpack makes the stream wait.
  if (!on_stream || has_table(*library_)) array_ = made;
  return made;
}

std::string Result::summary() const {
  return tensor_.defined() ? summary_of(tensor_) : shown(array_);
}

}  // namespace shoal::python
