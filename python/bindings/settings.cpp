// SPDX-License-Identifier: Apache-2.0
#include "settings.hpp"

#include <nanobind/stl/string.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "arguments.hpp"
#include "check.hpp"
#include "docs.hpp"

namespace shoal::python {
namespace {

namespace nb = nanobind;

using Overrides = std::map<std::string, std::string>;  // by name of the environment variable

// Keys of the dict that are no settings: whether NVSHMEM_* variables count (default: True), and
// whether variables of DeepEP without an effect are logged (default: False).
constexpr const char* kNvshmemVariables = "nvshmem_variables";
constexpr const char* kDeepEpVariables = "deep_ep_variables";

// ASCII letters only: Python sets a locale, and in a Turkish one std::tolower('I') is no 'i'.
std::string upper(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    if (letter >= 'a' && letter <= 'z') letter = static_cast<char>(letter - 'a' + 'A');
  return result;
}

std::string lower(std::string_view text) {
  std::string result(text);
  for (char& letter : result)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  return result;
}

/// The lower-case name of a setting without SHOAL_, and without _MS: in Python, durations are in
/// seconds.
std::string field_of(const SettingInfo& info) {
  std::string field = lower(info.name.substr(std::size("SHOAL_") - 1));
  if (type_of(info) == "milliseconds" && field.ends_with("_ms")) field.resize(field.size() - 3);
  return field;
}

/// The setting of a key. Throws Error{invalid_argument} where there is none.
const SettingInfo& setting_of(const std::string& field) {
  const std::string name = "SHOAL_" + upper(field);
  std::string fields;
  for (const SettingInfo& info : settings_table()) {
    if (info.name == name || info.name == name + "_MS") return info;
    fields += (fields.empty() ? "" : ", ") + field_of(info);
  }
  fail(Code::invalid_argument, "no setting \"{}\"; there are {}", field, fields);
}

/// The milliseconds of a duration that is given in seconds.
std::string milliseconds_text(const std::string& field, nb::handle value) {
  constexpr long kSuspicious = 1000;
  if (PyLong_Check(value.ptr()) != 0 && nb::cast<double>(value) >= kSuspicious) {
    const std::string text = nb::cast<std::string>(nb::str(value));
    fail(Code::invalid_argument,
         "settings: {} is {}; durations are in seconds, and this looks like milliseconds: write "
         "{}.0 or a datetime.timedelta for seconds, \"{}_ms\": {} for milliseconds",
         field, text, text, field, text);
  }
  return std::to_string(duration_of("settings", field, value).count());
}

/// The text of a value, as in an environment variable.
std::string text_of(const SettingInfo& info, const std::string& field, nb::handle value) {
  if (type_of(info) == "milliseconds" && !field.ends_with("_ms"))
    return milliseconds_text(field, value);
  if (nb::isinstance<nb::bool_>(value) && type_of(info) == "integer")
    return nb::cast<bool>(value) ? "1" : "0";
  if (type_of(info) == "bytes" && PyFloat_Check(value.ptr()) != 0)
    return nb::cast<std::string>(nb::str(nb::int_(value)));
  if (!nb::isinstance<nb::str>(value) && PyIndex_Check(value.ptr()) == 0)
    wrong_type("settings", field, value, type_of(info) == "text" ? "a str" : "an int or a str");
  return nb::cast<std::string>(nb::str(value));
}

/// The dict of a settings= argument, which is a mapping or None.
nb::dict dict_from(nb::handle given) {
  if (given.is_none()) return {};
  if (nb::isinstance<nb::dict>(given)) return nb::borrow<nb::dict>(given);
  if (!nb::hasattr(given, "keys"))
    wrong_type("World", "settings", given, "None, a dict by setting, or a shoal.Settings");
  nb::dict copy;
  copy.update(nb::borrow(given));
  return copy;
}

Overrides overrides_from(const nb::dict& given) {
  Overrides overrides;
  for (const auto& [key, value] : given) {
    const auto field = argument<std::string>("settings", "key", key);
    if (field == kNvshmemVariables || field == kDeepEpVariables) continue;
    const SettingInfo& info = setting_of(field);
    if (!value.is_none()) overrides[std::string(info.name)] = text_of(info, field, value);
  }
  return overrides;
}

bool flag(const nb::dict& given, const char* key, bool otherwise) {
  return given.contains(key) ? argument<bool>("settings", key, given[key]) : otherwise;
}

bool is_of_nvshmem(const std::string& name) {
  return name.starts_with("NVSHMEM_");
}

}  // namespace

Settings settings_from(nb::handle argument) {
  const nb::dict given = dict_from(argument);
  const Overrides overrides = overrides_from(given);
  const bool nvshmem = flag(given, kNvshmemVariables, true);
  const bool deep_ep = flag(given, kDeepEpVariables, false);
  Settings settings = Settings::from([&](const std::string& name) -> std::optional<std::string> {
    if (const auto found = overrides.find(name); found != overrides.end()) return found->second;
    const char* const value = nvshmem || !is_of_nvshmem(name) ? std::getenv(name.c_str()) : nullptr;
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  std::vector<EnvironmentVariable> variables = inspect_environment();
  std::erase_if(variables, [&](const auto& variable) {
    if (is_of_nvshmem(variable.name)) return !nvshmem;
    return !deep_ep && !variable.name.starts_with("SHOAL_");
  });
  settings.environment_warnings = environment_warnings(variables);
  return settings;
}

namespace {

nb::object value_of(const SettingInfo& info, const Settings& settings) {
  if (const auto* number = std::get_if<std::int64_t Settings::*>(&info.field))
    return nb::int_(settings.**number);
  if (const auto* bytes = std::get_if<std::size_t Settings::*>(&info.field))
    return nb::int_(settings.**bytes);
  if (const auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field))
    return nb::float_(std::chrono::duration<double>(settings.**time).count());
  return nb::cast(format_value(info, settings));  // not the text of a secret
}

nb::list fields() {
  nb::list all;
  for (const SettingInfo& info : settings_table())
    if (!info.secret) all.append(field_of(info));
  return all;
}

/// The settings that differ from the defaults.
std::string describe(const Settings& settings) {
  const Settings defaults;
  std::string text;
  for (const SettingInfo& info : settings_table()) {
    const std::string value = format_value(info, settings);
    if (value == format_value(info, defaults)) continue;
    const bool time = type_of(info) == "milliseconds", word = type_of(info) == "text";
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", field_of(info),
                        time   ? nb::cast<std::string>(nb::str(value_of(info, settings)))
                        : word ? fmt::format("'{}'", value)
                               : value);
  }
  return fmt::format("shoal.Settings({})", text);
}

}  // namespace

void bind_settings(nb::module_& module) {
  nb::class_<Settings>(
      module, "Settings",
      "The settings of a world, a mapping by the names of docs/reference/settings.md in lower case "
      "without SHOAL_. Durations are seconds, sizes are bytes. repr() shows those that differ from "
      "the defaults."_doc)
      .def(
          "__init__",
          [](Settings* self, nb::handle given) { new (self) Settings(settings_from(given)); },
          nb::arg("settings") = nb::none(),
          "The settings of the environment, overridden by a mapping."_doc)
      .def(
          "keys", [](const Settings&) { return fields(); },
          "The names, without those of secrets."_doc)
      .def("__iter__", [](const Settings&) { return nb::iter(fields()); })
      .def("__len__", [](const Settings&) { return nb::len(fields()); })
      .def("__contains__",
           [](const Settings&, nb::handle name) {
             return PySequence_Contains(fields().ptr(), name.ptr()) == 1;
           })
      .def(
          "__getitem__",
          [](const Settings& self, const std::string& name) {
            const SettingInfo& info = setting_of(name);
            if (info.secret) throw nb::key_error(name.c_str());
            return value_of(info, self);
          },
          nb::arg("name"))
      .def("__repr__", &describe);
}

}  // namespace shoal::python
