// SPDX-License-Identifier: Apache-2.0
// gpus.hpp: the GPUs of this machine, their capabilities and peer access.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "memory/device.hpp"
#include "topology/nvlink.hpp"

namespace shoal::info {

struct Gpus {
  memory::GpuReport report;
  std::string mps;  ///< folder of the MPS daemon's pipes; empty if none runs
  topology::NvLinks nvlinks{};
};

Gpus collect_gpus();
std::string to_text(const Gpus& gpus);
nlohmann::json to_json(const Gpus& gpus);

/// The folder in which an MPS daemon of this environment has its pipes.
std::string mps_folder();

}  // namespace shoal::info
