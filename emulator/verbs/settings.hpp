// SPDX-License-Identifier: Apache-2.0
// settings.hpp: the environment variables of the emulated device.
//
// docs/guide/test-rdma-without-a-nic.md lists them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/services.hpp"
#include "wire/impaired_wire.hpp"

namespace shoal::emulator {

struct DeviceSettings {
  std::string wire_file;                 ///< from SHOAL_EMULATOR_DIRECTORY and SHOAL_EMULATOR_JOB
  std::uint32_t slots = 64;              ///< SHOAL_EMULATOR_PROCESSES
  std::uint32_t ring_bytes = 1 << 19;    ///< SHOAL_EMULATOR_RING_BYTES
  Ordering ordering = Ordering::strict;  ///< SHOAL_EMULATOR_ORDERING
  NicOptions nic;                        ///< limits, arbitration, seed
  Impairments impairments;               ///< SHOAL_EMULATOR_LOSS and others
  std::string trace_file;                ///< SHOAL_EMULATOR_TRACE
};

/// Throws std::runtime_error that names the variable, its value and what is allowed.
DeviceSettings read_device_settings();

}  // namespace shoal::emulator
