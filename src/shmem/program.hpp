// SPDX-License-Identifier: Apache-2.0
// program.hpp: OpenSHMEM in this process: the world, its symmetric addresses, its teams and
// contexts.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/check.hpp"
#include "shmem.h"
#include "shmem/ending.hpp"
#include "shmem/exit_watch.hpp"
#include "shmem/handles.hpp"
#include "shmem/statics.hpp"
#include "shmem/team_memory.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "transport/polled.hpp"
#include "transport/transport.hpp"
#include "world/state.hpp"

/// A team of the program.
struct shoal_shmem_team {
  shoal::Team team;
  shmem_team_config_t config{};
  std::mutex mutex{};
  std::vector<shmem_ctx_t> contexts{};  ///< those that end with the team
};

/// A context of the program.
///
/// Private and serialized contexts, which one thread uses at a time, record which PEs their
/// operations over networks went to, without locks or atomics: their fence and quiet serve those
/// PEs alone. The world's fence and quiet, which are stronger, serve all other contexts.
struct shoal_shmem_ctx {
  struct Peer {
    shoal::Pe pe;         ///< in the world
    bool mapped;          ///< operations are complete when they return
    bool in_use = false;  ///< operations of this context may be incomplete
  };

  shmem_team_t team;
  long options;
  std::vector<Peer> peers;          ///< by PE of the team
  bool records;                     ///< in_use and those below
  std::vector<std::size_t> used{};  ///< the peers in use
  bool fetches = false;             ///< non-blocking gets may be incomplete
};

namespace shoal::shmem {

/// Reference in which a routine stores a result. Throws Error{invalid_argument} for NULL.
template <typename T>
T& result(const char* argument, T* place) {
  require(place != nullptr, Code::invalid_argument,
          "SHOAL-N836: {} is NULL; allowed: the address of a result", argument);
  return *place;
}

/// Symmetric memory of a PE, as its transport names it.
struct Target {
  transport::Transport& transport;
  Pe pe;  ///< in the world
  std::size_t offset;
};

class Program {
 public:
  explicit Program(World opened);

  World world;
  detail::WorldState& core;  ///< of the world
  const Pe me;
  const Pe n_pes;
  shoal_shmem_team all;                            ///< SHMEM_TEAM_WORLD
  shoal_shmem_team shared;                         ///< SHMEM_TEAM_SHARED
  Handles<shoal_shmem_team, shmem_team_t> teams;   ///< that the program made
  Handles<shoal_shmem_ctx, shmem_ctx_t> contexts;  ///< the same
  Statics statics;
  TeamMemory team_memory;
  ExitWatch exit_watch;

  std::mutex active_sets_mutex;
  /// Teams of active sets, by start, logarithm of the stride, and size.
  std::map<std::array<int, 3>, Team> active_sets;

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
  /// True if offset() would return.
  bool is_symmetric(const void* address) const noexcept;
  /// The address in the heap of a symmetric range: another mapping of the same memory where the
  /// range is static. For any address where there are no bytes: the start of the heap.
  template <typename T>
  T* in_heap(const char* argument, T* address, std::size_t bytes) const {
    const std::size_t at = bytes == 0 ? 0 : offset(argument, address, bytes);
    return reinterpret_cast<T*>(heap_start_ + at);
  }
  /// The same range on PE `pe` of the context's team, for an operation of the context.
  Target target(shmem_ctx_t ctx, const char* argument, const void* address, std::size_t bytes,
                int pe) const {
    const std::size_t at = offset(argument, address, bytes);
    return on(world_pe(ctx, pe), at);
  }
  /// Offset `at` of the heap of world PE `pe`.
  Target on(Pe pe, std::size_t at) const {
    return {*routes_[static_cast<std::size_t>(pe)], pe, heap_offset_ + at};
  }
  /// PE `pe` of the context's team as numbered in the world, for an operation of the context.
  /// Throws Error{invalid_argument}.
  Pe world_pe(shmem_ctx_t ctx, int pe) const {
    if (ctx == SHMEM_CTX_DEFAULT) [[likely]] {
      check_pe(pe);
      return pe;
    }
    shoal_shmem_ctx& found = context(ctx);
    require(pe >= 0 && static_cast<std::size_t>(pe) < found.peers.size(), Code::invalid_argument,
            "SHOAL-N837: PE {}; allowed: 0 to {}, the PEs of the context's team", pe,
            found.peers.size() - 1);
    shoal_shmem_ctx::Peer& peer = found.peers[static_cast<std::size_t>(pe)];
    if (found.records && !peer.mapped && !peer.in_use) {
      peer.in_use = true;
      found.used.push_back(static_cast<std::size_t>(pe));
    }
    return peer.pe;
  }
  void check_pe(int pe) const {
    require(pe >= 0 && pe < n_pes, Code::invalid_argument, "SHOAL-N837: PE {}; allowed: 0 to {}",
            pe, n_pes - 1);
  }

  // Handles. Both throw Error{invalid_argument} for invalid and destroyed ones.

  shoal_shmem_team& team(shmem_team_t handle);
  shoal_shmem_ctx& context(shmem_ctx_t handle) const {
    shoal_shmem_ctx* const found = contexts.find(handle);
    if (found == nullptr) [[unlikely]]
      bad_context(handle);
    return *found;
  }
  /// Checks a context that may be the default one.
  void check_context(shmem_ctx_t handle) const {
    if (handle != SHMEM_CTX_DEFAULT) context(handle);
  }

  /// True if operations on world PE `pe` are complete when they return.
  bool is_mapped(Pe pe) const { return mapped_[static_cast<std::size_t>(pe)]; }

  /// Orders and completes the operations of a context, which may be the default one.
  void fence(shmem_ctx_t handle) const;
  void quiet(shmem_ctx_t handle) const;

  /// The end of a wait that has none. Programs may compute for hours between two barriers.
  static detail::Clock::time_point never() {
    return detail::Clock::now() + std::chrono::hours(24 * 365);
  }

 private:
  void wait_for_used(const shoal_shmem_ctx& context) const;
  [[noreturn, gnu::cold]] void bad_context(shmem_ctx_t handle) const;
  [[noreturn, gnu::cold]] void not_symmetric(const char* argument, const void* address,
                                             std::size_t bytes) const;

  std::uintptr_t heap_start_;
  std::size_t heap_bytes_;
  std::size_t heap_offset_;  ///< of the heap in every PE's segment
  // Indexed by PE of the world.
  std::vector<transport::Transport*> routes_;
  std::vector<bool> mapped_;
};

/// Starts OpenSHMEM in this process, or counts a further call.
void initialize();
/// Ends it with the last call. Collective.
void finalize();
/// True if initialize was called and finalize has not ended it.
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
