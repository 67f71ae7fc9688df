// SPDX-License-Identifier: Apache-2.0
#include "base/system_error.hpp"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstring>  // strerrordesc_np, of glibc 2.32 or newer

namespace shoal {
namespace {

using Resource = decltype(RLIMIT_NOFILE);

/// The soft limit of a resource as a number, or "unlimited".
std::string limit_of(Resource resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return "an unknown number";
  return limit.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{}", limit.rlim_cur);
}

/// True if the soft limit of a resource is finite.
bool limited(Resource resource) {
  rlimit limit{};
  return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
}

std::string out_of_memory() {
  std::string text =
      "out of memory: see `free` and, in a container or a batch job, its memory limit";
  if (limited(RLIMIT_AS))
    text += fmt::format("; this process may map {} bytes: `ulimit -v`", limit_of(RLIMIT_AS));
  return text;
}

/// The limit behind an error and the way to raise it; empty if there is none to name.
std::string remedy(int error) {
  switch (error) {
    case EMFILE:
      return fmt::format("this process may have {}: raise it with `ulimit -n`",
                         limit_of(RLIMIT_NOFILE));
    case ENFILE:
      return "the limit of the whole machine: sysctl fs.file-max";
    case EAGAIN:
      return "for a new process or thread: `ulimit -u`, or the pids limit of the container";
    case ENOMEM:
      return out_of_memory();
    case EFBIG:
      if (!limited(RLIMIT_FSIZE)) return {};
      return fmt::format("a file of this process may have {} bytes: raise it with `ulimit -f`",
                         limit_of(RLIMIT_FSIZE));
    case ENOSPC:
      return "the disk is full; for shared memory, the disk is /dev/shm: see `df`";
    default:
      return {};
  }
}

}  // namespace

std::string errno_text(int error) {
  const int before = errno;
  const std::string cause = remedy(error);
  // strerror() would translate the text if the program has set a locale.
  const char* const untranslated = strerrordesc_np(error);
  std::string text =
      untranslated != nullptr ? untranslated : fmt::format("Unknown error {}", error);
  if (!cause.empty()) text += fmt::format(" ({})", cause);
  errno = before;
  return text;
}

}  // namespace shoal
