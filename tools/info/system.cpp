// SPDX-License-Identifier: Apache-2.0
#include "info/system.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>

namespace shoal::info {

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1));
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.emplace_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (std::size_t at = text.find_first_not_of(" \t"); at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(" \t", at), text.size());
    words.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(" \t", end);
  }
  return words;
}

std::filesystem::path System::at(std::string_view path) const {
  return root_ / path.substr(path.find_first_not_of('/'));
}

std::optional<std::string> System::read(std::string_view path) const {
  std::ifstream stream(at(path), std::ios::binary);
  if (!stream) return std::nullopt;
  std::string content{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) return std::nullopt;
  return content;
}

std::string System::line(std::string_view path) const {
  const std::string content = read(path).value_or("");
  return trimmed(content.substr(0, content.find('\n')));
}

bool System::exists(std::string_view path) const {
  std::error_code error;
  return std::filesystem::exists(at(path), error);
}

std::vector<std::string> System::list(std::string_view path) const {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(at(path), error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

std::string System::value(std::string_view path, std::string_view key) const {
  for (const std::string& line : lines_of(read(path).value_or(""))) {
    if (!line.starts_with(key)) continue;
    const std::string rest = trimmed(line.substr(key.size()));
    if (rest.starts_with(':') || rest.starts_with('=')) return trimmed(rest.substr(1));
  }
  return "";
}

bool System::module_loaded(std::string_view name) const {
  for (const std::string& line : lines_of(read("/proc/modules").value_or("")))
    if (line.starts_with(std::string(name) + " ")) return true;
  return exists("/sys/module/" + std::string(name));
}

std::pair<int, int> System::kernel() const {
  const std::string release = line("/proc/sys/kernel/osrelease");
  const char* const end = release.data() + release.size();
  int major = 0, minor = 0;
  const auto first = std::from_chars(release.data(), end, major);
  if (first.ec != std::errc{} || first.ptr == end || *first.ptr != '.') return {0, 0};
  if (std::from_chars(first.ptr + 1, end, minor).ec != std::errc{}) return {0, 0};
  return {major, minor};
}

bool System::has_command(std::string_view name) const {
  for (const std::string& entry : list("/proc"))
    if (entry.find_first_not_of("0123456789") == std::string::npos &&
        line("/proc/" + entry + "/comm") == name)
      return true;
  return false;
}

}  // namespace shoal::info
