// SPDX-License-Identifier: Apache-2.0
// program.hpp: the NVSHMEM-compatible interface in this process: the world, its symmetric addresses
// and its teams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <set>

#include "base/check.hpp"
#include "nvshmem/device_state.hpp"
#include "nvshmem/teams.hpp"
#include "nvshmem_host.h"
#include "shmem/ending.hpp"
#include "shoal/cuda.hpp"
#include "shoal/world.hpp"
#include "world/state.hpp"

namespace shoal::nvshmem {

using shmem::bytes_of;

class Program {
 public:
  explicit Program(World opened);

  World world;
  detail::WorldState& core;  ///< of the world
  const Pe me;
  const Pe n_pes;
  /// The teams in GPU memory; nullptr where the heap is on the host.
  std::unique_ptr<DeviceTeams> device_teams;
  Teams teams;

  // Buffers that nvshmemx_buffer_register has registered.
  std::mutex mutex;
  std::set<void*> buffers;

  /// Offset of a range of this PE's heap in every PE's heap. `argument` names it in messages.
  /// Throws Error{invalid_argument}.
  std::size_t offset(const char* argument, const void* address, std::size_t bytes) const;
  bool is_symmetric(const void* address) const noexcept { return world.heap().contains(address); }
  void check_pe(int pe) const {
    require(pe >= 0 && pe < n_pes, Code::invalid_argument, "SHOAL-N862: PE {}; allowed: 0 to {}",
            pe, n_pes - 1);
  }
  /// The same range on PE `pe`.
  RemoteAddress remote(const char* argument, const void* address, std::size_t bytes, int pe) const {
    check_pe(pe);
    return {pe, offset(argument, address, bytes)};
  }
  /// A word on PE `pe`, at a multiple of its size.
  RemoteAddress remote_word(const char* argument, const void* address, std::size_t bytes,
                            int pe) const;
  /// Operations on a stream of the program.
  cuda::StreamOperations on(cudaStream_t stream) const { return {world, stream}; }
  /// Throws the first failure of a kernel since the last call.
  void check_kernels() const {
    if (core.device_side() != nullptr) cuda::check_failures(world);
  }
};

/// Starts the library in this process with the world that `open` opens, or counts a further call
/// unless `check_further` throws.
void initialize(const std::function<World()>& open, const std::function<void()>& check_further);
/// Ends it with the last call. Collective.
void finalize();

/// The settings of Shoal, with the heap in GPU memory and waits without a deadline where no
/// variable says otherwise, and the GPU that is current on this thread.
Settings read_settings();

/// nullptr where the library is not initialized.
Program* find_program() noexcept;
/// Throws Error{closed} where it is not initialized.
Program& program();

/// Prints the message of `error`, with the call and this PE, announces it to the other PEs and ends
/// the process with status 1.
[[noreturn]] void end_program(const char* call, const std::exception& error) noexcept;

/// Runs the body of function `call`. Its exceptions, and failures of kernels, end the program.
template <typename Body>
decltype(auto) guarded(const char* call, Body&& body) noexcept {
  try {
    Program& found = program();
    found.check_kernels();
    return body(found);
  } catch (const std::exception& error) {
    end_program(call, error);
  }
}

/// Like guarded, for functions that need no program yet.
template <typename Body>
decltype(auto) starting(const char* call, Body&& body) noexcept {
  try {
    return body();
  } catch (const std::exception& error) {
    end_program(call, error);
  }
}

/// The comparison and the signal operation of nvshmem.h. Throw Error{invalid_argument}.
Compare compare_of(int cmp);
SignalOp signal_op_of(int op);

}  // namespace shoal::nvshmem
