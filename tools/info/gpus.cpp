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
  return {memory::describe_gpus(), mps ? mps_folder() : ""};
}

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
        yes_or_no(gpu.has_vmm), yes_or_no(gpu.has_fd), yes_or_no(gpu.has_fabric),
        yes_or_no(gpu.stream_memory_ops), yes_or_no(gpu.multicast));
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
                    {"nvlink_multicast", gpu.multicast},
                    {"stream_memory_operations", gpu.stream_memory_ops},
                    {"peers", gpu.peers}});
  return {{"gpus", list},
          {"unavailable", gpus.report.unavailable},
          {"driver_version", gpus.report.driver_version},
          {"mps", gpus.mps}};
}

}  // namespace shoal::info
