// SPDX-License-Identifier: Apache-2.0
// temporary_folder.hpp: a new folder for the files of a test.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

namespace shoal::test {

/// A folder in /tmp that exists as long as the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    if (mkdtemp(path_.data()) == nullptr) throw std::runtime_error("cannot make " + path_);
  }
  ~TemporaryFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// The path of the file with this name in the folder.
  std::string at(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_ = "/tmp/shoal-test-XXXXXX";
};

}  // namespace shoal::test
