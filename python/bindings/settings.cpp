// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <nanobind/stl/string.h>

#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>

#include "check.hpp"

namespace shoal::python {
namespace {

namespace nb = nanobind;

using Overrides = std::map<std::string, std::string>;  // by name of the environment variable

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
    const std::string name = variable_of(nb::cast<std::string>(key));
    if (!value.is_none()) overrides[name] = nb::cast<std::string>(nb::str(value));
  }
  return overrides;
}

}  // namespace

Settings settings_from(nb::handle given) {
  const Overrides overrides = overrides_from(given);
  return Settings::from([&](const std::string& name) -> std::optional<std::string> {
    if (const auto found = overrides.find(name); found != overrides.end()) return found->second;
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
}

}  // namespace shoal::python
