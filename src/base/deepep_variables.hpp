// SPDX-License-Identifier: Apache-2.0
// deepep_variables.hpp: environment variables of DeepEP, as the package deep_ep understands them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::deep_ep {

/// True if the name belongs to DeepEP: EP_*, DEEP_EP_*, DEEPEP_*, or a variable of DeepEP without
/// such a prefix.
bool is_variable(std::string_view name);

/// The effect of a variable for which is_variable holds.
EnvironmentVariable inspect(const std::string& name);

/// Every variable of DeepEP.
std::vector<std::string> known_names();

}  // namespace shoal::deep_ep
