// SPDX-License-Identifier: Apache-2.0
// environment.cpp: which variables of a process that are meant for Shoal, NVSHMEM or DeepEP have
// an effect.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "base/deepep_variables.hpp"
#include "base/nearest.hpp"
#include "base/nvshmem_variables.hpp"
#include "shoal/settings.hpp"

namespace shoal {
namespace {

using Variables = std::map<std::string, std::string>;

// Read by Shoal's scripts and tests rather than by the library.
constexpr std::string_view kOfScripts[] = {"SHOAL_BIN_DIR", "SHOAL_SANITIZER_FILTER"};
constexpr std::string_view kOfTests = "SHOAL_TEST_";
/// Prefix of the variables of the emulated NIC, which reads them itself
/// (docs/guide/test-rdma-without-a-nic.md).
constexpr std::string_view kOfEmulator = "SHOAL_EMULATOR_";

/// Returns the one of `names` that the user of `name` may have meant: the nearest one, if it is
/// near enough to be a slip of the pen, or one whose last words it ends with; empty: none.
std::string nearest(std::string_view name, std::span<const std::string> names) {
  std::string found = nearest_spelling(name, names);
  // NVSHMEM_IBGDA_QP_DEPTH is NVSHMEM_QP_DEPTH with a word too many.
  for (const std::string& known : names) {
    const std::string_view last = std::string_view(known).substr(known.find('_'));
    if (found.empty() && std::ranges::count(last, '_') > 1 && name.ends_with(last)) found = known;
  }
  return found;
}

std::string did_you_mean(const std::string& note, const std::string& nearest) {
  return nearest.empty() ? note : fmt::format("{}; did you mean {}?", note, nearest);
}

EnvironmentVariable inspect_shoal(const std::string& name) {
  std::vector<std::string> settings;
  for (const SettingInfo& info : settings_table()) settings.emplace_back(info.name);
  if (std::ranges::find(settings, name) != settings.end())
    return {name, VariableUse::used, name, ""};
  if (name.starts_with(kOfTests) || name.starts_with(kOfEmulator) ||
      std::find(std::begin(kOfScripts), std::end(kOfScripts), name) != std::end(kOfScripts))
    return {name, VariableUse::used, "", ""};
  const std::string meant = nearest(name, settings);
  const std::string note = "Shoal has no such setting";
  return {name, VariableUse::unknown, "",
          meant.empty() ? note + " (docs/reference/settings.md)" : did_you_mean(note, meant)};
}

/// The effect of a variable that is an alias of the settings `rows`.
EnvironmentVariable inspect_alias(const std::string& name, const Variables& variables,
                                  const std::vector<const SettingInfo*>& rows) {
  const auto lookup = [&](const std::string& other) -> std::optional<std::string> {
    const auto found = variables.find(other);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  EnvironmentVariable result{name, VariableUse::ignored, "", ""};
  std::string reached, replaced;  // settings that the value sets; that another variable sets
  for (const SettingInfo* const info : rows) {
    const std::string setting(info->name);
    if (variables.contains(setting)) {
      if (replaced.empty()) replaced = setting;
      continue;
    }
    const auto translated = nvshmem::translate(*info, name, variables.at(name), lookup);
    if (translated.value) reached += (reached.empty() ? "" : ", ") + setting;
    if (!translated.warning.empty())
      result.note = fmt::format("\"{}\": {}", variables.at(name), translated.warning);
  }
  if (reached.empty() && !replaced.empty())
    result.note = fmt::format("{} is set as well", replaced);
  if (!reached.empty() || result.note.empty()) {
    result.use = VariableUse::used;
    result.setting = reached;  // none where the value stands for the default
  } else {
    result.setting = replaced.empty() ? std::string(rows.front()->name) : replaced;
  }
  return result;
}

EnvironmentVariable inspect_nvshmem(const std::string& name, const Variables& variables) {
  std::vector<const SettingInfo*> rows;
  for (const SettingInfo& info : settings_table())
    if (nvshmem::is_alias(info, name)) rows.push_back(&info);
  if (!rows.empty()) return inspect_alias(name, variables, rows);
  EnvironmentVariable result = nvshmem::inspect_without_setting(name, variables.at(name));
  if (result.use == VariableUse::unknown)
    result.note = did_you_mean(result.note, nearest(name, nvshmem::known_names()));
  return result;
}

EnvironmentVariable inspect_deep_ep(const std::string& name) {
  EnvironmentVariable result = deep_ep::inspect(name);
  if (result.use == VariableUse::unknown)
    result.note = did_you_mean(result.note, nearest(name, deep_ep::known_names()));
  return result;
}

}  // namespace

std::vector<EnvironmentVariable> inspect_environment(const Variables& variables) {
  std::vector<EnvironmentVariable> result;
  for (const auto& [name, value] : variables) {
    if (name.starts_with("SHOAL_")) result.push_back(inspect_shoal(name));
    if (name.starts_with("NVSHMEM_")) result.push_back(inspect_nvshmem(name, variables));
    if (deep_ep::is_variable(name)) result.push_back(inspect_deep_ep(name));
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
  std::vector<std::string> warnings, without_effect, of_deep_ep;
  for (const EnvironmentVariable& variable : variables) {
    if (variable.note.empty()) continue;
    const bool of_nvshmem = variable.name.starts_with("NVSHMEM_");
    if (variable.use == VariableUse::ignored && variable.setting.empty())
      (of_nvshmem ? without_effect : of_deep_ep).push_back(variable.name);
    else
      warnings.push_back(fmt::format("{}: {}", variable.name, variable.note));
  }
  if (!without_effect.empty())
    warnings.push_back(fmt::format("set for NVSHMEM, without effect on Shoal: {}",
                                   fmt::join(without_effect, ", ")));
  if (!of_deep_ep.empty())
    warnings.push_back(
        fmt::format("set for DeepEP, without effect on Shoal: {} (shoal-info --doctor has reasons)",
                    fmt::join(of_deep_ep, ", ")));
  return warnings;
}

}  // namespace shoal
