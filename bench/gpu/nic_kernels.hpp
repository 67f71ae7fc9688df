// SPDX-License-Identifier: Apache-2.0
// nic_kernels.hpp: kernels that write through the NIC that is a kernel (emulator/gpu/).
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "shoal/device/detail/gda/queue.hpp"

namespace shoal::bench::gpu {

/// A queue pair as one warp uses it, and the memory that it writes from and to.
struct NicClient {
  device::gda::Queue queue;
  const std::byte* source = nullptr;
  mlx5::Memory local, remote;
  std::uint64_t stride = 0;  ///< between the messages of two lanes
};

/// Nanoseconds of the GPU's clock; `failed` is not 0 where an operation was not successful.
struct NicTimes {
  std::uint64_t start, end, failed;
};

/// `clients` warps with a queue each: `laps` times 32 puts of `bytes` bytes. times[client].
void launch_puts(const NicClient* clients, int count, std::uint32_t bytes, int laps,
                 NicTimes* times, cudaStream_t stream);

/// Puts a number of 8 bytes, waits until the peer has put it back to `answer`, `laps` times. With
/// `with_data`, the number is a signal after `with_data` bytes. nanoseconds[lap].
void launch_ping(const NicClient& client, std::uint32_t with_data, const std::uint64_t* answer,
                 int laps, std::uint64_t* nanoseconds, NicTimes* times, cudaStream_t stream);
/// The other side.
void launch_pong(const NicClient& client, std::uint32_t with_data, const std::uint64_t* question,
                 int laps, NicTimes* times, cudaStream_t stream);
/// Puts 8 bytes and waits for the completion. nanoseconds[lap].
void launch_completed_puts(const NicClient& client, int laps, std::uint64_t* nanoseconds,
                           NicTimes* times, cudaStream_t stream);

/// Loads all of them: a kernel is not loaded while a NIC runs.
cudaError_t load_nic_kernels();

}  // namespace shoal::bench::gpu
