// SPDX-License-Identifier: Apache-2.0
// plugin_bootstrap.hpp: worlds whose PEs learn from a plug-in (shoal/bootstrap_plugin.h) who they
// are and where to meet.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "shoal/bootstrap.hpp"
#include "shoal/bootstrap_plugin.h"

namespace shoal::bootstrap {

/// The plug-in, its library or its launcher is missing, so another bootstrap may be tried. The code
/// is Code::unsupported.
class PluginAbsent : public Error {
 public:
  explicit PluginAbsent(const std::string& message) : Error(Code::unsupported, message) {}
};

/// A plug-in's table, loaded and checked.
struct LoadedPlugin {
  const shoal_bootstrap_plugin* table = nullptr;
  std::string file;
};

/// Loads one of Shoal's plug-ins ("mpi") or a user's ("plugin:FILE"). Throws PluginAbsent if a
/// plug-in of Shoal is not installed, and Error{unsupported} if a file is missing, is no
/// plug-in, or has another version.
LoadedPlugin load_bootstrap_plugin(std::string_view name, const Settings& settings);

/// Joins the launcher's job. Collective. Throws Error{timeout}, PluginAbsent or Error{system} with
/// the plug-in's reason, according to its status.
std::unique_ptr<Bootstrap> connect_plugin(std::string_view name, const Settings& settings);

}  // namespace shoal::bootstrap
