// SPDX-License-Identifier: Apache-2.0
// module.cpp: the extension module shoal._core.
#include <nanobind/nanobind.h>

#include "arrays.hpp"
#include "ep.hpp"
#include "errors.hpp"
#include "world.hpp"

NB_MODULE(_core, module) {
  using namespace shoal::python;
  nanobind::set_leak_warnings(
      false);  // tensors over Arrays may live in globals until the interpreter is gone
  module.doc() = "The compiled part of shoal; use the package's names.";
  bind_errors(module);
  bind_arrays(module);
  bind_team(module);
  bind_world(module);
  nb::module_ ep = module.def_submodule("ep", "Expert-parallel dispatch and combine.");
  bind_group(ep);
}
