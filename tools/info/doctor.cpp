// SPDX-License-Identifier: Apache-2.0
#include "info/doctor.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "info/build_facts.hpp"
#include "info/gpus.hpp"
#include "info/text.hpp"
#include "shoal/error.hpp"

namespace shoal::info {
namespace {

/// PCI addresses of NVIDIA's display and 3D controllers.
std::vector<std::string> find_gpus(const System& system) {
  std::vector<std::string> found;
  const std::string folder = "/sys/bus/pci/devices/";
  for (const std::string& address : system.list(folder)) {
    const std::string kind = system.line(folder + address + "/class");
    if (system.line(folder + address + "/vendor") == "0x10de" && kind.starts_with("0x03"))
      found.push_back(address);
  }
  return found;
}

/// Folders in which programs have an NVSHMEM of their own: those that variables name, and Python
/// packages.
std::vector<std::string> nvshmem_folders(const System& system) {
  std::vector<std::string> folders;
  const auto add_list = [&](const char* variable, std::string_view inside) {
    const char* const text = std::getenv(variable);
    for (std::string_view list = text == nullptr ? "" : text; !list.empty();) {
      const std::string_view one = list.substr(0, list.find(':'));
      list.remove_prefix(std::min(list.size(), one.size() + 1));
      if (!one.empty()) folders.push_back(fmt::format("{}{}", one, inside));
    }
  };
  for (const char* const variable :
       {"NVSHMEM_HOME", "NVSHMEM_DIR", "NVSHMEM_PREFIX", "EP_NVSHMEM_ROOT_DIR", "PYTHONPATH"})
    add_list(variable, "");
  add_list("LD_LIBRARY_PATH", "/..");
  for (const char* const variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* const root = std::getenv(variable);
    if (root == nullptr) continue;
    const std::string lib = fmt::format("{}/lib/", root);
    for (const std::string& python : system.list(lib))
      if (python.starts_with("python")) folders.push_back(lib + python + "/site-packages");
  }
  return folders;
}

void collect_machine(Subject& subject, const std::string& root) {
  try {
    if (root.empty()) {
      subject.machine = topology::read_machine();
    } else if (subject.system.exists("/machine.xml")) {
      subject.machine =
          topology::read_machine((std::filesystem::path(root) / "machine.xml").string());
    }
    const auto seats = topology::host_seats(subject.machine, subject.pes);
    subject.remarks = topology::remarks(
        subject.machine, seats,
        topology::plan_nics(subject.machine, seats, topology::nic_binding(subject.settings)));
  } catch (const Error& error) {
    subject.machine_error = error.what();
  }
}

}  // namespace

std::string_view name_of(State state) noexcept {
  constexpr std::string_view names[] = {"ok", "warning", "fault", "not applicable"};
  return names[static_cast<std::size_t>(state)];
}

Subject collect_subject(const std::string& root, std::int32_t pes) {
  Subject subject;
  subject.settings = Settings::from_environment();
  subject.described = !root.empty();
  subject.system = System(root.empty() ? "/" : root);
  if (!subject.described) {
    subject.gpus = memory::describe_gpus();
    subject.mps_folder = mps_folder();
    std::vector<std::string> addresses;
    for (const memory::GpuInfo& gpu : subject.gpus.gpus) addresses.push_back(gpu.pci);
    if (!addresses.empty()) {
      subject.nvlinks = topology::read_nvlinks(addresses);
      subject.nccl = find_nccl(subject.settings.nccl_library);
    }
  }
  subject.variables = inspect_environment();
  subject.cuda = kCuda;
  subject.nvshmem = find_nvshmem(subject.system, nvshmem_folders(subject.system));
  subject.nvidia_gpus = find_gpus(subject.system);
  subject.rdma = subject.system.list("/sys/class/infiniband");
  const auto local = static_cast<std::int32_t>(subject.settings.local_size);
  const auto gpus = static_cast<std::int32_t>(subject.nvidia_gpus.size());
  subject.pes = pes > 0 ? pes : local > 0 ? local : std::max(gpus, 1);
  subject.group = assumed_ep_shape(subject.pes);
  collect_machine(subject, root);
  subject.networks = collect_build(subject.settings).networks;
  return subject;
}

std::vector<Finding> examine(const Subject& subject) {
  std::vector<Finding> findings;
  for (const std::vector<Check>& checks : {driver_checks(), version_checks(), network_checks(),
                                           group_checks(), host_checks(), environment_checks()})
    for (const Check check : checks) findings.push_back(check(subject));
  return findings;
}

bool has_fault(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.state == State::fault; });
}

std::string to_text(const std::vector<Finding>& findings, bool colour) {
  constexpr std::string_view kColours[] = {"\x1b[32m", "\x1b[33m", "\x1b[1;31m", "\x1b[2m"};
  constexpr std::size_t kName = 22, kState = 16, kWidth = 78;
  std::string text = "Doctor\n";
  std::int64_t counts[4] = {};
  for (const Finding& finding : findings) {
    ++counts[static_cast<std::size_t>(finding.state)];
    const auto [start, end] =
        colour ? std::pair<std::string_view,
                           std::string_view>{kColours[static_cast<std::size_t>(finding.state)],
                                             "\x1b[0m"}
               : std::pair<std::string_view, std::string_view>{};
    text +=
        fmt::format("  {:<{}}{}{:<{}}{}{}\n", finding.name, kName, start, name_of(finding.state),
                    kState, end, wrap(finding.found, kWidth, 2 + kName + kState));
    if (!finding.remedy.empty())
      text += fmt::format("  {:<{}}{}\n", "", kName + kState,
                          wrap("remedy: " + finding.remedy, kWidth, 2 + kName + kState));
  }
  return text + fmt::format("  {}, {}, {} ok, {} not applicable\n", count_text(counts[2], "fault"),
                            count_text(counts[1], "warning"), counts[0], counts[3]);
}

nlohmann::json to_json(const std::vector<Finding>& findings) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& finding : findings)
    list.push_back({{"name", finding.name},
                    {"state", name_of(finding.state)},
                    {"found", finding.found},
                    {"cure", finding.remedy}});
  return list;
}

}  // namespace shoal::info
