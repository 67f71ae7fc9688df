// SPDX-License-Identifier: Apache-2.0
// program.hpp: OpenSHMEM in this process: the world, its symmetric addresses, its teams and
// contexts.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.hpp"
#include "shmem.h"
#include "shmem/ending.hpp"
#include "shmem/exit_watch.hpp"
#include "shmem/statics.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "world/state.hpp"

/// A team of the program. Destroyed handles stay in memory, so that their use is an error message
/// and no access to freed memory.
struct shoal_shmem_team {
  shoal::Team team;
  shmem_team_config_t config{};
  bool destroyed = false;
  std::mutex mutex{};
  std::vector<shmem_ctx_t> contexts{};  ///< those that end with the team
};

/// A context of the program. Operations on it are those of the world, whose quiet and fence are
/// stronger than the context's.
struct shoal_shmem_ctx {
  shmem_team_t team;
  long options;
  bool destroyed = false;
};

namespace shoal::shmem {

class Program {
 public:
  explicit Program(World opened);

  World world;
  detail::WorldState& core;  ///< of the world
  const Pe me;
  const Pe n_pes;
  shoal_shmem_team all;     ///< SHMEM_TEAM_WORLD
  shoal_shmem_team shared;  ///< SHMEM_TEAM_SHARED
  Statics statics;
  ExitWatch exit_watch;

  // Symmetric addresses. `argument` names one in messages.

  /// Offset of a range of this PE's symmetric memory in every PE's heap. Throws
  /// Error{invalid_argument}.
  std::size_t offset(const char* argument, const void* address, std::size_t bytes) const {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    const std::uintptr_t in_heap = at - heap_start_;
    if (in_heap < heap_bytes_ && bytes <= heap_bytes_ - in_heap) return in_heap;
    const std::uintptr_t in_statics = at - statics.start();
    if (in_statics < statics.bytes() && bytes <= statics.bytes() - in_statics)
      return statics.offset() + in_statics;
    not_symmetric(argument, address, bytes);
  }
  /// Whether offset() would return.
  bool is_symmetric(const void* address) const noexcept;
  /// The address in the heap of a symmetric range: another mapping of the same memory where the
  /// range is static. For any address where there are no bytes: the start of the heap.
  template <typename T>
  T* in_heap(const char* argument, T* address, std::size_t bytes) const {
    const std::size_t at = bytes == 0 ? 0 : offset(argument, address, bytes);
    return reinterpret_cast<T*>(heap_start_ + at);
  }
  /// The same range on PE `pe` of the context's team.
  RemoteAddress remote(shmem_ctx_t ctx, const char* argument, const void* address,
                       std::size_t bytes, int pe) const {
    return {world_pe(ctx, pe), offset(argument, address, bytes)};
  }
  /// PE `pe` of the context's team as numbered in the world. Throws Error{invalid_argument}.
  Pe world_pe(shmem_ctx_t ctx, int pe) const {
    if (ctx == SHMEM_CTX_DEFAULT) [[likely]] {
      check_pe(pe);
      return pe;
    }
    return world_pe_of(ctx, pe);
  }
  void check_pe(int pe) const {
    require(pe >= 0 && pe < n_pes, Code::invalid_argument, "PE {}; allowed: 0 to {}", pe,
            n_pes - 1);
  }

  // Handles. Both throw Error{invalid_argument} for invalid and destroyed ones.

  shoal_shmem_team& team(shmem_team_t handle);
  shoal_shmem_ctx& context(shmem_ctx_t handle) const;
  /// Checks a context that may be the default one.
  void check_context(shmem_ctx_t handle) const {
    if (handle != SHMEM_CTX_DEFAULT) context(handle);
  }

  /// The end of a wait that has none. Programs may compute for hours between two barriers.
  static detail::Clock::time_point never() {
    return detail::Clock::now() + std::chrono::hours(24 * 365);
  }

 private:
  Pe world_pe_of(shmem_ctx_t ctx, int pe) const;
  [[noreturn, gnu::cold]] void not_symmetric(const char* argument, const void* address,
                                             std::size_t bytes) const;

  std::uintptr_t heap_start_;
  std::size_t heap_bytes_;
};

/// Starts OpenSHMEM in this process, or counts a further call.
void initialize();
/// Ends it with the last call. Collective.
void finalize();
/// Whether initialize was called and finalize has not ended it.
bool is_initialized() noexcept;

/// OpenSHMEM in this process. Throws Error{closed} where it is not initialized.
Program& program();

/// Prints the message of `error`, with the call and this PE, announces it to the other PEs and ends
/// the process with status 1.
[[noreturn]] void end_program(const char* call, const std::exception& error) noexcept;

/// Runs the body of routine `call`. Its exceptions end the program.
template <typename Body>
decltype(auto) guarded(const char* call, Body&& body) noexcept {
  try {
    return body(program());
  } catch (const std::exception& error) {
    end_program(call, error);
  }
}

}  // namespace shoal::shmem
