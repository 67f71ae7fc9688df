// SPDX-License-Identifier: Apache-2.0
#include "wire/wire_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/files.hpp"

namespace shoal::emulator {
namespace {

/// Beyond the slots' bytes.
constexpr off_t kJoiningByte = 1 << 20;

struct flock bytes(off_t first, off_t count, short type) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = first;
  range.l_len = count;
  return range;
}

bool lock_byte(int fd, off_t byte, bool wait) {
  struct flock range = bytes(byte, 1, F_WRLCK);
  return fcntl(fd, wait ? F_OFD_SETLKW : F_OFD_SETLK, &range) == 0;
}

void unlock_byte(int fd, off_t byte) {
  struct flock range = bytes(byte, 1, F_UNLCK);
  (void)fcntl(fd, F_OFD_SETLK, &range);
}

bool are_locked_by_others(int fd, off_t first, off_t count) {
  struct flock range = bytes(first, count, F_WRLCK);
  return fcntl(fd, F_OFD_GETLK, &range) != 0 || range.l_type != F_UNLCK;
}

bool is_removed(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 && info.st_nlink == 0;
}

/// The joining byte is locked.
void remove_unused(int fd, const std::string& path) {
  if (!is_removed(fd) && !are_locked_by_others(fd, 0, WireFile::kMostSlots)) unlink(path.c_str());
}

void remove_where_abandoned(const std::string& path) {
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return;
  std::uint64_t magic = 0;
  if (pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == WireFile::kMagic &&
      lock_byte(fd, kJoiningByte, false))
    remove_unused(fd, path);
  close(fd);
}

}  // namespace

WireFile::WireFile(std::string path) : path_(std::move(path)) {
  for (;;) {
    const OwnFile file = open_own_file(path_, O_RDWR);
    if (file.fd < 0)
      throw std::runtime_error("cannot open " + path_ + ": " + file.reason +
                               ". Settings: SHOAL_EMULATOR_DIRECTORY, SHOAL_EMULATOR_JOB");
    fd_ = file.fd;
    try {
      if (!lock_byte(fd_, kJoiningByte, true)) fail("cannot lock");
      struct stat info = {};
      if (fstat(fd_, &info) != 0) fail("cannot stat");
      is_new_ = info.st_size == 0;
      if (info.st_nlink != 0) return;
    } catch (...) {
      close(fd_);
      throw;
    }
    close(fd_);  // the last process removed it meanwhile
  }
}

WireFile::~WireFile() {
  std::uint64_t magic = 0;
  const bool is_wire = pread(fd_, &magic, sizeof magic, 0) == sizeof magic && magic == kMagic;
  if ((is_wire || is_new_) && lock_byte(fd_, kJoiningByte, true)) remove_unused(fd_, path_);
  close(fd_);
}

bool WireFile::take(std::uint32_t slot) {
  return lock_byte(fd_, slot, false);
}

bool WireFile::is_taken_by_another(std::uint32_t slot) const {
  return are_locked_by_others(fd_, slot, 1);
}

void WireFile::finish_joining() {
  unlock_byte(fd_, kJoiningByte);
  if (std::exchange(is_new_, false)) remove_abandoned();
}

void WireFile::remove_abandoned() const {
  const std::filesystem::path own = path_;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(own.parent_path(), error))
    if (entry.path().extension() == own.extension() && entry.is_regular_file(error))
      remove_where_abandoned(entry.path());
}

void WireFile::fail(const std::string& what) const {
  throw std::runtime_error(what + " " + path_ + ": " + std::generic_category().message(errno));
}

}  // namespace shoal::emulator
