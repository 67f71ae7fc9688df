#include "exchange.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace shoal::python {
namespace {

namespace nb = nanobind;

using ViewFunction = int (*)(void* object, nb::dlpack::dltensor* view);
using StreamFunction = int (*)(std::int32_t device_type, std::int32_t device, void** stream);

/// Of one type of arrays; either may be null.
struct Functions {
  ViewFunction view = nullptr;
  StreamFunction current_stream = nullptr;
};

/// DLPackExchangeAPI; what is not used here has no type.
struct Table {
  std::uint32_t major, minor;
  const Table* previous;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  ViewFunction view;
  StreamFunction current_stream;
};
constexpr std::uint32_t kMajor = 1;  // whose layout this is

Functions find_functions(PyTypeObject* type) {
  const nb::handle object(reinterpret_cast<PyObject*>(type));
  if (!nb::hasattr(object, "__dlpack_c_exchange_api__")) return {};
  const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
  const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->major != kMajor) table = table->previous;
  if (table == nullptr) return {};
  return {table->view, table->current_stream};
}

/// By type, looked up once. Types are kept, so that an address is never that of another one.
Functions functions_of(PyTypeObject* type) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<PyTypeObject*, Functions>;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(type); found != known.end()) return found->second;
  }
  const Functions functions = find_functions(type);
  const std::lock_guard lock(mutex);
  if (known.emplace(type, functions).second) Py_INCREF(type);
  return functions;
}

}  // namespace

std::optional<nb::dlpack::dltensor> exchange_view(nb::handle array) {
  const ViewFunction function = functions_of(Py_TYPE(array.ptr())).view;
  if (function == nullptr) return std::nullopt;
  nb::dlpack::dltensor view;
  if (function(array.ptr(), &view) != 0) throw nb::python_error();
  return view;
}

std::optional<std::uintptr_t> exchange_stream(nb::handle array, nb::dlpack::dltensor view) {
  const StreamFunction function = functions_of(Py_TYPE(array.ptr())).current_stream;
  if (function == nullptr) return std::nullopt;
  void* stream = nullptr;
  if (function(view.device.device_type, view.device.device_id, &stream) != 0) throw nb::python_error();
  constexpr std::uintptr_t kLegacy = 1;
  return stream == nullptr ? kLegacy : reinterpret_cast<std::uintptr_t>(stream);
}

}  // namespace shoal::python
