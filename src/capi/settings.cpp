// SPDX-License-Identifier: Apache-2.0
// settings.cpp: settings by name.
#include <algorithm>
#include <cstring>
#include <optional>
#include <string>

#include "base/nvshmem_variables.hpp"
#include "capi/objects.hpp"

namespace shoal::capi {
namespace {

bool accepts(const SettingInfo& info, std::string_view name) {
  return info.name == name || nvshmem::is_alias(info, name);
}

const SettingInfo& setting_named(std::string_view name) {
  for (const SettingInfo& info : settings_table())
    if (accepts(info, name)) return info;
  fail(Code::invalid_argument,
       "SHOAL-N886: there is no setting {}; shoal-info --settings lists them", name);
}

/// Parses and checks `text` as from_environment does. A name of NVSHMEM may set several settings.
void assign(Settings& settings, const std::string& name, const std::string& text) {
  const SettingInfo& first = setting_named(name);
  const Settings defaults, parsed = Settings::from([&](const std::string& asked) {
                             return asked == name ? std::optional(text) : std::nullopt;
                           });
  for (const SettingInfo& info : settings_table())
    if (&info == &first ||
        (accepts(info, name) && format_value(info, parsed) != format_value(info, defaults)))
      std::visit([&](auto field) { settings.*field = parsed.*field; }, info.field);
}

}  // namespace
}  // namespace shoal::capi

using namespace shoal::capi;

shoal_status shoal_settings_create(shoal_settings** settings) {
  return guarded([&] {
    shoal_settings*& out = required(settings, "shoal_settings_create", "settings");
    out = new shoal_settings;
  });
}

shoal_status shoal_settings_from_environment(shoal_settings** settings) {
  return guarded([&] {
    shoal_settings*& out = required(settings, "shoal_settings_from_environment", "settings");
    out = new shoal_settings{shoal::Settings::from_environment()};
  });
}

shoal_status shoal_settings_set(shoal_settings* settings, const char* name, const char* value) {
  const char* call = "shoal_settings_set";
  return guarded([&] {
    assign(required(settings, call, "settings").value, &required(name, call, "name"),
           &required(value, call, "value"));
  });
}

shoal_status shoal_settings_get(const shoal_settings* settings, const char* name, char* text,
                                size_t capacity) {
  const char* call = "shoal_settings_get";
  return guarded([&] {
    const shoal::SettingInfo& info = setting_named(&required(name, call, "name"));
    const std::string value = shoal::format_value(info, required(settings, call, "settings").value);
    required(text, call, "text");
    shoal::require(value.size() < capacity, shoal::Code::invalid_argument,
                   "SHOAL-N884: {}: room for {} bytes; the value of {} needs {}", call, capacity,
                   name, value.size() + 1);
    std::memcpy(text, value.c_str(), value.size() + 1);
  });
}

shoal_status shoal_settings_destroy(shoal_settings* settings) {
  return destroy(settings);
}
