// SPDX-License-Identifier: Apache-2.0
#include "memory/process_id.hpp"

#include <sys/stat.h>
#include <unistd.h>

namespace shoal::memory {

ProcessId this_process() {
  static const Token token = make_token();
  return {token, getpid()};
}

std::uint64_t network_namespace() {
  struct stat info{};
  return stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

}  // namespace shoal::memory
