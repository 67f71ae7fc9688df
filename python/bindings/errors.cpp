// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "shoal/error.hpp"

namespace shoal::python {

namespace nb = nanobind;

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          const std::string code(name_of(error.code()));
          const nb::object type = nb::module_::import_("shoal.errors").attr("by_code")(code);
          PyErr_SetObject(type.ptr(), type(error.what()).ptr());
        }
      },
      nullptr);
}

}  // namespace shoal::python
