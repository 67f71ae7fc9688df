// SPDX-License-Identifier: Apache-2.0
// settings.hpp: the environment variables of the emulated device.
//
// docs/guide/test-rdma-without-a-nic.md lists them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/services.hpp"
#include "wire/impaired_wire.hpp"
#include "wire/udp_wire.hpp"

namespace shoal::emulator {

enum class WireKind : std::uint8_t {
  shared_memory,  ///< between the processes of a host
  udp,            ///< between hosts
};

/// Devices of a process: mlx5_0 and so on.
constexpr std::uint32_t kMostDevices = 8;

struct DeviceSettings {
  std::uint32_t device = 0;                 ///< number of the device that these are of
  std::uint32_t devices = 1;                ///< of the process
  WireKind wire = WireKind::shared_memory;  ///< SHOAL_EMULATOR_WIRE
  UdpOptions udp;                           ///< SHOAL_EMULATOR_UDP_INTERFACE and others
  std::string wire_file;                 ///< from SHOAL_EMULATOR_DIRECTORY and SHOAL_EMULATOR_JOB
  std::uint32_t slots = 256;             ///< SHOAL_EMULATOR_PROCESSES
  std::uint32_t ring_bytes = 1 << 19;    ///< SHOAL_EMULATOR_RING_BYTES
  Ordering ordering = Ordering::strict;  ///< SHOAL_EMULATOR_ORDERING
  NicOptions nic;                        ///< limits, arbitration, seed
  Impairments impairments;               ///< SHOAL_EMULATOR_LOSS and others
  std::string trace_file;                ///< SHOAL_EMULATOR_TRACE
};

/// Number of devices: that of the interfaces of the UDP wire, else 1. What is malformed counts as
/// one device; read_device_settings() then says why it cannot be opened.
std::uint32_t device_count();

/// Throws std::runtime_error that names the variable, its value and what is allowed.
DeviceSettings read_device_settings(std::uint32_t device);

}  // namespace shoal::emulator
