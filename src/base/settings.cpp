// SPDX-License-Identifier: Apache-2.0
#include "shoal/settings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/ascii.hpp"
#include "base/deepep_variables.hpp"
#include "base/nvshmem_variables.hpp"
#include "shoal/error.hpp"

namespace shoal {
namespace {

/// Variables that launchers set for the processes that they start, interpreted by
/// bootstrap/launcher/launcher.cpp.
constexpr std::string_view kLauncherVariables[] = {
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMIX_NAMESPACE",
    "PMIX_RANK",  // Open MPI
    "PMI_FD",
    "PMI_RANK",
    "PMI_SIZE",
    "HYDI_CONTROL_FD",  // hydra
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_PROCID",
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",  // Slurm
    "RANK",
    "WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",  // torch
};

[[noreturn]] void reject(std::string_view variable, std::string_view value,
                         const std::string& allowed) {
  throw Error(Code::invalid_argument,
              fmt::format("SHOAL-N106: {} is \"{}\"; allowed: {}", variable, value, allowed));
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

std::string range_of(const SettingInfo& info, std::string_view unit) {
  return fmt::format("{} from {} to {}", unit, info.minimum, info.maximum);
}

std::int64_t parse_number(const SettingInfo& info, std::string_view variable, std::string_view text,
                          std::string_view unit, std::optional<std::int64_t> value) {
  if (!value || *value < info.minimum || *value > info.maximum)
    reject(variable, text, range_of(info, unit));
  return *value;
}

std::string shown(std::string_view choice) {
  return choice.ends_with(':') ? fmt::format("{}TEXT", choice) : std::string(choice);
}

/// `text` as the table writes it (letter case), or nullopt when it is none of the choices.
std::optional<std::string> choose(const SettingInfo& info, std::string_view text) {
  if (info.choices.empty()) return std::string(text);
  for (const std::string_view choice : info.choices) {
    const bool open = choice.ends_with(':') && text.size() > choice.size();
    const std::string_view head = open ? text.substr(0, choice.size()) : text;
    if (choice.ends_with(':') == open && ascii_lower(head) == ascii_lower(choice))
      return fmt::format("{}{}", choice, text.substr(head.size()));
  }
  return std::nullopt;
}

void check_choice(const SettingInfo& info, std::string_view variable, const std::string& text) {
  if (choose(info, text) == text) return;
  std::vector<std::string> allowed;
  for (const std::string_view choice : info.choices) allowed.push_back(shown(choice));
  reject(variable, text, fmt::format("one of {}", fmt::join(allowed, ", ")));
}

void assign(const SettingInfo& info, Settings& settings, std::string_view variable,
            const std::string& text) {
  if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field)) {
    settings.** field = parse_number(info, variable, text, "an integer", parse_integer(text));
  } else if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
    auto value = parse_bytes(text);
    settings.** bytes = static_cast<std::size_t>(
        parse_number(info, variable, text, "bytes such as 512M or 2G,",
                     value ? std::optional<std::int64_t>(*value) : std::nullopt));
  } else if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field)) {
    settings.** time = std::chrono::milliseconds(
        parse_number(info, variable, text, "milliseconds", parse_integer(text)));
  } else {
    const auto choice = choose(info, text);
    if (!choice) check_choice(info, variable, text);
    settings.*std::get<std::string Settings::*>(info.field) = *choice;
  }
}

using Lookup = std::function<std::optional<std::string>(const std::string&)>;

std::optional<std::string> environment(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::map<std::string, std::string> launcher_variables(const Lookup& lookup) {
  std::map<std::string, std::string> found;
  for (const std::string_view variable : kLauncherVariables)
    if (auto text = lookup(std::string(variable))) found[std::string(variable)] = *text;
  return found;
}

}  // namespace

std::string_view type_of(const SettingInfo& info) {
  constexpr std::string_view names[] = {"integer", "bytes", "milliseconds", "text"};
  return names[info.field.index()];
}

std::string format_value(const SettingInfo& info, const Settings& settings) {
  if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field))
    return std::to_string(settings.**field);
  if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field))
    return std::to_string((settings.**time).count());
  if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
    std::size_t value = settings.**bytes;
    constexpr std::string_view units[] = {"", "K", "M", "G", "T"};
    std::size_t unit = 0;
    for (; unit < 4 && value != 0 && value % 1024 == 0; ++unit) value /= 1024;
    return fmt::format("{}{}", value, units[unit]);
  }
  const std::string& text = settings.*std::get<std::string Settings::*>(info.field);
  if (info.secret) return text.empty() ? "(not set)" : "(set)";
  return text;
}

std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + digits, value);
  if (digits == 0 || error != std::errc{} || end != text.data() + digits) return std::nullopt;
  std::string unit = ascii_lower(text.substr(digits));
  if (unit.ends_with("ib")) unit.resize(unit.size() - 2);
  if (unit.ends_with("b")) unit.resize(unit.size() - 1);
  constexpr std::string_view units = "kmgt";
  if (unit.size() > 1 || (unit.size() == 1 && units.find(unit[0]) == std::string_view::npos))
    return std::nullopt;
  if (unit.size() == 1) value = std::ldexp(value, 10 * (static_cast<int>(units.find(unit[0])) + 1));
  value = std::ceil(value);
  if (!(value < 0x1p63)) return std::nullopt;
  return static_cast<std::size_t>(value);
}

Settings Settings::from(
    const std::function<std::optional<std::string>(const std::string&)>& lookup) {
  Settings settings;
  for (const SettingInfo& info : settings_table()) {
    if (const auto text = lookup(std::string(info.name))) {
      assign(info, settings, info.name, *text);
      continue;
    }
    for (const std::string_view alias : nvshmem::aliases_of(info)) {
      const auto theirs = lookup(std::string(alias));
      if (!theirs) continue;
      const auto translated = nvshmem::translate(info, alias, *theirs, lookup);
      if (!translated.value) continue;
      assign(info, settings, alias, *translated.value);
      break;
    }
  }
  settings.launcher = launcher_variables(lookup);
  return settings;
}

Settings Settings::from_environment() {
  Settings settings = from(environment);
  std::vector<EnvironmentVariable> variables = inspect_environment();
  // Other programs have variables with these prefixes, too; worlds of deep_ep name them.
  std::erase_if(variables, [](const auto& one) { return deep_ep::is_variable(one.name); });
  settings.environment_warnings = shoal::environment_warnings(variables);
  return settings;
}

std::map<std::string, std::string> Settings::launcher_environment() {
  return launcher_variables(environment);
}

void Settings::validate() const {
  for (const SettingInfo& info : settings_table()) {
    if (auto* field = std::get_if<std::int64_t Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string(this->**field), "an integer", this->**field);
    } else if (auto* bytes = std::get_if<std::size_t Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string(this->**bytes), "bytes",
                   static_cast<std::int64_t>(this->**bytes));
    } else if (auto* time = std::get_if<std::chrono::milliseconds Settings::*>(&info.field)) {
      parse_number(info, info.name, std::to_string((this->**time).count()), "milliseconds",
                   (this->**time).count());
    } else {
      check_choice(info, info.name, this->*std::get<std::string Settings::*>(info.field));
    }
  }
}

}  // namespace shoal
