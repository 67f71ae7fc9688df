// SPDX-License-Identifier: Apache-2.0
// network.cuh: what kernels send to ranks whose heap loads and stores do not reach. The device API
// carries it, by a proxy or by queues of the NIC; nothing else here knows which.
//
// Nothing waits for the network. A signal comes after everything that its thread, or another thread
// before a barrier of the block, has started towards the same PE.
#pragma once

#include "ep/cuda/low_latency/remote_ranks.hpp"
#include "shoal/device/detail/unreached.cuh"

namespace shoal::ep::cuda {

/// Starts a copy of `bytes` bytes from `source` to the copy of `target` on `pe`; where `flag` is
/// not nullptr, the word `flag` is then set to `value` there. `source` is in use until a later
/// signal has arrived. Returns false when the network has failed.
__device__ inline bool start_put(const device::World& world, void* target, const void* source,
                                 std::size_t bytes, Pe pe, const std::uint64_t* flag = nullptr,
                                 std::uint64_t value = 0) {
  return device::detail::start_put_unreached(world, target, source, bytes, pe, flag, SignalOp::set,
                                             value);
}

/// Starts to set the copy of `word` on `pe`. Returns false when the network has failed.
__device__ inline bool start_signal(const device::World& world, const std::uint64_t* word,
                                    std::uint64_t value, Pe pe) {
  return device::detail::signal_unreached(world, word, SignalOp::set, value, pe);
}

}  // namespace shoal::ep::cuda
