// SPDX-License-Identifier: Apache-2.0
#include "info/gpus.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "info/text.hpp"

namespace shoal::info {

std::string mps_folder() {
  const char* const pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  return pipe != nullptr ? pipe : "/tmp/nvidia-mps";
}

Gpus collect_gpus() {
  std::error_code error;
  const bool mps = std::filesystem::exists(mps_folder() + "/control", error);
  Gpus gpus{memory::describe_gpus(), mps ? mps_folder() : ""};
  std::vector<std::string> addresses;
  for (const memory::GpuInfo& gpu : gpus.report.gpus) addresses.push_back(gpu.pci);
  gpus.nvlinks = topology::read_nvlinks(addresses);
  return gpus;
}

namespace {

std::string fabric_text(const memory::GpuInfo& gpu) {
  return gpu.fabric_refused.empty() ? yes_or_no(gpu.has_fabric)
                                    : fmt::format("no ({})", gpu.fabric_refused);
}

nlohmann::json nvlinks_json(const topology::NvLinks& links, const std::string& pci) {
  constexpr std::string_view kPeers[] = {"GPU", "processor", "switch", "unknown"};
  nlohmann::json list = nlohmann::json::array();
  const topology::NvLinkGpu* const gpu = links.of(pci);
  if (gpu == nullptr) return list;
  for (const topology::NvLink& link : gpu->links)
    list.push_back({{"active", link.active},
                    {"peer", link.active ? kPeers[static_cast<std::size_t>(link.peer)] : ""},
                    {"pci", link.pci},
                    {"version", link.version}});
  return list;
}

std::string why_unknown(const topology::NvLinks& links, const std::string& pci) {
  const topology::NvLinkGpu* const gpu = links.of(pci);
  return gpu != nullptr ? gpu->unavailable : links.unavailable;
}

}  // namespace

std::string to_text(const Gpus& gpus) {
  const memory::GpuReport& report = gpus.report;
  if (!report.unavailable.empty()) return fmt::format("GPUs: none: {}\n", report.unavailable);
  std::string text = fmt::format("GPUs: {}, CUDA driver {}.{}\n", report.gpus.size(),
                                 report.driver_version / 1000, report.driver_version % 1000 / 10);
  for (std::size_t i = 0; i < report.gpus.size(); ++i) {
    const auto& gpu = report.gpus[i];
    text +=
        fmt::format("  GPU {}: {}, {}, {:.1f} GiB, {} SMs, compute capability {}.{}\n", i, gpu.name,
                    gpu.pci, static_cast<double>(gpu.memory) / (1 << 30), gpu.multiprocessors,
                    gpu.compute_capability / 10, gpu.compute_capability % 10);
    text += fmt::format(
        "         virtual memory: {}; handles: fd {}, fabric {}; 64-bit stream memory operations: {}; NVLink "
        "multicast: {} (not used)\n",
        yes_or_no(gpu.has_vmm), yes_or_no(gpu.has_fd), fabric_text(gpu),
        yes_or_no(gpu.stream_memory_ops), yes_or_no(gpu.multicast));
    text += fmt::format("         NVLink: {}\n", topology::describe(gpus.nvlinks, gpu.pci));
  }
  text += "  peer access, from the GPU of the row:\n";
  for (std::size_t i = 0; i < report.gpus.size(); ++i)
    text += fmt::format("  GPU {}: {}\n", i, fmt::join(report.gpus[i].peers, ", "));
  text += fmt::format("  several PEs per GPU: yes; {}\n",
                      gpus.mps.empty()
                          ? "threads run at the same time, processes by turns (no MPS daemon)"
                          : fmt::format("processes run at the same time by MPS ({})", gpus.mps));
  return text;
}

nlohmann::json to_json(const Gpus& gpus) {
  nlohmann::json list = nlohmann::json::array();
  for (const memory::GpuInfo& gpu : gpus.report.gpus)
    list.push_back({{"name", gpu.name},
                    {"pci", gpu.pci},
                    {"memory_bytes", gpu.memory},
                    {"multiprocessors", gpu.multiprocessors},
                    {"compute_capability", gpu.compute_capability},
                    {"virtual_memory", gpu.has_vmm},
                    {"handle_fd", gpu.has_fd},
                    {"handle_fabric", gpu.has_fabric},
                    {"fabric_refused", gpu.fabric_refused},
                    {"nvlink_multicast", gpu.multicast},
                    {"nvlinks", nvlinks_json(gpus.nvlinks, gpu.pci)},
                    {"nvlinks_unavailable", why_unknown(gpus.nvlinks, gpu.pci)},
                    {"stream_memory_operations", gpu.stream_memory_ops},
                    {"peers", gpu.peers}});
  return {{"gpus", list},
          {"unavailable", gpus.report.unavailable},
          {"driver_version", gpus.report.driver_version},
          {"mps", gpus.mps}};
}

}  // namespace shoal::info
