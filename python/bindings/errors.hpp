// SPDX-License-Identifier: Apache-2.0
// errors.hpp: shoal::Error as Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

namespace shoal::python {

/// Translates shoal::Error to the class of shoal.errors for its code, with Python's names in the
/// message, and an Error of an interrupted wait to the exception that interrupted it.
void bind_errors(nanobind::module_& module);

}  // namespace shoal::python
