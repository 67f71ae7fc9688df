// SPDX-License-Identifier: Apache-2.0
// device_kernels.hpp: kernels that perform one operation of shoal/device.hpp many times.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "shoal/device/types.hpp"

namespace shoal::bench::gpu {

enum class DeviceOperation {
  put_value,         ///< 8 bytes by one thread, quiet at the end
  put_warp,          ///< `bytes` by a warp
  put_block,         ///< `bytes` by a block
  put_signal,        ///< `bytes` by a warp, and a signal
  atomic_fetch_add,  ///< by one thread
  step,              ///< a signal to the next PE, then a wait for that of the last one
  barrier,           ///< of all PEs, by a block
};

struct DeviceLoop {
  device::World world;
  device::Team team;
  std::byte* source;      ///< `bytes` of this GPU
  std::byte* target;      ///< `bytes` of the heap
  std::uint64_t* words;   ///< of the heap: a counter, and the flag of a step or a put_signal
  std::size_t bytes;      ///< of a put
  std::uint64_t first;    ///< steps before
  std::uint32_t repeats;  ///< operations of the kernel
  Pe next;                ///< who gets them
};

/// One block of 512 threads, or what the operation's scope has.
void run_device_loop(cudaStream_t stream, DeviceOperation operation, const DeviceLoop& loop);

}  // namespace shoal::bench::gpu
