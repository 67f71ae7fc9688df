// shoal-info: what this build is and which settings are in force. (Topology and connectivity follow with the network
// transports.)
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <cstdlib>

#include "shoal/error.hpp"
#include "shoal/settings.hpp"

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
  bool settings = false, page = false;
  app.add_flag("--settings", settings, "Every setting with its value, where it comes from and what it means");
  app.add_flag("--settings-page", page, "The page docs/settings.md");
  app.set_version_flag("-n,--version", SHOAL_VERSION);
  CLI11_PARSE(app, argc, argv);
  if (page) {
    print_page();
  } else {
    fmt::print("Shoal {}\n", SHOAL_VERSION);
    if (settings)
      print_settings();
    else
      fmt::print("Try --settings. Transports of this build: self, shm.\n");
  }
  return 0;
} catch (const shoal::Error& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
