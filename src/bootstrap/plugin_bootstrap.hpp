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

/// The plug-in, or the library or launcher that it stands on, is not there: another one may do.
/// Code::unsupported.
class PluginAbsent : public Error {
 public:
  explicit PluginAbsent(const std::string& message) : Error(Code::unsupported, message) {}
};

/// A plug-in's table, loaded and checked.
struct LoadedPlugin {
  const shoal_bootstrap_plugin* table = nullptr;
  std::string file;
};

/// `name` is that of a plug-in of Shoal's ("mpi") or "plugin:FILE". Throws PluginAbsent where there
/// is no such file, and Error{unsupported} for one that is no plug-in or of another version.
LoadedPlugin load_bootstrap_plugin(std::string_view name, const Settings& settings);

/// Collective over the launcher's job. Throws as the plug-in's status says: Error{timeout},
/// PluginAbsent, or Error{system}, with its sentence.
std::unique_ptr<Bootstrap> connect_plugin(std::string_view name, const Settings& settings);

}  // namespace shoal::bootstrap
