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

/// The shape of an expert-parallel group (--ep): tokens of a rank and operation, of both modes.
struct EpShape {
  std::int64_t tokens = 0, hidden = 0;
  std::int32_t top_k = 0, experts = 0, ranks = 0;
  bool given = false;  ///< by the user
};

/// "128,7168,8,256,64": tokens, hidden, top-k, experts, ranks. Throws Error{invalid_argument} for
/// another form, or where no group has this shape.
EpShape ep_shape_from(const std::string& text);
/// 128 tokens of 7168 channels, top 8 of 256 experts (more where the ranks do not divide them), on
/// two hosts with `pes` PEs each.
EpShape assumed_ep_shape(std::int32_t pes);

/// A library that was found.
struct Nccl {
  std::string version{};  ///< "2.27.3"; empty: not found
  std::string missing{};  ///< why; both are empty if nothing searched for it
};
struct Release {
  std::string version, place;
};

/// The oldest NCCL that SHOAL_COLLECTIVE_NCCL uses.
inline constexpr std::string_view kOldestNccl = "2.19";
Nccl find_nccl(const std::string& file);

/// The releases of NVSHMEM in these folders, which are roots of an installation or hold Python
/// packages.
std::vector<Release> find_nvshmem(const System& system, const std::vector<std::string>& folders);

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
  std::vector<EnvironmentVariable> variables;  ///< of this process, as the settings are
  std::string cuda;                            ///< of this build: "13.0.88 for 90a", or "none"
  topology::NvLinks nvlinks{};                 ///< empty if described
  Nccl nccl;                                   ///< empty if described, or without GPUs
  std::vector<Release> nvshmem;                ///< of programs that use Shoal
  EpShape group;

  // Inputs of several checks, read once.
  /// PCI addresses of NVIDIA's GPUs, whether or not a driver has them.
  std::vector<std::string> nvidia_gpus;
  std::vector<std::string> rdma;  ///< names of RDMA devices
  bool gpus_and_rdma() const { return !nvidia_gpus.empty() && !rdma.empty(); }
};

/// Reads this system, or the one that folder `root` describes (with its machine in machine.xml).
/// Settings and variables are those of this process in both cases. `pes` 0 means SHOAL_LOCAL_SIZE,
/// else the number of GPUs, else 1. Throws only for invalid settings.
Subject collect_subject(const std::string& root, std::int32_t pes);

/// Runs all checks, in the order of docs/guide/shoal-info.md.
std::vector<Finding> examine(const Subject& subject);

bool has_fault(const std::vector<Finding>& findings);
/// `colour`: states have the colours of a terminal.
std::string to_text(const std::vector<Finding>& findings, bool colour = false);
nlohmann::json to_json(const std::vector<Finding>& findings);

using Check = Finding (*)(const Subject& subject);

// The checks by topic, for examine().
std::vector<Check> driver_checks();
std::vector<Check> version_checks();
std::vector<Check> network_checks();
std::vector<Check> group_checks();
std::vector<Check> host_checks();
std::vector<Check> environment_checks();

/// The memory of the host, or the lowest limit of this process's control groups; 0 if unknown.
std::uint64_t host_memory(const System& system);

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
