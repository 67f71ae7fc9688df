// SPDX-License-Identifier: Apache-2.0
// plugin.cpp: dlopen and the folders that are searched.
#include "base/plugin.hpp"

#include <dlfcn.h>
#include <signal.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <vector>

#include "base/check.hpp"
#include "base/classic_locale.hpp"

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

/// Restores the signal handlers of the process when it is destroyed. Some libraries install
/// handlers when they are loaded. libinfinipath, a dependency of libfabric, makes SIGTERM and
/// SIGINT exit with status 1; UCX handles SIGHUP. The program alone decides what a signal does.
class KeepSignalHandlers {
 public:
  KeepSignalHandlers() : lock_(mutex()) {
    for (int signal = 1; signal < kEnd; ++signal)
      known_[at(signal)] = sigaction(signal, nullptr, &before_[at(signal)]) == 0;
  }
  ~KeepSignalHandlers() {
    for (int signal = 1; signal < kEnd; ++signal) {
      struct sigaction now{};
      if (known_[at(signal)] && sigaction(signal, nullptr, &now) == 0 &&
          now.sa_sigaction != before_[at(signal)].sa_sigaction)
        sigaction(signal, &before_[at(signal)], nullptr);
    }
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  static constexpr int kEnd = 32;  // of the standard signals
  static std::size_t at(int signal) { return static_cast<std::size_t>(signal); }
  /// Two threads that load libraries must not take each other's handlers for the program's.
  static std::mutex& mutex() {
    static std::mutex the;
    return the;
  }

  const std::lock_guard<std::mutex> lock_;
  std::array<struct sigaction, kEnd> before_{};
  std::array<bool, kEnd> known_{};
};

/// dlopen without its effect on signal handlers. RTLD_LOCAL: two plug-ins may depend on different
/// libraries of the same name. `reason` receives the linker's message on failure.
void* open_library(const std::string& file, std::string& reason) {
  const KeepSignalHandlers keep;
  const ClassicLocale classic;  // for libraries that read their settings when they are loaded
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const why = dlerror();
    reason = fmt::format("{} cannot be loaded: {}", file, why != nullptr ? why : "no reason given");
  }
  return library;
}

std::string file_name(std::string_view plugin) {
  return fmt::format("libshoal_{}.so", plugin);
}

}  // namespace

Plugin load_plugin_file(const std::string& file, const char* symbol) {
  Plugin plugin;
  plugin.file = file;
  void* const library = open_library(file, plugin.reason);
  if (library == nullptr) return plugin;
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

std::string find_plugin(const Settings& settings, std::string_view name) {
  for (const std::filesystem::path folder : plugin_folders(settings)) {
    const std::filesystem::path file = folder / file_name(name);
    std::error_code error;
    if (std::filesystem::exists(file, error)) return file;
  }
  return {};
}

Plugin load_plugin(const Settings& settings, std::string_view name, const char* symbol) {
  if (const std::string file = find_plugin(settings, name); !file.empty())
    return load_plugin_file(file, symbol);
  const std::string library = file_name(name);
  Plugin plugin;
  plugin.file = std::filesystem::path(plugin_folders(settings).front()) / library;
  plugin.reason = fmt::format(
      "SHOAL-N104: {} is not there: this build has no {}, or SHOAL_PLUGIN_DIR (\"{}\") names "
      "another folder",
      plugin.file, library, settings.plugin_dir);
  return plugin;
}

}  // namespace shoal
