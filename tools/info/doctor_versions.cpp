// SPDX-License-Identifier: Apache-2.0
// Checks of the oldest versions that Shoal works with: driver, CUDA, NCCL, firmware, NVSHMEM.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>

#include "base/plugin.hpp"
#include "info/doctor.hpp"

namespace shoal::info {
namespace {

/// The numbers of "580.65.06".
using Version = std::vector<int>;

Version parse(std::string_view text) {
  Version version;
  while (!text.empty()) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{}) break;
    version.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (!text.starts_with('.')) break;
    text.remove_prefix(1);
  }
  return version;
}

/// The first word of a line that is a version with a point.
std::string version_in(const std::string& line) {
  for (const std::string& word : words_of(line))
    if (std::isdigit(static_cast<unsigned char>(word.front())) != 0 &&
        word.find('.') != std::string::npos)
      return word;
  return "";
}

// CUDA's release notes: the oldest driver for programs of each toolkit, of any minor version.
struct DriverOf {
  int cuda;
  std::string_view driver;
};
constexpr DriverOf kDrivers[] = {{11, "450.80.02"}, {12, "525.60.13"}, {13, "580.65.06"}};
/// NVSHMEM's installation guide: the oldest driver with which kernels drive NICs.
constexpr std::string_view kDriverOfGda = "510.40.3";

Finding driver_version(const Subject& subject) {
  const std::string name = "driver version";
  const std::string found = version_in(subject.system.line("/proc/driver/nvidia/version"));
  if (subject.nvidia_gpus.empty() || found.empty()) return not_applicable(name, "no NVIDIA driver");
  const Version build = parse(subject.cuda);
  std::string needed = subject.settings.gda == "off" ? "" : std::string(kDriverOfGda);
  for (const DriverOf& one : kDrivers)
    if (!build.empty() && build.front() == one.cuda) needed = one.driver;
  if (needed.empty()) return ok(name, fmt::format("{}; this build has no CUDA", found));
  const std::string text =
      fmt::format("{}; CUDA {} of this build needs {}", found, subject.cuda, needed);
  if (parse(found) >= parse(needed)) return ok(name, text);
  return fault(
      name, text + ": kernels do not load",
      fmt::format("install driver {} or later, or build Shoal with an older CUDA", needed));
}

Finding cuda_version(const Subject& subject) {
  const std::string name = "CUDA version";
  const Version build = parse(subject.cuda);
  const int driver = subject.gpus.driver_version;  // 13000 for 13.0
  if (build.empty()) return not_applicable(name, "this build has no CUDA");
  if (driver == 0)
    return not_applicable(name, subject.described ? "only a driver reports it" : "no CUDA driver");
  const std::string text = fmt::format("the driver has CUDA {}.{}, this build CUDA {}",
                                       driver / 1000, driver % 1000 / 10, subject.cuda);
  if (driver / 1000 >= build.front()) return ok(name, text);
  return fault(name, text + ": kernels do not load",
               fmt::format("a driver with CUDA {} or later, or build Shoal with an older CUDA",
                           build.front()));
}

Finding nccl_version(const Subject& subject) {
  const std::string name = "NCCL version";
  const std::string& setting = subject.settings.collective_nccl;
  const std::string found =
      subject.nccl.version.empty() ? subject.nccl.missing : "NCCL " + subject.nccl.version;
  const std::string text = fmt::format("{}; SHOAL_COLLECTIVE_NCCL={}", found, setting);
  if (found.empty()) return not_applicable(name, "no GPU: collectives do not use NCCL");
  const bool good = parse(subject.nccl.version) >= parse(kOldestNccl);
  if (good) return ok(name, text);
  if (setting == "off") return not_applicable(name, text + ": it is not needed");
  return warning(name, fmt::format("{} needs NCCL {}", text, kOldestNccl),
                 "install nvidia-nccl-cu12 or nvidia-nccl-cu13, set SHOAL_NCCL_LIBRARY to its "
                 "file, or set SHOAL_COLLECTIVE_NCCL=off");
}

// The oldest release for which NVIDIA has published fixes since 2023, by family of NICs, which is
// the first number of the firmware's version.
struct FirmwareOf {
  int family;
  std::string_view nic, oldest;
};
constexpr FirmwareOf kFirmware[] = {
    {16, "ConnectX-5", "16.35.2000"},    {20, "ConnectX-6", "20.35.2000"},
    {22, "ConnectX-6 Dx", "22.35.2000"}, {24, "BlueField-2", "24.35.2000"},
    {26, "ConnectX-6 Lx", "26.35.2000"}, {28, "ConnectX-7", "28.35.2000"},
    {32, "BlueField-3", "32.37.1014"},
};

Finding nic_firmware(const Subject& subject) {
  const std::string name = "NIC firmware";
  std::vector<std::string> known, old;
  std::string oldest;
  for (const std::string& device : subject.rdma) {
    const std::string text = subject.system.line("/sys/class/infiniband/" + device + "/fw_ver");
    const Version version = parse(text);
    for (const FirmwareOf& one : kFirmware) {
      if (version.empty() || version.front() != one.family) continue;
      known.push_back(device);
      if (version >= parse(one.oldest)) continue;
      old.push_back(fmt::format("{} ({}) has {}", device, one.nic, text));
      oldest = one.oldest;
    }
  }
  if (known.empty())
    return not_applicable(name, subject.rdma.empty()
                                    ? "no RDMA device"
                                    : "no NIC of a family whose firmware is known");
  if (old.empty()) return ok(name, fmt::format("all {} NICs have a maintained one", known.size()));
  return warning(name,
                 fmt::format("{} of {} NICs are older than {}: {}", old.size(), known.size(),
                             oldest, fmt::join(old, ", ")),
                 "as root: mlxfwmanager --online -u, then reboot (mlxfwreset)");
}

/// Checks the NVSHMEM of a program that uses Shoal: older ones fail in the same process (symbols,
/// IBGDA).
Finding nvshmem_version(const Subject& subject) {
  const std::string name = "NVSHMEM version";
  constexpr std::string_view kOldest = "3.3.9";
  std::vector<std::string> found, old;
  for (const Release& release : subject.nvshmem) {
    const std::string text = fmt::format("{} in {}", release.version, release.place);
    found.push_back(text);
    if (parse(release.version) < parse(kOldest)) old.push_back(text);
  }
  if (found.empty()) return not_applicable(name, "no program's own NVSHMEM; Shoal needs none");
  if (old.empty()) return ok(name, fmt::format("{}", fmt::join(found, "; ")));
  return warning(
      name, fmt::format("{}; DeepEP and its forks need {}", fmt::join(old, "; "), kOldest),
      fmt::format("pip install 'nvidia-nvshmem-cu12>={}' (cu13 for CUDA 13), or unset the "
                  "variable that names the folder; programs of Shoal alone need none",
                  kOldest));
}

/// The value of "#define NAME 3" in a C header; empty: none.
std::string defined(const std::string& header, std::string_view name) {
  for (const std::string& line : lines_of(header)) {
    const std::vector<std::string> words = words_of(line);
    if (words.size() >= 3 && words[0] == "#define" && words[1] == name) return words[2];
  }
  return "";
}

}  // namespace

std::vector<Release> find_nvshmem(const System& system, const std::vector<std::string>& folders) {
  std::vector<Release> found;
  const auto add = [&](std::string version, const std::string& place) {
    if (std::ranges::find(found, place, &Release::place) == found.end())
      found.push_back({std::move(version), place});
  };
  for (const std::string& folder : folders) {
    const std::string header =
        system.read(folder + "/include/non_abi/nvshmem_version.h").value_or("");
    const std::string major = defined(header, "NVSHMEM_VENDOR_MAJOR_VERSION");
    if (!major.empty())
      add(fmt::format("{}.{}.{}", major, defined(header, "NVSHMEM_VENDOR_MINOR_VERSION"),
                      defined(header, "NVSHMEM_VENDOR_PATCH_VERSION")),
          folder);
    for (const std::string& file : system.list(folder)) {
      constexpr std::string_view kEnd = ".dist-info";
      if (!file.starts_with("nvidia_nvshmem_cu") || !file.ends_with(kEnd)) continue;
      const std::size_t dash = file.find('-');
      if (dash != std::string::npos)
        add(file.substr(dash + 1, file.size() - kEnd.size() - dash - 1), folder);
    }
  }
  return found;
}

Nccl find_nccl(const std::string& file) {
  const Plugin found = load_plugin_file(file, "ncclGetVersion");
  if (found.symbol == nullptr) return {"", found.reason};
  int code = 0;
  const auto get_version = reinterpret_cast<int (*)(int*)>(found.symbol);
  if (get_version(&code) != 0) return {"", file + " does not say its version"};
  return {fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100), ""};
}

std::vector<Check> version_checks() {
  return {driver_version, cuda_version, nccl_version, nic_firmware, nvshmem_version};
}

}  // namespace shoal::info
