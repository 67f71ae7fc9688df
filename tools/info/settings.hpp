// SPDX-License-Identifier: Apache-2.0
// settings.hpp: every setting with its value and its origin.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::info {

struct SettingRow {
  std::string name, alias, value, origin, meaning;
};

/// Reads the environment of this process. Throws like Settings::from_environment.
std::vector<SettingRow> collect_settings();
std::string to_text(const std::vector<SettingRow>& settings);
nlohmann::json to_json(const std::vector<SettingRow>& settings);

/// The text of docs/reference/settings.md.
std::string settings_page();

}  // namespace shoal::info
