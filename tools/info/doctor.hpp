// SPDX-License-Identifier: Apache-2.0
// doctor.hpp: what of this system keeps Shoal from working or from being fast, and what cures it.
//
// A check is a pure function of a Patient, so that tests examine described systems
// (tests/data/doctor).
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "info/build.hpp"
#include "info/system.hpp"
#include "info/topology.hpp"
#include "memory/device.hpp"
#include "shoal/settings.hpp"

namespace shoal::info {

enum class State : std::uint8_t { ok, warning, fault, not_applicable };

/// "ok", "warning", "fault", "not applicable".
std::string_view name_of(State state) noexcept;

struct Finding {
  std::string name;
  State state = State::ok;
  std::string found;
  std::string cure;  ///< the setting or command; empty where there is nothing to cure
};

/// Everything that checks look at.
struct Patient {
  System system;
  bool described = false;  ///< a folder: there is no GPU driver to ask
  Settings settings;
  std::int32_t pes = 1;  ///< of all jobs on the host together
  topology::Machine machine;
  std::string machine_error;         ///< why there is no machine
  std::vector<std::string> remarks;  ///< on the NIC plan
  memory::GpuReport gpus;            ///< empty where described
  std::string mps_folder = "/tmp/nvidia-mps";
  std::vector<Module> networks;
  std::vector<EnvironmentVariable> variables;  ///< of this process; empty where described

  // What several checks ask, read once.
  std::vector<std::string>
      nvidia_gpus;  ///< PCI addresses of NVIDIA's GPUs, whether or not a driver has them
  std::vector<std::string> rdma;  ///< names of RDMA devices
  bool gpus_and_rdma() const { return !nvidia_gpus.empty() && !rdma.empty(); }
};

/// This system, or the one that folder `root` describes (with its machine in machine.xml). `pes` 0:
/// SHOAL_LOCAL_SIZE, else the number of GPUs, else 1. Throws only for bad settings.
Patient collect_patient(const std::string& root, std::int32_t pes);

/// Runs all checks, in the order of the page docs/guide/shoal-info.md.
std::vector<Finding> examine(const Patient& patient);

bool has_fault(const std::vector<Finding>& findings);
std::string to_text(const std::vector<Finding>& findings);
nlohmann::json to_json(const std::vector<Finding>& findings);

using Check = Finding (*)(const Patient& patient);

// The checks by subject, for examine().
std::vector<Check> driver_checks();
std::vector<Check> network_checks();
std::vector<Check> host_checks();
std::vector<Check> environment_checks();

// How a check says what it found.
inline Finding ok(std::string name, std::string found) {
  return {std::move(name), State::ok, std::move(found), ""};
}
inline Finding not_applicable(std::string name, std::string why) {
  return {std::move(name), State::not_applicable, std::move(why), ""};
}
inline Finding warning(std::string name, std::string found, std::string cure) {
  return {std::move(name), State::warning, std::move(found), std::move(cure)};
}
inline Finding fault(std::string name, std::string found, std::string cure) {
  return {std::move(name), State::fault, std::move(found), std::move(cure)};
}

}  // namespace shoal::info
