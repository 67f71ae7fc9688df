// SPDX-License-Identifier: Apache-2.0
// settings.hpp: settings= arguments, which override the environment, and the Python class Settings.
#pragma once

#include <nanobind/nanobind.h>

#include "shoal/settings.hpp"

namespace shoal::python {

/// The settings of the environment, overridden by `given`: None, or a mapping by the lower-case
/// name of a setting without SHOAL_ ({"symmetric_size": "1G"}). Durations are seconds: "timeout"
/// stands for SHOAL_TIMEOUT_MS. Names with _ms take milliseconds. Throws Error{invalid_argument}
/// for a name that no setting has and for values of a wrong type.
Settings settings_from(nanobind::handle argument);

void bind_settings(nanobind::module_& module);

}  // namespace shoal::python
