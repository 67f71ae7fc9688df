// SPDX-License-Identifier: Apache-2.0
// plugin.hpp: shared libraries that are loaded when they are needed, such as network transports and
// bootstraps: each brings a library of its own along, whose absence is a sentence and not a failure
// of everything else.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal {

/// What a symbol of a plug-in turned out to be. Plug-ins stay loaded until the process ends: code
/// of them may be on the stack of any thread.
struct Plugin {
  void* symbol = nullptr;
  std::string file;    ///< that was loaded, or the last one that was tried
  std::string reason;  ///< why there is no symbol; empty where there is one
};

/// The folders that load_plugin looks through, in order.
std::vector<std::string> plugin_folders(const Settings& settings);

/// Symbol `symbol` of "libshoal_<name>.so", looked for in SHOAL_PLUGIN_DIR where that is set, else
/// in the folder "shoal" beside libshoal, then beside libshoal itself.
Plugin load_plugin(const Settings& settings, std::string_view name, const char* symbol);

/// Symbol `symbol` of a file that the user names; a name without a slash is searched for as the
/// dynamic linker does.
Plugin load_plugin_file(const std::string& file, const char* symbol);

}  // namespace shoal
