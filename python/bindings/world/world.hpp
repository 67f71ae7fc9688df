// SPDX-License-Identifier: Apache-2.0
// world/world.hpp: the functions that bind worlds, teams and their operations.
#pragma once

#include <nanobind/nanobind.h>

#include "shoal/world.hpp"
#include "symmetric_array.hpp"

namespace shoal::python {

/// `after_close` is called when a world has closed.
void bind_world(nb::module_& module, void (*after_close)());
void bind_shared_buffers(nb::module_& module, nb::class_<World>& world);
void bind_one_sided(nb::class_<World>& world);
void bind_team(nb::module_& module);
void bind_collectives(nb::module_& module);
void bind_stream_calls(nb::module_& module);

}  // namespace shoal::python
