// SPDX-License-Identifier: Apache-2.0
// build.hpp: what this build of Shoal is, which modules it finds, and who has started it.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::info {

/// A shared library that Shoal loads when it needs it.
struct Module {
  std::string name;     ///< "ofi"
  std::string file;     ///< that was found, or the first one that was looked for
  std::string library;  ///< what it stands on: "libfabric 1.17.0"
  std::string missing;  ///< why it cannot be used; empty where it can
};

struct Build {
  std::string version, commit, type, compiler;
  std::string cuda;                     ///< "13.0.88 for 90a", or "none"
  std::vector<std::string> transports;  ///< that are part of the library
  std::vector<Module> networks;
  std::vector<std::string> plugin_folders;  ///< that exist
  std::vector<std::string> plugin_files;    ///< all plug-ins in them
  std::string launcher;                     ///< how PEs would find each other here, and why
};

Build collect_build(const Settings& settings);
std::string to_text(const Build& build);
nlohmann::json to_json(const Build& build);

}  // namespace shoal::info
