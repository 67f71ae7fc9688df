// SPDX-License-Identifier: Apache-2.0
// files.hpp: files that other users may have made, or whose names they can predict.
//
//   const OwnFile file = open_own_file(path, O_WRONLY | O_APPEND);
//   if (file.fd < 0) fail(Code::system, "cannot open {}: {}", path, file.reason);
//
// Header-only, because the emulated NIC uses it, too.
#pragma once

#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>  // strerrordesc_np, of glibc 2.32 or newer
#include <ctime>
#include <string>
#include <string_view>

namespace shoal {

/// Blocks SIGXFSZ for the calling thread while it exists, so that a write or a size beyond
/// `ulimit -f` returns EFBIG. The program's handler stays as it is.
class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() noexcept {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    const int error = errno;
    // The kernel sends SIGXFSZ to the thread that writes, so a signal that became pending since is
    // ours.
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_{}, before_{};
  bool was_pending_ = false;
};

/// Kind of file that a reader expects where another user may have put it.
enum class ForeignFile : std::uint8_t {
  memory,  ///< a memfd of small pages, by its link in /proc
  disk,    ///< not by a symbolic link
};

/// A descriptor to read a regular file that another user may have put there; -1 with errno for
/// anything else. Neither waits for a writer, as opening a FIFO does, nor touches a device.
inline int open_foreign_file(const char* path, ForeignFile kind) noexcept {
  const bool memory = kind == ForeignFile::memory;
  const int found = open(path, O_PATH | O_CLOEXEC | (memory ? 0 : O_NOFOLLOW));
  if (found < 0) return -1;
  struct stat status{};
  struct statfs system{};
  bool good = fstat(found, &status) == 0 && S_ISREG(status.st_mode);
  // Holes of a file of huge pages are no memory: reading them ends a process with SIGBUS.
  if (memory) good = good && fstatfs(found, &system) == 0 && system.f_type == TMPFS_MAGIC;
  int fd = -1;
  errno = EINVAL;
  if (good) {
    const std::string same = "/proc/self/fd/" + std::to_string(found);
    fd = open(same.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  }
  const int error = errno;
  close(found);
  errno = error;
  return fd;
}

/// A descriptor to write a new file at a name that others can predict; -1 with errno. An older file
/// or a symbolic link with that name is removed, not followed.
inline int create_file(const char* path, mode_t mode = 0600) noexcept {
  unlink(path);
  return open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
}

struct OwnFile {
  int fd = -1;
  std::string reason;  ///< where fd is -1
};

/// Opens a file that this user owns, or creates it. It is refused where another user could have
/// made it: a symbolic link, another owner, a second name, writable by all. Terminals and
/// /dev/null are no such files, and names such as /dev/stderr stand for descriptors that the
/// process has. `flags` are without O_TRUNC, which would act before the file is refused.
inline OwnFile open_own_file(const std::string& path, int flags) {
  const std::string_view name = path;
  const bool is_descriptor = name == "/dev/stdout" || name == "/dev/stderr" ||
                             name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
  const int fd = open(
      path.c_str(),
      flags | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (is_descriptor ? 0 : O_NOFOLLOW), 0600);
  if (fd < 0) return {-1, errno == ELOOP ? "it is a symbolic link" : strerrordesc_np(errno)};
  struct stat status{};
  if (is_descriptor || fstat(fd, &status) != 0) return {fd, ""};
  const char* reason = nullptr;
  if (status.st_uid != geteuid() && (S_ISREG(status.st_mode) || status.st_uid != 0))
    reason = "another user owns it";
  else if (S_ISREG(status.st_mode) && status.st_nlink > 1)
    reason = "it has a second name (hard link)";
  else if (S_ISREG(status.st_mode) && (status.st_mode & S_IWOTH) != 0)
    reason = "all users may write it";
  if (reason == nullptr) return {fd, ""};
  close(fd);
  return {-1, reason};
}

}  // namespace shoal
