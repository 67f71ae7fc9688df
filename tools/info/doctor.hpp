// SPDX-License-Identifier: Apache-2.0
// doctor.hpp: finds what keeps Shoal from working or slows it down on this system, with remedies.
//
// A check is a pure function of a Subject, so tests examine described systems (tests/data/doctor).
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
  /// The setting or command that helps; empty for states ok and not_applicable.
  std::string remedy;
};

/// The system under examination: everything that checks read.
struct Subject {
  System system;
  bool described = false;  ///< read from a folder: there is no GPU driver to query
  Settings settings;
  std::int32_t pes = 1;  ///< of all jobs on the host together
  topology::Machine machine;
  std::string machine_error;         ///< why `machine` is empty; empty if it was read
  std::vector<std::string> remarks;  ///< on the NIC plan
  memory::GpuReport gpus;            ///< empty if described
  std::string mps_folder = "/tmp/nvidia-mps";
  std::vector<Module> networks;
  std::vector<EnvironmentVariable> variables;  ///< of this process; empty if described

  // Inputs of several checks, read once.
  /// PCI addresses of NVIDIA's GPUs, whether or not a driver has them.
  std::vector<std::string> nvidia_gpus;
  std::vector<std::string> rdma;  ///< names of RDMA devices
  bool gpus_and_rdma() const { return !nvidia_gpus.empty() && !rdma.empty(); }
};

/// Reads this system, or the one that folder `root` describes (with its machine in machine.xml).
/// `pes` 0 means SHOAL_LOCAL_SIZE, else the number of GPUs, else 1. Throws only for invalid
/// settings.
Subject collect_subject(const std::string& root, std::int32_t pes);

/// Runs all checks, in the order of docs/guide/shoal-info.md.
std::vector<Finding> examine(const Subject& subject);

bool has_fault(const std::vector<Finding>& findings);
std::string to_text(const std::vector<Finding>& findings);
nlohmann::json to_json(const std::vector<Finding>& findings);

using Check = Finding (*)(const Subject& subject);

// The checks by topic, for examine().
std::vector<Check> driver_checks();
std::vector<Check> network_checks();
std::vector<Check> host_checks();
std::vector<Check> environment_checks();

// Constructors of findings.
inline Finding ok(std::string name, std::string found) {
  return {std::move(name), State::ok, std::move(found), ""};
}
inline Finding not_applicable(std::string name, std::string why) {
  return {std::move(name), State::not_applicable, std::move(why), ""};
}
inline Finding warning(std::string name, std::string found, std::string remedy) {
  return {std::move(name), State::warning, std::move(found), std::move(remedy)};
}
inline Finding fault(std::string name, std::string found, std::string remedy) {
  return {std::move(name), State::fault, std::move(found), std::move(remedy)};
}

}  // namespace shoal::info
