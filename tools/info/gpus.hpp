// SPDX-License-Identifier: Apache-2.0
// gpus.hpp: the GPUs of this machine, what they can do and who reaches whom.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "memory/device.hpp"

namespace shoal::info {

struct Gpus {
  memory::GpuReport report;
  std::string mps;  ///< folder of the MPS daemon's pipes; empty where none runs
};

Gpus collect_gpus();
std::string to_text(const Gpus& gpus);
nlohmann::json to_json(const Gpus& gpus);

/// Where the MPS daemon of this process's environment would have its pipes.
std::string mps_folder();

}  // namespace shoal::info
