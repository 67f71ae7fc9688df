// SPDX-License-Identifier: Apache-2.0
// one_core.hpp: PEs that share one core, on a machine with any number of cores.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "shoal/world.hpp"

namespace shoal::test {

/// Binds this thread, and the PE on it, to the first core that it may use.
void use_one_core();

/// Runs `body` on `n` PEs that share one core. Returns their errors.
std::vector<std::string> run_on_one_core(Pe n, const std::function<void(World&)>& body,
                                         const Settings& settings);

}  // namespace shoal::test
