// SPDX-License-Identifier: Apache-2.0
// nic_network.cuh: the network of kernels that drive queues of a NIC (network.cuh).
//
// Serves groups whose memory lies in the part of the heaps that the NICs reach. All threads of a
// block post to the same queue of a PE. Signals set words; what they follow depends on the ordering
// of the queue (docs/internals/gda.md).
//
// The calls are not inlined: they need many registers, at several places of a kernel.
#pragma once

#include <cstddef>
#include <cstdint>

#include "shoal/device/detail/nic.cuh"

namespace shoal::ep::cuda {

struct ByNic {
  /// Has the meaning of ByProxy::kGapBytes. Puts of 32 rows share a post, so few of them save no
  /// time.
  static constexpr std::size_t kGapBytes = std::size_t{1} << 10;

  __device__ static bool start_put(const device::World& world, void* target, const void* source,
                                   std::size_t bytes, Pe pe, const std::uint64_t* flag = nullptr,
                                   std::uint64_t value = 0) {
    return post(world, target, source, bytes, pe, flag, value, false);
  }
  __device__ static __noinline__ bool start_each(device::World world, void* target,
                                                 const void* source, std::size_t bytes, Pe pe,
                                                 const std::uint64_t* flag, std::uint64_t value) {
    return device::detail::post_each_to_nic(world, target, source, bytes, pe, flag, value);
  }
  __device__ static bool put(const device::World& world, void* target, const void* source,
                             std::size_t bytes, Pe pe, const std::uint64_t* flag,
                             std::uint64_t value) {
    return post(world, target, source, bytes, pe, flag, value, true);
  }
  __device__ static __noinline__ bool start_signal(device::World world, const std::uint64_t* word,
                                                   std::uint64_t value, Pe pe) {
    return device::detail::signal_by_nic(world, word, value, pe);
  }
  __device__ static void wait_for_puts(const device::World& world) {
    device::detail::wait_for_nic(world);
  }

 private:
  __device__ static __noinline__ bool post(device::World world, void* target, const void* source,
                                           std::size_t bytes, Pe pe, const std::uint64_t* flag,
                                           std::uint64_t value, bool complete) {
    return device::detail::post_to_nic(world, target, source, bytes, pe, flag, value, complete);
  }
};

}  // namespace shoal::ep::cuda
