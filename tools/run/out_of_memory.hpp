// SPDX-License-Identifier: Apache-2.0
// out_of_memory.hpp: recognizes PEs that the kernel killed because memory ran out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace shoal::run {

/// Watches the kernel's counter of processes killed for lack of memory: the counter of this
/// process's memory cgroup (version 2 or 1) where one can be read, else that of the machine.
class OutOfMemory {
 public:
  /// `root` is "/", or a folder with proc/ and sys/ of a test.
  explicit OutOfMemory(const std::filesystem::path& root = "/");

  /// A sentence with the number of processes killed since construction and the limit of the
  /// cgroup; empty if there were none.
  std::string describe() const;

 private:
  std::filesystem::path events_;  // a file with a line "oom_kill N"
  std::filesystem::path limit_;   // the cgroup's limit in bytes; empty for the machine's counter
  std::uint64_t before_ = 0;
};

}  // namespace shoal::run
