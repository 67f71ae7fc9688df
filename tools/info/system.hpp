// SPDX-License-Identifier: Apache-2.0
// system.hpp: reads the files in which a Linux system describes itself. The root may be a folder
// that describes another system.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shoal::info {

class System {
 public:
  /// `root` replaces "/" in the paths of all calls.
  explicit System(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// The content of a file; nullopt if it is not readable.
  std::optional<std::string> read(std::string_view path) const;
  /// The first line of a file without its end; empty if the file is not readable.
  std::string line(std::string_view path) const;
  bool exists(std::string_view path) const;
  /// Names in a folder, ascending; empty if there is no such folder.
  std::vector<std::string> list(std::string_view path) const;

  /// The value of `key` in a file of lines "key: 1" or "key=1"; empty if absent.
  std::string value(std::string_view path, std::string_view key) const;

  bool module_loaded(std::string_view name) const;
  /// {6, 1} for release 6.1.0-13; {0, 0} if unknown.
  std::pair<int, int> kernel() const;
  /// True if a process of this command (at most 15 characters) runs.
  bool has_command(std::string_view name) const;

 private:
  std::filesystem::path at(std::string_view path) const;
  std::filesystem::path root_;
};

/// `text` without spaces at both ends.
std::string trimmed(std::string_view text);
/// The lines of `text`.
std::vector<std::string> lines_of(std::string_view text);
/// The words of `text`, separated by spaces and tabs.
std::vector<std::string> words_of(std::string_view text);

}  // namespace shoal::info
