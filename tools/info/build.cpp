// SPDX-License-Identifier: Apache-2.0
#include "info/build.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/plugin.hpp"
#include "bootstrap/launcher/launcher.hpp"
#include "info/build_facts.hpp"
#include "info/text.hpp"
#include "transport/heap_transport.hpp"
#include "transport/module.hpp"

namespace shoal::info {
namespace {

Module inspect_module(const Settings& settings, std::string_view name) {
  const Plugin plugin =
      load_plugin(settings, fmt::format("transport_{}", name), transport::kModuleSymbol);
  Module module{std::string(name), plugin.file, "", plugin.reason};
  if (plugin.symbol == nullptr) return module;
  const auto& table = *static_cast<const transport::Module*>(plugin.symbol);
  if (table.version == transport::kModuleVersion) {
    module.library = table.library;
    if (table.probe != nullptr) {
      transport::Probe probe = table.probe(settings);
      if (!probe.library.empty()) module.library = std::move(probe.library);
      module.missing = std::move(probe.missing);
      if (!module.missing.empty()) module.library.clear();
    }
  } else {
    module.missing =
        fmt::format("it belongs to another build of Shoal (table version {}, expected {})",
                    table.version, transport::kModuleVersion);
  }
  return module;
}

}  // namespace

Build collect_build(const Settings& settings) {
  Build build{kVersion, kCommit, kBuildType, kCompiler, kCuda, {"self", "shm"}, {}, {}, {}, {}};
  if (!transport::heap_factories().empty()) build.transports.emplace_back("cuda_p2p");
  for (const std::string_view name : transport::network_names())
    build.networks.push_back(inspect_module(settings, name));
  for (const std::string& folder : plugin_folders(settings)) {
    std::error_code error;
    if (!std::filesystem::is_directory(folder, error)) continue;
    const std::string real = std::filesystem::canonical(folder, error);
    if (std::find(build.plugin_folders.begin(), build.plugin_folders.end(), real) !=
        build.plugin_folders.end())
      continue;
    build.plugin_folders.push_back(real);
    for (const auto& entry : std::filesystem::directory_iterator(real, error)) {
      const std::string name = entry.path().filename();
      const bool plugin =
          name.starts_with("libshoal_transport_") || name.starts_with("libshoal_bootstrap_");
      if (plugin && name.ends_with(".so")) build.plugin_files.push_back(entry.path());
    }
  }
  std::sort(build.plugin_files.begin(), build.plugin_files.end());
  build.launcher = bootstrap::describe_launcher(settings);
  return build;
}

std::string to_text(const Build& build) {
  std::vector<std::vector<std::string>> rows = {
      {"version", build.version},
      {"commit", build.commit},
      {"build type", build.type},
      {"compiler", build.compiler},
      {"CUDA", build.cuda},
      {"transports", fmt::format("{}", fmt::join(build.transports, ", "))},
  };
  for (const Module& module : build.networks)
    rows.push_back({"network " + module.name,
                    module.missing.empty() ? fmt::format("{} ({})", module.library, module.file)
                                           : "not available: " + module.missing});
  for (const std::string& file : build.plugin_files) rows.push_back({"plug-in", file});
  rows.push_back({"launcher", build.launcher});
  return "Build\n" + table(rows);
}

nlohmann::json to_json(const Build& build) {
  nlohmann::json networks = nlohmann::json::array();
  for (const Module& module : build.networks)
    networks.push_back({{"name", module.name},
                        {"file", module.file},
                        {"library", module.library},
                        {"missing", module.missing}});
  return {{"version", build.version},
          {"commit", build.commit},
          {"build_type", build.type},
          {"compiler", build.compiler},
          {"cuda", build.cuda},
          {"transports", build.transports},
          {"networks", networks},
          {"launcher", build.launcher},
          {"plugin_folders", build.plugin_folders},
          {"plugin_files", build.plugin_files}};
}

}  // namespace shoal::info
