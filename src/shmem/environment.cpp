// SPDX-License-Identifier: Apache-2.0
#include "shmem/environment.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "base/check.hpp"

namespace shoal::shmem {
namespace {

/// The value of SHMEM_<name> or, without it, SMA_<name>, with the variable that has it.
struct Variable {
  std::string name;
  std::optional<std::string> value;
};

Variable find(const Lookup& lookup, const std::string& name) {
  for (const char* prefix : {"SHMEM_", "SMA_"})
    if (auto value = lookup(prefix + name)) return {prefix + name, std::move(value)};
  return {"SHMEM_" + name, std::nullopt};
}

/// The largest timeout of the settings: OpenSHMEM has no deadlines.
constexpr std::chrono::hours kUnlimited{24};

}  // namespace

std::optional<std::size_t> parse_symmetric_size(std::string_view text) {
  const std::string copy(text);
  if (copy.empty() || (std::isdigit(static_cast<unsigned char>(copy[0])) == 0 && copy[0] != '.'))
    return std::nullopt;
  std::size_t digits = 0;
  bool point = false, any = false;
  for (; digits < copy.size(); ++digits) {
    const auto c = static_cast<unsigned char>(copy[digits]);
    if (std::isdigit(c) != 0) {
      any = true;
    } else if (c == '.' && !point) {
      point = true;
    } else {
      break;
    }
  }
  if (!any) return std::nullopt;
  // strtod() would expect the decimal separator of the program's locale.
  double value = 0;
  if (std::from_chars(copy.data(), copy.data() + digits, value).ec != std::errc{})
    return std::nullopt;
  if (digits < copy.size()) {
    const std::size_t power = std::string_view("kmgtKMGT").find(copy[digits]);
    if (power == std::string_view::npos) return std::nullopt;
    value = std::ldexp(value, 10 * (static_cast<int>(power % 4) + 1));
  }
  if (value >= std::ldexp(1.0, 62)) return std::nullopt;
  return static_cast<std::size_t>(value);
}

Environment read_environment(const Lookup& lookup) {
  Environment environment;
  environment.settings = Settings::from(lookup);
  Settings& settings = environment.settings;
  // Loads and stores of the program reach its symmetric memory.
  settings.heap = "host";
  if (!lookup("SHOAL_TIMEOUT_MS")) settings.timeout = kUnlimited;
  if (const auto [name, value] = find(lookup, "SYMMETRIC_SIZE"); value) {
    const auto bytes = parse_symmetric_size(*value);
    require(
        bytes.has_value(), Code::invalid_argument,
        "SHOAL-N829: {} is \"{}\"; allowed: a number of bytes with an optional suffix K, M, G or "
        "T, such as 512M or 1.5G",
        name, *value);
    const SettingInfo& info =
        *std::ranges::find(settings_table(), "SHOAL_SYMMETRIC_SIZE", &SettingInfo::name);
    const std::int64_t most = info.maximum / 2;  // the program's static data come on top
    require(*bytes <= static_cast<std::size_t>(most), Code::invalid_argument,
            "SHOAL-N829: {} is \"{}\"; allowed: 0 to {} bytes", name, *value, most);
    environment.size_from = fmt::format("{} is \"{}\"", name, *value);
    settings.symmetric_size = *bytes;
  }
  if (find(lookup, "DEBUG").value && !lookup("SHOAL_LOG")) settings.log = "debug";
  environment.print_version = find(lookup, "VERSION").value.has_value();
  environment.print_info = find(lookup, "INFO").value.has_value();
  return environment;
}

Environment read_environment() {
  Environment environment = read_environment([](const std::string& name) {
    const char* const value = std::getenv(name.c_str());
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  });
  environment.settings.environment_warnings = Settings::from_environment().environment_warnings;
  return environment;
}

}  // namespace shoal::shmem
