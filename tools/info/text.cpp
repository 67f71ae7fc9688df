// SPDX-License-Identifier: Apache-2.0
#include "info/text.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace shoal::info {

std::string table(const std::vector<std::vector<std::string>>& rows, std::size_t indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) {
      if (widths.size() <= i) widths.push_back(0);
      widths[i] = std::max(widths[i], row[i].size());
    }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i + 1 < row.size() ? fmt::format("{:<{}}  ", row[i], widths[i]) : row[i];
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string wrap(std::string_view text, std::size_t width, std::size_t indent) {
  std::string result;
  std::size_t column = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(' ', at), text.size());
    const std::string_view word = text.substr(at, end - at);
    if (column > 0 && column + 1 + word.size() > width) {
      result += "\n" + std::string(indent, ' ');
      column = 0;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    at = end + 1;
  }
  return result;
}

std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

std::string count_text(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; unit + 1 < std::size(units) && value >= 1024; ++unit) value /= 1024;
  const bool whole =
      value == static_cast<double>(static_cast<std::uint64_t>(value)) || value >= 100;
  return whole ? fmt::format("{:.0f} {}", value, units[unit])
               : fmt::format("{:.1f} {}", value, units[unit]);
}

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (c == '&')
      result += "&amp;";
    else if (c == '"')
      result += "&quot;";
    else
      result += c;
  }
  return result;
}

std::string ranges(const std::vector<std::int32_t>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i;
    while (end + 1 < numbers.size() && numbers[end + 1] == numbers[end] + 1) ++end;
    parts.push_back(end == i ? fmt::format("{}", numbers[i])
                             : fmt::format("{}-{}", numbers[i], numbers[end]));
    i = end + 1;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

}  // namespace shoal::info
