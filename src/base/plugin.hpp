// SPDX-License-Identifier: Apache-2.0
// plugin.hpp: shared libraries that are loaded when they are needed: network transports and
// bootstraps. Each depends on a library of its own; when that is missing, only the plug-in is.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal {

/// A symbol of a plug-in, or why there is none. Plug-ins stay loaded until the process ends: their
/// code may be on the stack of any thread.
struct Plugin {
  void* symbol = nullptr;
  std::string file;    ///< the file that was loaded, or the last one that was tried
  std::string reason;  ///< why there is no symbol; empty when there is one
};

/// The folders that load_plugin searches, in order.
std::vector<std::string> plugin_folders(const Settings& settings);

/// The file "libshoal_<name>.so" that load_plugin would load; empty without one.
std::string find_plugin(const Settings& settings, std::string_view name);

/// Loads `symbol` of "libshoal_<name>.so" from SHOAL_PLUGIN_DIR when that is set, else from the
/// folder "shoal" next to libshoal, else from the folder of libshoal.
Plugin load_plugin(const Settings& settings, std::string_view name, const char* symbol);

/// Loads `symbol` of a file that the user names. The dynamic linker searches for a name without a
/// slash.
Plugin load_plugin_file(const std::string& file, const char* symbol);

}  // namespace shoal
