// SPDX-License-Identifier: Apache-2.0
// Checks of the GPU driver and of the modules that give NICs access to GPU memory.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "info/doctor.hpp"

namespace shoal::info {
namespace {

constexpr std::string_view kParams = "/proc/driver/nvidia/params";
constexpr std::string_view kOptions =
    "as root: echo 'options nvidia NVreg_EnableStreamMemOPs=1 NVreg_RegistryDwords=\"PeerMappingOverride=1;\"' > "
    "/etc/modprobe.d/nvidia-shoal.conf; update-initramfs -u (dracut -f); reboot";

Finding gpu_driver(const Subject& subject) {
  const std::string name = "GPU driver";
  const std::string version = subject.system.line("/proc/driver/nvidia/version");
  if (subject.nvidia_gpus.empty()) {
    if (version.empty())
      return not_applicable(name, "no NVIDIA GPU on the PCI bus: heaps are in host memory");
    return ok(name, version);
  }
  if (version.empty())
    return fault(
        name,
        fmt::format(
            "{} NVIDIA GPUs on the PCI bus ({}), but no driver: /proc/driver/nvidia/version is not there",
            subject.nvidia_gpus.size(), fmt::join(subject.nvidia_gpus, ", ")),
        "install NVIDIA's driver and modprobe nvidia; in a container: start it with --gpus all (NVIDIA "
        "container toolkit)");
  if (!subject.described && !subject.gpus.unavailable.empty())
    return fault(
        name, "the driver is loaded, but CUDA sees no GPU: " + subject.gpus.unavailable,
        "check nvidia-smi, CUDA_VISIBLE_DEVICES and that the container was started with --gpus all; without "
        "GPUs set SHOAL_HEAP=host");
  return ok(name, fmt::format("{} GPUs; {}", subject.nvidia_gpus.size(), version));
}

/// True if a list such as "A=1;B=2" gives the key a value other than zero.
bool registry_has(std::string_view dwords, std::string_view key) {
  const std::size_t at = dwords.find(std::string(key) + "=");
  return at != std::string_view::npos && at + key.size() + 1 < dwords.size() &&
         dwords[at + key.size() + 1] != '0';
}

Finding peer_mapping(const Subject& subject) {
  const std::string name = "PeerMappingOverride";
  if (!subject.gpus_and_rdma())
    return not_applicable(name,
                          "GPUs that drive NICs need it: this host lacks GPUs or RDMA devices");
  if (!subject.system.exists(kParams))
    return not_applicable(name, fmt::format("{} is not there", kParams));
  const std::string dwords = subject.system.value(kParams, "RegistryDwords");
  if (registry_has(dwords, "PeerMappingOverride"))
    return ok(name, fmt::format("live: RegistryDwords is {}", dwords));
  return warning(
      name,
      fmt::format(
          "not set (RegistryDwords is {}): GPUs cannot ring a NIC's doorbell themselves; transfers "
          "that the host starts are not affected",
          dwords.empty() ? "empty" : dwords),
      std::string(kOptions));
}

Finding stream_memory_operations(const Subject& subject) {
  const std::string name = "EnableStreamMemOPs";
  if (subject.nvidia_gpus.empty()) return not_applicable(name, "no NVIDIA GPU");
  const auto& gpus = subject.gpus.gpus;
  if (!gpus.empty() &&
      std::all_of(gpus.begin(), gpus.end(), [](const auto& gpu) { return gpu.stream_memory_ops; }))
    return ok(name, "every GPU has 64-bit stream memory operations, regardless of the parameter");
  const std::string value = subject.system.value(kParams, "EnableStreamMemOPs");
  if (value == "1") return ok(name, "live: 1");
  return warning(
      name,
      fmt::format(
          "{}: drivers before CUDA 11.7, and NICs that GPUs drive, then have no 64-bit stream "
          "memory operations",
          value.empty() ? "not known" : "live: " + value),
      std::string(kOptions));
}

/// The options of module nvidia in all modprobe.d files: (file, "EnableStreamMemOPs", "1").
struct Option {
  std::string file, key, value;
};

std::vector<Option> options_of(const System& system) {
  std::vector<Option> options;
  for (const std::string folder :
       {"/usr/lib/modprobe.d/", "/lib/modprobe.d/", "/run/modprobe.d/", "/etc/modprobe.d/"})
    for (const std::string& file : system.list(folder)) {
      if (!file.ends_with(".conf")) continue;
      for (const std::string& line : lines_of(system.read(folder + file).value_or(""))) {
        const std::vector<std::string> words = words_of(trimmed(line));
        if (words.size() < 3 || words[0] != "options" || words[1] != "nvidia") continue;
        for (std::size_t i = 2; i < words.size(); ++i) {
          const std::size_t equal = words[i].find('=');
          if (!words[i].starts_with("NVreg_") || equal == std::string::npos) continue;
          std::string value = words[i].substr(equal + 1);
          std::erase(value, '"');
          options.push_back({folder + file, words[i].substr(6, equal - 6), std::move(value)});
        }
      }
    }
  return options;
}

Finding options_live(const Subject& subject) {
  const std::string name = "driver options";
  const std::vector<Option> options = options_of(subject.system);
  if (!subject.system.exists(kParams))
    return not_applicable(name, fmt::format("{} is not there", kParams));
  std::vector<std::string> late;
  for (const Option& option : options) {
    std::string live = subject.system.value(kParams, option.key);
    std::erase(live, '"');
    std::string wanted = option.value;
    while (wanted.ends_with(';')) wanted.pop_back();
    while (live.ends_with(';')) live.pop_back();
    // The driver does not show every parameter. A registry may hold more than one file sets.
    const bool shown =
        subject.system.read(kParams).value_or("").find(option.key + ":") != std::string::npos;
    if (shown && live.find(wanted) == std::string::npos)
      late.push_back(fmt::format("{} is {} in {}, but live {}", option.key, option.value,
                                 option.file, live.empty() ? "empty" : live));
  }
  if (late.empty())
    return ok(name, options.empty() ? "none in modprobe.d"
                                    : fmt::format("all {} of modprobe.d are live", options.size()));
  return warning(
      name, fmt::format("{}", fmt::join(late, "; ")),
      "reboot (after update-initramfs -u or dracut -f), or, with nothing using the GPUs: rmmod nvidia_uvm "
      "nvidia_drm nvidia_modeset nvidia_peermem nvidia; modprobe nvidia");
}

Finding peer_memory(const Subject& subject) {
  const std::string name = "GPUDirect RDMA";
  if (!subject.gpus_and_rdma())
    return not_applicable(name, "it needs GPUs and RDMA devices: this host lacks one of them");
  for (const std::string module : {"nvidia_peermem", "nv_peer_mem"})
    if (subject.system.module_loaded(module))
      return ok(name, fmt::format("module {} is loaded", module));
  const bool open =
      subject.system.read("/proc/driver/nvidia/version").value_or("").find("Open Kernel Module") !=
      std::string::npos;
  const auto [major, minor] = subject.system.kernel();
  const bool recent = major > 5 || (major == 5 && minor >= 12);
  if (open && recent)
    return ok(name, fmt::format("dma-buf: open kernel modules on Linux {}.{}", major, minor));
  return fault(
      name,
      fmt::format(
          "neither nvidia_peermem nor dma-buf ({}, Linux {}.{}): NICs cannot reach GPU memory",
          open ? "open kernel modules" : "the proprietary kernel modules", major, minor),
      "as root: modprobe nvidia_peermem; echo nvidia_peermem > /etc/modules-load.d/nvidia-peermem.conf. Or "
      "install the driver's open kernel modules on Linux 5.12 or later, which have dma-buf");
}

Finding gdrcopy(const Subject& subject) {
  const std::string name = "GDRCopy";
  if (!subject.gpus_and_rdma())
    return not_applicable(name, "libfabric and UCX use it between GPUs and NICs");
  const bool module = subject.system.module_loaded("gdrdrv");
  if (module && subject.system.exists("/dev/gdrdrv")) return ok(name, "gdrdrv is loaded");
  if (module)
    return warning(name, "gdrdrv is loaded, but /dev/gdrdrv is not there",
                   "in a container: --device /dev/gdrdrv");
  return warning(name,
                 "gdrdrv is not loaded: libfabric and UCX move small messages of GPUs more slowly",
                 "install GDRCopy (package gdrdrv-dkms) and modprobe gdrdrv");
}

Finding fabric_manager(const Subject& subject) {
  const std::string name = "NVSwitch";
  const std::size_t switches = subject.system.list("/proc/driver/nvidia-nvswitch/devices").size();
  if (switches == 0) return not_applicable(name, "no NVSwitch");
  if (subject.system.has_command("nv-fabricmanage"))
    return ok(name, fmt::format("{} switches; the fabric manager runs", switches));
  return warning(
      name,
      fmt::format(
          "{} switches, but no fabric manager is visible: without it CUDA fails with \"system not "
          "yet initialized\" (a container does not show the host's)",
          switches),
      "as root, on the host: systemctl enable --now nvidia-fabricmanager; its version must be the driver's");
}

/// "GPU 2: 12 of 18 active".
std::string link_state(const topology::NvLinkGpu& gpu, std::size_t index) {
  const auto active = std::ranges::count(gpu.links, true, &topology::NvLink::active);
  return fmt::format("GPU {}: {} of {} active", index, active, gpu.links.size());
}

Finding nvlink(const Subject& subject) {
  const std::string name = "NVLink";
  if (subject.described) return not_applicable(name, "only a driver reports it");
  const auto& gpus = subject.nvlinks.gpus;
  if (gpus.size() < 2) return not_applicable(name, "fewer than two GPUs");
  std::vector<std::string> unknown, down;
  std::size_t links = 0;
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    links += gpus[i].links.size();
    if (!gpus[i].unavailable.empty())
      unknown.push_back(fmt::format("GPU {}: {}", i, gpus[i].unavailable));
    else if (gpus[i].links.size() != gpus[0].links.size() ||
             !std::ranges::all_of(gpus[i].links, &topology::NvLink::active))
      down.push_back(link_state(gpus[i], i));
  }
  if (!subject.nvlinks.unavailable.empty())
    return not_applicable(name, "the links are not known: " + subject.nvlinks.unavailable);
  if (!down.empty())
    return warning(
        name, fmt::format("some links are down: {}", fmt::join(down, "; ")),
        "nvidia-smi nvlink --status and nvidia-smi -q -d ROW_REMAPPER,ECC; on NVSwitch systems "
        "check nvidia-fabricmanager; then reset the GPU or reseat its bridge");
  if (!unknown.empty())
    return not_applicable(name, fmt::format("not known: {}", fmt::join(unknown, "; ")));
  if (links == 0) return not_applicable(name, "these GPUs have no links: they use PCIe");
  return ok(name, fmt::format("all {} links of {} GPUs are active", links, gpus.size()));
}

Finding mps(const Subject& subject) {
  const std::string name = "MPS";
  const std::size_t gpus = subject.nvidia_gpus.size();
  if (gpus == 0) return not_applicable(name, "no NVIDIA GPU");
  if (static_cast<std::size_t>(subject.pes) <= gpus)
    return not_applicable(name, fmt::format("{} PEs have {} GPUs: one each", subject.pes, gpus));
  if (subject.system.exists(subject.mps_folder + "/control"))
    return ok(name, fmt::format("{} PEs share {} GPUs; the daemon is at {}", subject.pes, gpus,
                                subject.mps_folder));
  return warning(
      name,
      fmt::format(
          "{} PEs share {} GPUs, and no MPS daemon is at {}: PEs that are processes take turns",
          subject.pes, gpus, subject.mps_folder),
      "nvidia-cuda-mps-control -d, and the same CUDA_MPS_PIPE_DIRECTORY for all PEs; or PEs that are "
      "threads; or one PE per GPU");
}

}  // namespace

std::vector<Check> driver_checks() {
  return {gpu_driver,     peer_mapping, stream_memory_operations,
          options_live,   peer_memory,  gdrcopy,
          fabric_manager, nvlink,       mps};
}

}  // namespace shoal::info
