// SPDX-License-Identifier: Apache-2.0
// system.hpp: the files in which a Linux system describes itself, of this system or of a folder
// that looks like one.
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
  /// `root` is what "/" is in the paths of the calls.
  explicit System(std::filesystem::path root = "/") : root_(std::move(root)) {}

  /// The content of a file; nothing where it cannot be read.
  std::optional<std::string> read(std::string_view path) const;
  /// Its first line without the end; empty where it cannot be read.
  std::string line(std::string_view path) const;
  bool exists(std::string_view path) const;
  /// Names in a folder, ascending; empty where there is none.
  std::vector<std::string> list(std::string_view path) const;

  /// The value of "key: 1" or "key=1" in a file of such lines; empty where it is not there.
  std::string value(std::string_view path, std::string_view key) const;

  bool module_loaded(std::string_view name) const;
  /// {6, 1} for release 6.1.0-13; {0, 0} where it is not known.
  std::pair<int, int> kernel() const;
  bool has_command(std::string_view name)
      const;  ///< whether a process of this command (at most 15 characters) runs

 private:
  std::filesystem::path at(std::string_view path) const;
  std::filesystem::path root_;
};

/// `text` without spaces at both ends.
std::string trimmed(std::string_view text);
/// The lines of `text`.
std::vector<std::string> lines_of(std::string_view text);
/// The words of `text` between spaces and tabs.
std::vector<std::string> words_of(std::string_view text);

}  // namespace shoal::info
