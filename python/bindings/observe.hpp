// SPDX-License-Identifier: Apache-2.0
// observe.hpp: records of running PEs (shoal/observe.hpp).
#pragma once

#include <nanobind/nanobind.h>

namespace shoal::python {

namespace nb = nanobind;

void bind_observe(nb::module_& module);

}  // namespace shoal::python
