// SPDX-License-Identifier: Apache-2.0
// Settings from the environment: each line NAME=VALUE of the input is a variable. Accepted settings
// are valid, and their printed values are accepted again.
#include <map>
#include <optional>
#include <string>

#include "fuzz.hpp"
#include "shoal/settings.hpp"

using namespace shoal;

namespace {

std::map<std::string, std::string> parse_lines(std::string_view text) {
  std::map<std::string, std::string> variables;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (const std::size_t equals = line.find('='); equals != std::string_view::npos)
      variables[std::string(line.substr(0, equals))] = std::string(line.substr(equals + 1));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return variables;
}

Settings settings_from(const std::map<std::string, std::string>& variables) {
  return Settings::from([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text = fuzz::text_of(data, size);
  if (const auto bytes = parse_bytes(text))
    fuzz::check(*bytes <= static_cast<std::size_t>(INT64_MAX), "sizes are below 2^63");
  std::optional<Settings> settings;
  fuzz::allow_error([&] { settings = settings_from(parse_lines(text)); });
  if (!settings) return 0;
  settings->validate();  // throws if `from` has accepted an invalid value
  std::map<std::string, std::string> printed;
  for (const auto& info : settings_table())
    if (!info.secret) printed[std::string(info.name)] = format_value(info, *settings);
  const Settings again = settings_from(printed);
  for (const auto& info : settings_table())
    if (!info.secret)
      fuzz::check(format_value(info, again) == format_value(info, *settings),
                  "a printed value is read back");
  return 0;
}
