// SPDX-License-Identifier: Apache-2.0
// environment.hpp: the environment variables of NICs on GPUs that worlds use. They have the names
// of those of the emulated device (verbs/settings.hpp) where they mean the same;
// docs/guide/test-rdma-without-a-nic.md lists them.
#pragma once

#include <string>

#include "gpu/nic.hpp"

namespace shoal::emulator::gpu {

struct Environment {
  NicOptions nic;                          ///< rate, SMs, delay, reordering, seed
  Ordering ordering = Ordering::adaptive;  ///< SHOAL_EMULATOR_ORDERING
};

/// Throws std::invalid_argument that names the variable, its value and what is allowed.
Environment read_environment();

/// "50 GB/s, adaptive, delay 0 us, 4 SMs".
std::string describe(const Environment& environment);

}  // namespace shoal::emulator::gpu
