// SPDX-License-Identifier: Apache-2.0
// network.cuh: the only way of these kernels to other nodes. The device API carries it, by a proxy
// or by queues of the NIC. One thread calls each function. They return false after a failure of the
// network, which has been recorded for shoal::cuda::check_failures.
#pragma once

#include <cstddef>
#include <cstdint>

#include <shoal/device/types.hpp>
#ifdef __CUDACC__
#include <shoal/device/detail/unreached.cuh>

namespace shoal::ep::cuda {

/// Starts a copy of `bytes` bytes from `source` to the copy of `target` at `pe`, after which `flag`
/// becomes `value` there. `source` is in use until then.
__device__ inline bool start_put(const device::World& world, std::byte* target,
                                 const std::byte* source, std::size_t bytes, std::uint64_t* flag,
                                 std::uint64_t value, Pe pe) {
  return device::detail::start_put_unreached(world, target, source, bytes, pe, flag, SignalOp::set,
                                             value);
}

/// The same, and waits until both are complete.
__device__ inline bool put(const device::World& world, std::byte* target, const std::byte* source,
                           std::size_t bytes, std::uint64_t* flag, std::uint64_t value, Pe pe) {
  device::detail::put_unreached(world, 0, target, source, bytes, pe, flag, SignalOp::set, value);
  const volatile device::FailureReport& failure = *world.failure;
  return failure.state != device::FailureReport::complete ||
         failure.kind < device::FailureKind::proxy_failed;
}

/// Starts to set `word` at `pe`, after everything that this thread has seen.
__device__ inline bool start_signal(const device::World& world, std::uint64_t* word,
                                    std::uint64_t value, Pe pe) {
  return device::detail::signal_unreached(world, word, SignalOp::set, value, pe);
}

/// Waits for everything that kernels of this PE have started.
__device__ inline void wait_for_puts(const device::World& world) {
  if (threadIdx.x == 0) device::detail::order_unreached(world, true);
}

}  // namespace shoal::ep::cuda

#endif
