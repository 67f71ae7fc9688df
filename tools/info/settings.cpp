// SPDX-License-Identifier: Apache-2.0
#include "info/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>

namespace shoal::info {
namespace {

/// "A`, `B" for "A B".
std::string spaced(std::string_view names) {
  std::string text;
  for (const char letter : names)
    text += letter == ' ' ? std::string("`, `") : std::string(1, letter);
  return text;
}

/// True if a list with ", " between its words has this word.
bool has_word(std::string_view list, std::string_view word) {
  return fmt::format(", {},", list).find(fmt::format(" {},", word)) != std::string::npos;
}

/// The origin of a setting's value: its own variable, an alias, or the default.
std::string origin(const SettingInfo& info, std::span<const EnvironmentVariable> variables) {
  if (std::getenv(std::string(info.name).c_str()) != nullptr) return "environment";
  for (const EnvironmentVariable& variable : variables)
    if (variable.use == VariableUse::used && has_word(variable.setting, info.name))
      return fmt::format("environment ({})", variable.name);
  return "default";
}

std::string allowed(const SettingInfo& info) {
  if (!info.choices.empty()) return fmt::format("{}", fmt::join(info.choices, ", "));
  if (type_of(info) == "text") return "any text";
  return fmt::format("{} to {}", info.minimum, info.maximum);
}

/// The rows of the page with the advanced settings or with the others.
std::string page_rows(bool advanced) {
  constexpr std::string_view kHead =
      "\n| name | also accepted | type | default | allowed | meaning |\n|---|---|---|---|---|---|\n";
  const Settings defaults;
  std::string page;
  std::string_view scope;
  for (const SettingInfo& info : settings_table()) {
    if (info.advanced != advanced) continue;
    if (info.scope != scope) page += fmt::format("\n### {}\n{}", info.scope, kHead);
    scope = info.scope;
    const std::string value = format_value(info, defaults);
    page +=
        fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", info.name,
                    info.alias.empty() ? "" : fmt::format("`{}`", spaced(info.alias)),
                    type_of(info), value.empty() ? "(empty)" : value, allowed(info), info.meaning);
  }
  return page;
}

}  // namespace

std::vector<SettingRow> collect_settings() {
  const Settings settings = Settings::from_environment();
  const std::vector<EnvironmentVariable> variables = inspect_environment();
  std::vector<SettingRow> rows;
  for (const SettingInfo& info : settings_table())
    rows.push_back({std::string(info.name), std::string(info.alias), format_value(info, settings),
                    origin(info, variables), std::string(info.meaning)});
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
  return "# Settings\n\n"
         "Every setting is an environment variable; a program may fill `shoal::Settings` instead.\n"
         "A value outside the allowed range is an error that names the variable, the value and the\n"
         "range. Unknown `SHOAL_*` variables produce a warning with the nearest name.\n\n"
         "The NVSHMEM names in the second column are used where the SHOAL name is not set. They accept\n"
         "every value that NVSHMEM accepts. Numbers outside Shoal's range are brought into it. NVSHMEM\n"
         "variables without an equivalent have no effect and share one warning; `shoal-info --doctor`\n"
         "lists each variable as used, ignored or not understood, and so it does with those of DeepEP.\n\n"
         "This page is generated from `src/base/settings_table.cpp` by `./run settings`.\n\n"
         "## General\n" +
         page_rows(false) +
         "\n## Advanced\n\n"
         "The defaults suit all programs; these settings are for measurements.\n" +
         page_rows(true);
}

}  // namespace shoal::info
