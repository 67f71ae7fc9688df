// SPDX-License-Identifier: Apache-2.0
// ending.hpp: how an error of a standard C API ends the program, for OpenSHMEM and NVSHMEM.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <limits>
#include <optional>

namespace shoal::detail {
class WorldState;
}

namespace shoal::shmem {

/// Ends this process with buffered output written, but without the functions of atexit.
[[noreturn]] void leave_process(int status) noexcept;

/// Prints the message of `error`, with the call and this PE, announces it to the other PEs and ends
/// the process with status 1. `world`: nullptr where there is none. `announced`: the status of an
/// exit that a PE has announced, which then is the only cause.
[[noreturn]] void end_process(const char* call, const std::exception& error,
                              detail::WorldState* world,
                              const std::function<std::optional<int>()>& announced = {}) noexcept;

/// count * size; so large where it overflows that every check of a range fails.
inline std::size_t bytes_of(std::size_t count, std::size_t size) noexcept {
  std::size_t bytes = 0;
  return __builtin_mul_overflow(count, size, &bytes) ? std::numeric_limits<std::size_t>::max()
                                                     : bytes;
}

}  // namespace shoal::shmem
