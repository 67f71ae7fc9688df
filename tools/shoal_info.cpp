// shoal-info: what this build is, which GPUs there are and what they can do, how the machine is laid out and which NICs
// its PEs use, and which settings are in force. (Connectivity follows with the network transports.)
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "memory/device.hpp"
#include "shoal/error.hpp"
#include "shoal/settings.hpp"
#include "shoal_info_topology.hpp"
#include "transport/transport.hpp"

namespace {

/// Where a setting's value comes from: its own variable, its alias, or the default.
std::string origin(const shoal::SettingInfo& info) {
  if (std::getenv(std::string(info.name).c_str()) != nullptr) return "environment";
  if (!info.alias.empty() && std::getenv(std::string(info.alias).c_str()) != nullptr)
    return fmt::format("environment ({})", info.alias);
  return "default";
}

void print_settings() {
  const shoal::Settings settings = shoal::Settings::from_environment();
  for (const shoal::SettingInfo& info : shoal::settings_table()) {
    const std::string value = format_value(info, settings);
    fmt::print("{:<28} {:<14} {:<12} {}\n", info.name, value.empty() ? "\"\"" : value, origin(info), info.meaning);
  }
}

std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

/// The GPUs of this machine: what requirement D11 asks to detect, and who reaches whom.
void print_gpus() {
  const shoal::memory::GpuReport report = shoal::memory::describe_gpus();
  if (!report.unavailable.empty()) {
    fmt::print("GPUs: none: {}\n", report.unavailable);
    return;
  }
  fmt::print("GPUs: {}, CUDA driver {}.{}\n", report.gpus.size(), report.driver_version / 1000,
             report.driver_version % 1000 / 10);
  for (std::size_t i = 0; i < report.gpus.size(); ++i) {
    const auto& gpu = report.gpus[i];
    fmt::print("  GPU {}: {}, {}, {:.1f} GiB, {} SMs, compute capability {}.{}\n", i, gpu.name, gpu.pci,
               static_cast<double>(gpu.memory) / (1 << 30), gpu.multiprocessors, gpu.compute_capability / 10,
               gpu.compute_capability % 10);
    fmt::print(
        "         virtual memory: {}; handles: fd {}, fabric {}; 64-bit stream memory operations: {}; NVLink "
        "multicast: {} (not used)\n",
        yes_or_no(gpu.has_vmm), yes_or_no(gpu.has_fd), yes_or_no(gpu.has_fabric), yes_or_no(gpu.stream_memory_ops),
        yes_or_no(gpu.multicast));
  }
  fmt::print("  peer access, from the GPU of the row:\n");
  for (std::size_t i = 0; i < report.gpus.size(); ++i)
    fmt::print("  GPU {}: {}\n", i, fmt::join(report.gpus[i].peers, ", "));
  const char* const pipe = std::getenv("CUDA_MPS_PIPE_DIRECTORY");
  const std::string directory = pipe != nullptr ? pipe : "/tmp/nvidia-mps";
  const bool mps = std::filesystem::exists(directory + "/control");
  fmt::print("  several PEs per GPU: yes; {}\n",
             mps ? fmt::format("processes run at the same time by MPS ({})", directory)
                 : "threads run at the same time, processes by turns (no MPS daemon)");
}

std::string allowed(const shoal::SettingInfo& info) {
  if (!info.choices.empty()) return fmt::format("{}", fmt::join(info.choices, ", "));
  if (type_of(info) == "text") return "any text";
  return fmt::format("{} to {}", info.minimum, info.maximum);
}

/// docs/settings.md.
void print_page() {
  fmt::print(
      "# Settings\n\nGenerated from the table in `src/base/settings.cpp` by `./run settings`; a test keeps the two "
      "equal. Every setting is "
      "an environment variable;\nprograms may fill `shoal::Settings` themselves in place of it. Where the first name "
      "is not set, the NVSHMEM "
      "name is accepted.\nA value that is not allowed is an error that names the variable, its value and what is "
      "allowed.\n");
  const shoal::Settings defaults;
  std::string_view scope;
  for (const shoal::SettingInfo& info : shoal::settings_table()) {
    if (info.scope != scope) {
      scope = info.scope;
      fmt::print(
          "\n## {}\n\n| name | also accepted | type | default | allowed | meaning |\n|---|---|---|---|---|---|\n",
          scope);
    }
    const std::string value = format_value(info, defaults);
    fmt::print("| `{}` | {} | {} | {} | {} | {} |\n", info.name,
               info.alias.empty() ? "" : fmt::format("`{}`", info.alias), type_of(info),
               value.empty() ? "(empty)" : value, allowed(info), info.meaning);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app{"Shows what this build of Shoal is and which settings are in force."};
  bool settings = false, page = false, topology = false;
  std::string machine;
  std::int32_t pes = 0;
  app.add_flag("--settings", settings, "Every setting with its value, where it comes from and what it means");
  app.add_flag("--settings-page", page, "The page docs/settings.md");
  CLI::Option* const asked = app.add_flag("--topology", topology, "GPUs, NICs, distances, and the NICs of every PE");
  app.add_option("--machine", machine, "With --topology: a described machine (hwloc's XML) in the place of this one")
      ->needs(asked);
  app.add_option("--pes", pes,
                 "With --topology, on a machine without GPUs: PEs of all jobs together (SHOAL_LOCAL_SIZE)")
      ->needs(asked)
      ->check(CLI::Range(1, 1'000'000));
  app.set_version_flag("-n,--version", SHOAL_VERSION);
  CLI11_PARSE(app, argc, argv);
  if (page) {
    print_page();
  } else {
    fmt::print("Shoal {}\n", SHOAL_VERSION);
    if (settings) {
      print_settings();
    } else if (topology) {
      print_topology(machine, pes);
    } else {
      print_gpus();
      const bool with_cuda = !shoal::transport::heap_factories().empty();
      fmt::print("Transports of this build: self, shm{}. Try --topology, --settings.\n", with_cuda ? ", cuda_p2p" : "");
    }
  }
  return 0;
} catch (const shoal::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
