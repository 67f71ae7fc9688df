// shoal_info_topology.hpp: the machine and its NIC plan as text.
#pragma once

#include <cstdint>
#include <string>

/// Prints GPUs, NICs, distances and the NICs of every PE under the settings in force. `machine_file`: a described
/// machine in the place of this one, or empty. `pes`: PEs of a host without GPUs; 0: as SHOAL_LOCAL_SIZE says, else
/// one. Throws shoal::Error when the machine cannot be read or the binding does not fit it.
void print_topology(const std::string& machine_file, std::int32_t pes);
