// SPDX-License-Identifier: Apache-2.0
// settings.hpp: every setting with its value and where that comes from.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::info {

struct SettingRow {
  std::string name, alias, value, origin, meaning;
};

/// Of this process's environment. Throws like Settings::from_environment.
std::vector<SettingRow> collect_settings();
std::string to_text(const std::vector<SettingRow>& settings);
nlohmann::json to_json(const std::vector<SettingRow>& settings);

/// docs/reference/settings.md.
std::string settings_page();

}  // namespace shoal::info
