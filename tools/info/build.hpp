// SPDX-License-Identifier: Apache-2.0
// build.hpp: facts about this build of Shoal: version, compiler, modules, launcher.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::info {

/// A shared library that Shoal loads on demand.
struct Module {
  std::string name;     ///< "ofi"
  std::string file;     ///< the file found, else the first path searched
  std::string library;  ///< the library that it uses: "libfabric 1.17.0"
  std::string missing;  ///< why it cannot be used; empty if it can
};

struct Build {
  std::string version, commit, type, compiler;
  std::string cuda;                     ///< "13.0.88 for 90a", or "none"
  std::vector<std::string> transports;  ///< built into the library
  std::vector<Module> networks;
  std::vector<std::string> plugin_folders;  ///< existing folders only
  std::vector<std::string> plugin_files;    ///< all plug-ins in plugin_folders
  std::string launcher;                     ///< how PEs would find each other here, and why
};

Build collect_build(const Settings& settings);
std::string to_text(const Build& build);
nlohmann::json to_json(const Build& build);

}  // namespace shoal::info
