// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <nanobind/stl/string.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "check.hpp"

namespace shoal::python {
namespace {

namespace nb = nanobind;

using Overrides = std::map<std::string, std::string>;  // by name of the environment variable

/// A key of the dict that is no setting: whether NVSHMEM_* variables count. Default: True.
constexpr const char* kNvshmemVariables = "nvshmem_variables";

std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
  return result;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  return result;
}

/// The environment variable of a setting. Throws Error{invalid_argument} where there is none.
std::string variable_of(const std::string& field) {
  const std::string name = "SHOAL_" + upper(field);
  std::string fields;
  for (const SettingInfo& info : settings_table()) {
    if (info.name == name || info.name == name + "_MS") return std::string(info.name);
    fields += (fields.empty() ? "" : ", ") + lower(info.name.substr(std::size("SHOAL_") - 1));
  }
  fail(Code::invalid_argument, "no setting \"{}\"; there are {}", field, fields);
}

Overrides overrides_from(nb::handle given) {
  Overrides overrides;
  if (given.is_none()) return overrides;
  for (const auto& [key, value] : nb::cast<nb::dict>(given)) {
    const auto field = nb::cast<std::string>(key);
    if (field == kNvshmemVariables) continue;
    const std::string name = variable_of(field);
    if (!value.is_none()) overrides[name] = nb::cast<std::string>(nb::str(value));
  }
  return overrides;
}

bool reads_nvshmem_variables(nb::handle given) {
  if (given.is_none()) return true;
  const auto options = nb::cast<nb::dict>(given);
  return !options.contains(kNvshmemVariables) || nb::cast<bool>(options[kNvshmemVariables]);
}

bool is_of_nvshmem(const std::string& name) {
  return name.starts_with("NVSHMEM_");
}

}  // namespace

Settings settings_from(nb::handle given) {
  const Overrides overrides = overrides_from(given);
  const bool nvshmem = reads_nvshmem_variables(given);
  Settings settings = Settings::from([&](const std::string& name) -> std::optional<std::string> {
    if (const auto found = overrides.find(name); found != overrides.end()) return found->second;
    const char* const value = nvshmem || !is_of_nvshmem(name) ? std::getenv(name.c_str()) : nullptr;
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  std::vector<EnvironmentVariable> variables = inspect_environment();
  if (!nvshmem)
    std::erase_if(variables, [](const auto& variable) { return is_of_nvshmem(variable.name); });
  settings.environment_warnings = environment_warnings(variables);
  return settings;
}

}  // namespace shoal::python
