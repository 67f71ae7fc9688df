// SPDX-License-Identifier: Apache-2.0
#include "errors.hpp"

#include <nanobind/stl/string.h>

#include <string>

#include "interrupt.hpp"
#include "shoal/error.hpp"

namespace shoal::python {

namespace nb = nanobind;

void bind_errors(nb::module_&) {
  nb::register_exception_translator(
      [](const std::exception_ptr& pointer, void*) {
        try {
          std::rethrow_exception(pointer);
        } catch (const Error& error) {
          if (raise_interrupt()) return;
          const std::string code(name_of(error.code()));
          const nb::object raised =
              nb::module_::import_("shoal.errors").attr("from_core")(code, error.what());
          PyErr_SetObject(raised.type().ptr(), raised.ptr());
        }
      },
      nullptr);
}

}  // namespace shoal::python
