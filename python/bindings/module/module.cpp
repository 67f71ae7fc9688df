// SPDX-License-Identifier: Apache-2.0
// module/module.cpp: the extension module shoal._core.
#include <nanobind/nanobind.h>

#include "../arrays/arrays.hpp"
#include "../ep/group.hpp"
#include "../errors.hpp"
#include "../interrupt.hpp"
#include "../observe.hpp"
#include "../settings.hpp"
#include "../world/world.hpp"
#include "shoal/version.hpp"

NB_MODULE(_core, module) {
  using namespace shoal::python;
  // Tensors over Arrays may live in globals until the interpreter ends.
  nanobind::set_leak_warnings(false);
  module.doc() = "The compiled part of shoal; import its names from the package.";
  module.attr("VERSION") = SHOAL_VERSION;
  bind_errors(module);
  bind_interrupt();
  bind_type_variables(module);
  bind_settings(module);
  bind_arrays(module);
  bind_team(module);
  bind_collectives(module);
  bind_world(module, release_kept_groups);
  bind_stream_calls(module);
  bind_observe(module);
  nb::module_ ep = module.def_submodule("ep", "Expert-parallel dispatch and combine.");
  bind_type_variables(ep);
  bind_group(ep);
}
