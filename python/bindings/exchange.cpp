#include "exchange.hpp"

#include <cstdint>
#include <mutex>
#include <unordered_map>

namespace shoal::python {
namespace {

namespace nb = nanobind;

using ViewFunction = int (*)(void* object, nb::dlpack::dltensor* view);

/// DLPackExchangeAPI; what is not used here has no type.
struct Table {
  std::uint32_t major, minor;
  const Table* previous;
  void (*allocate)();
  void (*managed_from_object)();
  void (*managed_to_object)();
  ViewFunction view;  ///< may be null
  void (*current_stream)();
};
constexpr std::uint32_t kMajor = 1;  // whose layout this is

ViewFunction find_function(PyTypeObject* type) {
  const nb::handle object(reinterpret_cast<PyObject*>(type));
  if (!nb::hasattr(object, "__dlpack_c_exchange_api__")) return nullptr;
  const nb::object capsule = object.attr("__dlpack_c_exchange_api__");
  const auto* table = static_cast<const Table*>(PyCapsule_GetPointer(capsule.ptr(), "dlpack_exchange_api"));
  if (table == nullptr) PyErr_Clear();
  while (table != nullptr && table->major != kMajor) table = table->previous;
  return table == nullptr ? nullptr : table->view;
}

/// By type, looked up once. Types are kept, so that an address is never that of another one.
ViewFunction function_of(PyTypeObject* type) {
  static std::mutex mutex;
  static auto& known = *new std::unordered_map<PyTypeObject*, ViewFunction>;
  {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find(type); found != known.end()) return found->second;
  }
  const ViewFunction function = find_function(type);
  const std::lock_guard lock(mutex);
  if (known.emplace(type, function).second) Py_INCREF(type);
  return function;
}

}  // namespace

std::optional<nb::dlpack::dltensor> exchange_view(nb::handle array) {
  const ViewFunction function = function_of(Py_TYPE(array.ptr()));
  if (function == nullptr) return std::nullopt;
  nb::dlpack::dltensor view;
  if (function(array.ptr(), &view) != 0) throw nb::python_error();
  return view;
}

}  // namespace shoal::python
