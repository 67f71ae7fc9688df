// SPDX-License-Identifier: Apache-2.0
// wire_file.hpp: the file of a shared-memory wire: who uses it, and when it goes.
//
// Slot i belongs to the process that holds a lock on byte i, which the kernel releases when the
// process ends. One more byte is locked while the file is laid out, joined or removed. The last
// process removes the file. Where that one was killed, the next process that creates a file in the
// folder removes it.
#pragma once

#include <cstdint>
#include <string>

namespace shoal::emulator {

class WireFile {
 public:
  static constexpr std::uint32_t kMostSlots = 256;
  /// The first word of every file: others are never removed.
  static constexpr std::uint64_t kMagic = 0x31'65'72'69'77'68'73'00;  // "shwire1"

  /// Opens or creates `path`, whose folder must exist. Other processes wait until finish_joining.
  /// Throws std::runtime_error.
  explicit WireFile(std::string path);
  ~WireFile();
  WireFile(const WireFile&) = delete;
  WireFile& operator=(const WireFile&) = delete;

  const std::string& path() const { return path_; }
  int descriptor() const { return fd_; }
  /// Created by this process, and without content until it writes some.
  bool is_new() const { return is_new_; }

  bool take(std::uint32_t slot);
  bool is_taken_by_another(std::uint32_t slot) const;
  void finish_joining();

  [[noreturn]] void fail(const std::string& what) const;

 private:
  void remove_abandoned() const;

  std::string path_;
  int fd_ = -1;
  bool is_new_ = false;
};

}  // namespace shoal::emulator
