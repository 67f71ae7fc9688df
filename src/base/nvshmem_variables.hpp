// SPDX-License-Identifier: Apache-2.0
// nvshmem_variables.hpp: environment variables of NVSHMEM, as Shoal understands them.
//
// A job that sets variables for NVSHMEM must start with Shoal too. Names and values that NVSHMEM
// accepts never fail; those without an equivalent have no effect and produce a warning. Source: the
// "Environment Variables" chapter of NVSHMEM's documentation.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::nvshmem {

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

struct Translation {
  std::optional<std::string> value;  ///< in Shoal's notation; nullopt: the setting's default
  std::string warning;               ///< what is lost; empty: nothing
};

/// The NVSHMEM variables that stand for a setting, those with precedence first.
std::vector<std::string_view> aliases_of(const SettingInfo& info);
bool is_alias(const SettingInfo& info, std::string_view variable);

/// A boolean of NVSHMEM that is set: false if its first character is one of 0NnFf.
bool is_true(std::string_view text);

/// Translates `text`, the value of the NVSHMEM variable `alias`, into a value of the Shoal setting
/// `info`. `lookup` reads other variables that decide with this one. One NVSHMEM variable may stand
/// for several settings.
/// Values that NVSHMEM itself rejects are returned unchanged: the setting's own check rejects them.
Translation translate(const SettingInfo& info, std::string_view alias, const std::string& text,
                      const Lookup& lookup);

/// The effect of a variable "NVSHMEM_..." that is no alias of a setting.
EnvironmentVariable inspect_without_setting(const std::string& name, const std::string& text);

/// True if a boolean variable of NVSHMEM is set, and true, in this process.
bool is_on(const char* variable);

/// The variables that Shoal understands, a line each, with the values of the settings that they
/// set: what NVSHMEM_INFO prints.
std::string describe(const Settings& settings);

/// Every variable of NVSHMEM.
std::vector<std::string> known_names();

}  // namespace shoal::nvshmem
