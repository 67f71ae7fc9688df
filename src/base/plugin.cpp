// SPDX-License-Identifier: Apache-2.0
// plugin.cpp: dlopen and the folders that are searched.
#include "base/plugin.hpp"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>
#include <vector>

#include "base/check.hpp"

namespace shoal {
namespace {

/// The folder of the library (or static program) that this code is part of.
std::filesystem::path own_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&load_plugin_file), &info) == 0 ||
      info.dli_fname == nullptr)
    return {};
  std::error_code error;
  const auto file = std::filesystem::canonical(info.dli_fname, error);
  return error ? std::filesystem::path() : file.parent_path();
}

}  // namespace

Plugin load_plugin_file(const std::string& file, const char* symbol) {
  Plugin plugin;
  plugin.file = file;
  // RTLD_LOCAL: two plug-ins may depend on different libraries with the same names.
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    plugin.reason =
        fmt::format("{} cannot be loaded: {}", file, why != nullptr ? why : "no reason given");
    return plugin;
  }
  plugin.symbol = dlsym(library, symbol);
  if (plugin.symbol == nullptr)
    plugin.reason = fmt::format("{} is no plug-in for this: it has no symbol {}", file, symbol);
  return plugin;
}

std::vector<std::string> plugin_folders(const Settings& settings) {
  if (!settings.plugin_dir.empty()) return {settings.plugin_dir};
  const auto own = own_folder();
  // The last is for programs that Shoal is linked into statically.
  return {own / "shoal", own, own / ".." / "lib" / "shoal"};
}

Plugin load_plugin(const Settings& settings, std::string_view name, const char* symbol) {
  const std::string library = fmt::format("libshoal_{}.so", name);
  const std::vector<std::string> folders = plugin_folders(settings);
  for (const std::filesystem::path folder : folders) {
    std::error_code error;
    if (std::filesystem::exists(folder / library, error))
      return load_plugin_file(folder / library, symbol);
  }
  Plugin plugin;
  plugin.file = std::filesystem::path(folders.front()) / library;
  plugin.reason = fmt::format(
      "{} is not there: this build has no {}, or SHOAL_PLUGIN_DIR (\"{}\") names another folder",
      plugin.file, library, settings.plugin_dir);
  return plugin;
}

}  // namespace shoal
