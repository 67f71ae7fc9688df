// SPDX-License-Identifier: Apache-2.0
#include "exchange.hpp"

#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "arrays.hpp"

namespace shoal::python {
namespace {

namespace nb = nanobind;

/// DLPackExchangeAPI; unused entries have no type.
struct Table {
  std::uint32_t major, minor;
  const Table* previous;
  void (*allocate)();
  void (*managed_from_object)();
  decltype(Exchange::to_object) managed_to_object;
  decltype(Exchange::view) view;
  decltype(Exchange::current_stream) current_stream;
};
/// DLManagedTensorVersioned, followed by what owns its memory.
struct ExportedTensor {
  std::uint32_t major = 1, minor = 0;
  void* context = nullptr;
  void (*deleter)(ExportedTensor*) = nullptr;
  std::uint64_t flags = 0;
  nb::dlpack::dltensor view{};
  Tensor tensor;
};

constexpr std::uint32_t kMajor = 1;  // the version of this layout

Exchange inspect(PyTypeObject* type) {
  const nb::handle object(reinterpret_cast<PyObject*>(type));
  Exchange found;
  found.library = library_of_type(object);
  found.has_gradients = nb::hasattr(object, "requires_grad");
  if (!nb::hasattr(object, "__dlpack_c_exchange_api__")) return found;
  const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
  const auto* table =
      static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->major != kMajor) table = table->previous;
  if (table == nullptr) return found;
  found.view = table->view;
  found.current_stream = table->current_stream;
  found.to_object = table->managed_to_object;
  return found;
}

}  // namespace

const Exchange& exchange_of(PyTypeObject* type) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<PyTypeObject*, Exchange>;
  // The arrays of a call have one type, as a rule. Entries stay where they are.
  thread_local const std::pair<PyTypeObject* const, Exchange>* last = nullptr;
  if (last != nullptr && last->first == type) return last->second;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(type); found != known.end()) {
      last = &*found;
      return last->second;
    }
  }
  const Exchange functions = inspect(type);
  const std::lock_guard lock(mutex);
  const auto [entry, added] = known.emplace(type, functions);
  // A type in the table is kept alive, so that no other type can have its address.
  if (added) Py_INCREF(type);
  last = &*entry;
  return last->second;
}

std::optional<nb::dlpack::dltensor> exchange_view(nb::handle array) {
  const auto function = exchange_of(Py_TYPE(array.ptr())).view;
  if (function == nullptr) return std::nullopt;
  nb::dlpack::dltensor view;
  if (function(array.ptr(), &view) != 0) throw nb::python_error();
  return view;
}

nb::object exchange_object(PyTypeObject* type, Tensor tensor) {
  const auto function = exchange_of(type).to_object;
  if (function == nullptr) return {};
  auto exported = std::make_unique<ExportedTensor>();
  exported->tensor = std::move(tensor);
  TensorView& from = exported->tensor;
  const bool cuda = from.device.kind == DeviceKind::cuda;
  exported->view.data = from.data;
  exported->view.device = {cuda ? nb::device::cuda::value : nb::device::cpu::value,
                           cuda ? from.device.index : 0};
  exported->view.ndim = from.rank;
  exported->view.dtype = dlpack_type(from.dtype);
  exported->view.shape = from.shape.data();
  exported->view.strides = from.strides.data();
  exported->deleter = [](ExportedTensor* self) { delete self; };
  void* object = nullptr;
  if (function(exported.get(), &object) != 0) throw nb::python_error();
  exported.release();  // NOLINT(bugprone-unused-return-value): the importer owns it
  return nb::steal(static_cast<PyObject*>(object));
}

std::optional<std::uintptr_t> exchange_stream(nb::handle array, nb::dlpack::dltensor view) {
  const auto function = exchange_of(Py_TYPE(array.ptr())).current_stream;
  if (function == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (function(view.device.device_type, view.device.device_id, &stream) != 0)
    throw nb::python_error();
  return stream == nullptr ? kLegacyStream : reinterpret_cast<std::uintptr_t>(stream);
}

}  // namespace shoal::python
