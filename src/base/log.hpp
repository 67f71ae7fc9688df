// SPDX-License-Identifier: Apache-2.0
// log.hpp: log messages on standard error or in SHOAL_LOG_FILE. The back end (spdlog) is included
// in log.cpp alone.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "shoal/settings.hpp"

namespace shoal::log {

enum class Level { trace, debug, info, warn, error, off };

/// Sets level and file from the settings. The first world of a process decides the file; later
/// calls change the level only.
void configure(const Settings& settings);

bool enabled(Level level) noexcept;
void write(Level level, const std::string& message);
/// Logs each of these warnings unless this process has logged the same text before.
void warn_once(const std::vector<std::string>& warnings);

template <typename... Args>
void print(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (enabled(level)) write(level, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  print(Level::debug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  print(Level::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  print(Level::warn, format, std::forward<Args>(args)...);
}

}  // namespace shoal::log
