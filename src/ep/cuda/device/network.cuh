// SPDX-License-Identifier: Apache-2.0
// network.cuh: the only ways of kernels to ranks whose heap loads and stores do not reach. Kernels
// that send there are templates of one of them, and a group uses one of both for all that it sends
// (NetworkPath), since signals by one do not follow puts by the other.
//
//   if (!Network::start_put(world, target, source, bytes, pe, flag, value)) ...  // one thread each
//
// Nothing but put() waits. A signal arrives after everything that its thread, or another thread of
// the block before a barrier, has started towards the same PE. All functions return false after a
// failure of the network, which has been recorded for shoal::cuda::check_failures.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ep/cuda/device/network_path.hpp"
#include "shoal/device/detail/unreached.cuh"

namespace shoal::ep::cuda {

/// The progress thread of the world executes puts and signals (docs/internals/rdma.md).
struct ByProxy {
  /// A put costs the proxy about a microsecond, in which a link moves more than this: where at most
  /// so many bytes lie between two ranges, one put of both is faster.
  static constexpr std::size_t kGapBytes = std::size_t{16} << 10;

  /// Starts a copy of `bytes` bytes from `source` to the copy of `target` on `pe`; where `flag` is
  /// not nullptr, the word `flag` then becomes `value` there. `source` is in use until a later
  /// signal has arrived.
  __device__ static bool start_put(const device::World& world, void* target, const void* source,
                                   std::size_t bytes, Pe pe, const std::uint64_t* flag = nullptr,
                                   std::uint64_t value = 0) {
    return device::detail::start_put_unreached(world, target, source, bytes, pe, flag,
                                               SignalOp::set, value);
  }
  /// start_put() of each lane of a warp, then start_signal() of each: the signals arrive after the
  /// puts of all lanes. 0 bytes: no put; nullptr: no signal. All lanes call, with the same `pe`.
  __device__ static bool start_each(const device::World& world, void* target, const void* source,
                                    std::size_t bytes, Pe pe, const std::uint64_t* flag,
                                    std::uint64_t value) {
    const bool started = bytes == 0 || start_put(world, target, source, bytes, pe);
    __syncwarp();
    return (flag == nullptr || start_signal(world, flag, value, pe)) && started;
  }
  /// start_put(), which waits until both are complete.
  __device__ static bool put(const device::World& world, void* target, const void* source,
                             std::size_t bytes, Pe pe, const std::uint64_t* flag,
                             std::uint64_t value) {
    device::detail::put_unreached(world, 0, target, source, bytes, pe, flag, SignalOp::set, value);
    const volatile device::FailureReport& failure = *world.failure;
    return failure.state != device::FailureReport::complete ||
           failure.kind < device::FailureKind::proxy_failed;
  }
  /// Starts to set the copy of `word` on `pe`, after everything that this thread has seen.
  __device__ static bool start_signal(const device::World& world, const std::uint64_t* word,
                                      std::uint64_t value, Pe pe) {
    return device::detail::signal_unreached(world, word, SignalOp::set, value, pe);
  }
  /// Waits for everything that kernels of this PE have started.
  __device__ static void wait_for_puts(const device::World& world) {
    device::detail::order_unreached(world, true);
  }
};

}  // namespace shoal::ep::cuda

#include "ep/cuda/device/nic_network.cuh"
