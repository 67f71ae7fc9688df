// SPDX-License-Identifier: Apache-2.0
#include "shmem/ending.hpp"

#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "base/check.hpp"
#include "world/state.hpp"

namespace shoal::shmem {

void leave_process(int status) noexcept {
  std::fflush(stdout);
  std::fflush(stderr);
  _exit(status);
}

void end_process(const char* call, const std::exception& error, detail::WorldState* world,
                 const std::function<std::optional<int>()>& announced) noexcept {
  // Several threads may fail at once, most of them for the same reason: the first one reports.
  static std::atomic<bool> ending = false;
  while (ending.exchange(true)) ::pause();
  if (announced)
    if (const auto status = announced()) leave_process(*status);
  try {
    const std::string place =
        world != nullptr ? fmt::format(" on PE {} of {}", world->my_pe(), world->n_pes()) : "";
    const std::string reason = reason_of(error);
    std::fprintf(stderr, "shoal: %s%s: %s\n", call, place.c_str(), reason.c_str());
    if (world != nullptr) world->health().fail_world(fmt::format("{}: {}", call, reason));
  } catch (const std::exception&) {
    std::fprintf(stderr, "shoal: %s: %s\n", call, error.what());
  }
  leave_process(1);
}

}  // namespace shoal::shmem
