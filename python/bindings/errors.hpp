// SPDX-License-Identifier: Apache-2.0
// errors.hpp: shoal::Error as Python exceptions.
#pragma once

#include <nanobind/nanobind.h>

namespace shoal::python {

/// Lets shoal::Error arrive as the class of shoal.errors that belongs to its code.
void bind_errors(nanobind::module_& module);

}  // namespace shoal::python
