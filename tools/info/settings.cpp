// SPDX-License-Identifier: Apache-2.0
#include "info/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

namespace shoal::info {
namespace {

/// Where a setting's value comes from: its own variable, its alias, or the default.
std::string origin(const SettingInfo& info) {
  if (std::getenv(std::string(info.name).c_str()) != nullptr) return "environment";
  if (!info.alias.empty() && std::getenv(std::string(info.alias).c_str()) != nullptr)
    return fmt::format("environment ({})", info.alias);
  return "default";
}

std::string allowed(const SettingInfo& info) {
  if (!info.choices.empty()) return fmt::format("{}", fmt::join(info.choices, ", "));
  if (type_of(info) == "text") return "any text";
  return fmt::format("{} to {}", info.minimum, info.maximum);
}

}  // namespace

std::vector<SettingRow> collect_settings() {
  const Settings settings = Settings::from_environment();
  std::vector<SettingRow> rows;
  for (const SettingInfo& info : settings_table())
    rows.push_back({std::string(info.name), std::string(info.alias), format_value(info, settings),
                    origin(info), std::string(info.meaning)});
  return rows;
}

std::string to_text(const std::vector<SettingRow>& settings) {
  std::string text = "Settings\n";
  for (const SettingRow& row : settings)
    text += fmt::format("  {:<28} {:<14} {:<12} {}\n", row.name,
                        row.value.empty() ? "\"\"" : row.value, row.origin, row.meaning);
  return text;
}

nlohmann::json to_json(const std::vector<SettingRow>& settings) {
  nlohmann::json rows = nlohmann::json::array();
  for (const SettingRow& row : settings)
    rows.push_back({{"name", row.name},
                    {"alias", row.alias},
                    {"value", row.value},
                    {"origin", row.origin},
                    {"meaning", row.meaning}});
  return rows;
}

std::string settings_page() {
  std::string page =
      "# Settings\n\nGenerated from the table in `src/base/settings.cpp` by `./run settings`; a test keeps the two "
      "equal. Every setting is "
      "an environment variable;\nprograms may fill `shoal::Settings` themselves in place of it. Where the first name "
      "is not set, the NVSHMEM "
      "name is accepted.\nA value that is not allowed is an error that names the variable, its value and what is "
      "allowed.\n";
  const Settings defaults;
  std::string_view scope;
  for (const SettingInfo& info : settings_table()) {
    if (info.scope != scope) {
      scope = info.scope;
      page += fmt::format(
          "\n## {}\n\n| name | also accepted | type | default | allowed | meaning |\n|---|---|---|---|---|---|\n",
          scope);
    }
    const std::string value = format_value(info, defaults);
    page += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", info.name,
                        info.alias.empty() ? "" : fmt::format("`{}`", info.alias), type_of(info),
                        value.empty() ? "(empty)" : value, allowed(info), info.meaning);
  }
  return page;
}

}  // namespace shoal::info
