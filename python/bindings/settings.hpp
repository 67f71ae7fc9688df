// SPDX-License-Identifier: Apache-2.0
// settings.hpp: settings= arguments, dicts that override the environment.
#pragma once

#include <nanobind/nanobind.h>

#include "shoal/settings.hpp"

namespace shoal::python {

/// The settings of the environment, overridden by `given`: None, or a dict by the lower-case name
/// of a setting without SHOAL_ ({"symmetric_size": "1G"}); "timeout" stands for SHOAL_TIMEOUT_MS.
/// Throws Error{invalid_argument} for a name that no setting has.
Settings settings_from(nanobind::handle given);

}  // namespace shoal::python
