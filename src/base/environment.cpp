// SPDX-License-Identifier: Apache-2.0
// environment.cpp: which SHOAL_* and NVSHMEM_* variables of a process have an effect.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/nvshmem_variables.hpp"
#include "shoal/settings.hpp"

namespace shoal {
namespace {

using Variables = std::map<std::string, std::string>;

// Read by Shoal's scripts and tests rather than by the library.
constexpr std::string_view kOfScripts[] = {"SHOAL_BIN_DIR", "SHOAL_SANITIZER_FILTER"};
constexpr std::string_view kOfTests = "SHOAL_TEST_";
/// Of the emulated NIC, which reads them itself (docs/guide/test-rdma-without-a-nic.md).
constexpr std::string_view kOfEmulator = "SHOAL_EMULATOR_";

const SettingInfo* find(std::string_view SettingInfo::* name, std::string_view value) {
  for (const SettingInfo& info : settings_table())
    if (info.*name == value) return &info;
  return nullptr;
}

/// Levenshtein distance: insertions, deletions and substitutions from `a` to `b`.
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

/// The setting whose name is nearest to `name`, if it is near enough to be a slip of the pen.
std::string_view nearest_setting(std::string_view name) {
  std::string_view nearest;
  std::size_t least = 1 + name.size() / 4;
  for (const SettingInfo& info : settings_table())
    if (const std::size_t d = distance(name, info.name); d < least) {
      least = d;
      nearest = info.name;
    }
  return nearest;
}

EnvironmentVariable inspect_shoal(const std::string& name) {
  if (find(&SettingInfo::name, name) != nullptr) return {name, VariableUse::used, name, ""};
  if (name.starts_with(kOfTests) || name.starts_with(kOfEmulator) ||
      std::find(std::begin(kOfScripts), std::end(kOfScripts), name) != std::end(kOfScripts))
    return {name, VariableUse::used, "", ""};
  const std::string_view nearest = nearest_setting(name);
  return {name, VariableUse::unknown, "",
          nearest.empty() ? "Shoal has no such setting (docs/reference/settings.md)"
                          : fmt::format("Shoal has no such setting; did you mean {}?", nearest)};
}

EnvironmentVariable inspect_nvshmem(const std::string& name, const Variables& variables) {
  const SettingInfo* const info = find(&SettingInfo::alias, name);
  if (info == nullptr && name == "NVSHMEM_BOOTSTRAP_PMI" && variables.contains("NVSHMEM_BOOTSTRAP"))
    return {name, VariableUse::used, "SHOAL_BOOTSTRAP", ""};
  if (info == nullptr)
    return nvshmem::is_known(name)
               ? EnvironmentVariable{name, VariableUse::ignored, "", "Shoal has no equivalent"}
               : EnvironmentVariable{name, VariableUse::unknown, "", "not a variable of NVSHMEM"};
  const std::string setting(info->name);
  if (variables.contains(setting))
    return {name, VariableUse::ignored, setting, fmt::format("{} is set as well", setting)};
  const auto lookup = [&](const std::string& other) -> std::optional<std::string> {
    const auto found = variables.find(other);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const auto translated = nvshmem::translate(*info, variables.at(name), lookup);
  if (translated.warning.empty()) return {name, VariableUse::used, setting, ""};
  return {name, translated.value ? VariableUse::used : VariableUse::ignored, setting,
          fmt::format("\"{}\": {}", variables.at(name), translated.warning)};
}

}  // namespace

std::vector<EnvironmentVariable> inspect_environment(const Variables& variables) {
  std::vector<EnvironmentVariable> result;
  for (const auto& [name, value] : variables) {
    if (name.starts_with("SHOAL_")) result.push_back(inspect_shoal(name));
    if (name.starts_with("NVSHMEM_")) result.push_back(inspect_nvshmem(name, variables));
  }
  return result;
}

std::vector<EnvironmentVariable> inspect_environment() {
  Variables variables;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos)
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return inspect_environment(variables);
}

std::vector<std::string> environment_warnings(std::span<const EnvironmentVariable> variables) {
  std::vector<std::string> warnings, without_effect;
  for (const EnvironmentVariable& variable : variables) {
    if (variable.note.empty()) continue;
    if (variable.use == VariableUse::ignored && variable.setting.empty())
      without_effect.push_back(variable.name);
    else
      warnings.push_back(fmt::format("{}: {}", variable.name, variable.note));
  }
  if (!without_effect.empty())
    warnings.push_back(fmt::format("set for NVSHMEM, without effect on Shoal: {}",
                                   fmt::join(without_effect, ", ")));
  return warnings;
}

}  // namespace shoal
