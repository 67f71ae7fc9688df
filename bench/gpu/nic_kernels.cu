// SPDX-License-Identifier: Apache-2.0
#include "gpu/nic_kernels.hpp"

#include "shoal/device/detail/gda/cuda_platform.cuh"
#include "shoal/device/detail/gda/operations.hpp"

namespace shoal::bench::gpu {
namespace {

namespace gda = device::gda;

constexpr std::uint64_t kLimit = 20'000'000'000;  // nanoseconds

__global__ void puts_kernel(const NicClient* clients, std::uint32_t bytes, int laps,
                            NicTimes* times) {
  gda::CudaPlatform platform{nullptr, true};
  const gda::Warp warp;
  const NicClient client = clients[blockIdx.x];
  const std::uint64_t start = platform.now(), deadline = start + kLimit;
  const std::uint64_t offset = client.stride * warp.rank();
  // Small messages are inline, as those of applications.
  const gda::Source source{bytes <= gda::kInlineBytes ? client.source + offset : nullptr,
                           {client.local.address + offset, client.local.key}};
  const mlx5::Memory remote{client.remote.address + offset, client.remote.key};
  std::uint64_t ticket = 0;
  gda::Outcome outcome = gda::Outcome::ok;
  for (int lap = 0; lap < laps && outcome == gda::Outcome::ok; ++lap)
    outcome =
        gda::post_each(warp, client.queue, {source, remote, bytes}, deadline, platform, ticket);
  if (warp.rank() != 0) return;
  if (outcome == gda::Outcome::ok) outcome = gda::quiet(client.queue, deadline, platform);
  times[blockIdx.x] = {start, platform.now(), outcome == gda::Outcome::ok ? 0U : 1U};
}

__device__ gda::Outcome send(const NicClient& client, std::uint32_t with_data, std::uint64_t value,
                             std::uint64_t deadline, gda::CudaPlatform& platform) {
  std::uint64_t ticket = 0;
  if (with_data != 0)
    return gda::put_signal(client.queue, {nullptr, client.local},
                           {client.remote.address + 4096, client.remote.key}, with_data,
                           {client.remote, 1}, deadline, platform, ticket);
  return gda::put(client.queue, {reinterpret_cast<const std::byte*>(&value), client.local},
                  client.remote, sizeof value, deadline, platform, ticket);
}

/// False when the deadline passes.
__device__ bool await(const std::uint64_t* word, std::uint64_t value, std::uint64_t deadline,
                      gda::CudaPlatform& platform) {
  while (device::ptx::ld_acquire_sys(word) < value)
    if (platform.now() > deadline) return false;
  return true;
}

__global__ void ping_kernel(NicClient client, std::uint32_t with_data, const std::uint64_t* answer,
                            int laps, std::uint64_t* nanoseconds, NicTimes* times) {
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t start = platform.now(), deadline = start + kLimit;
  std::uint64_t failed = 0;
  for (int lap = 0; lap < laps && failed == 0; ++lap) {
    const std::uint64_t before = platform.now();
    const auto value = static_cast<std::uint64_t>(lap) + 1;
    if (send(client, with_data, value, deadline, platform) != gda::Outcome::ok) failed = 1;
    if (!await(answer, value, deadline, platform)) failed = 2;
    nanoseconds[lap] = platform.now() - before;
  }
  *times = {start, platform.now(), failed};
}

__global__ void pong_kernel(NicClient client, std::uint32_t with_data,
                            const std::uint64_t* question, int laps, NicTimes* times) {
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t start = platform.now(), deadline = start + kLimit;
  std::uint64_t failed = 0;
  for (int lap = 0; lap < laps && failed == 0; ++lap) {
    const auto value = static_cast<std::uint64_t>(lap) + 1;
    if (!await(question, value, deadline, platform)) failed = 2;
    if (send(client, with_data, value, deadline, platform) != gda::Outcome::ok) failed = 1;
  }
  *times = {start, platform.now(), failed};
}

__global__ void completed_puts_kernel(NicClient client, int laps, std::uint64_t* nanoseconds,
                                      NicTimes* times) {
  gda::CudaPlatform platform{nullptr, true};
  const std::uint64_t start = platform.now(), deadline = start + kLimit;
  std::uint64_t failed = 0, value = 0, ticket = 0;
  for (int lap = 0; lap < laps && failed == 0; ++lap) {
    const std::uint64_t before = platform.now();
    const gda::Source source{reinterpret_cast<const std::byte*>(&value), client.local};
    gda::Outcome outcome =
        gda::put(client.queue, source, client.remote, sizeof value, deadline, platform, ticket);
    if (outcome == gda::Outcome::ok) outcome = gda::wait(client.queue, ticket, deadline, platform);
    if (outcome != gda::Outcome::ok) failed = 1;
    nanoseconds[lap] = platform.now() - before;
  }
  *times = {start, platform.now(), failed};
}

}  // namespace

void launch_puts(const NicClient* clients, int count, std::uint32_t bytes, int laps,
                 NicTimes* times, cudaStream_t stream) {
  puts_kernel<<<count, 32, 0, stream>>>(clients, bytes, laps, times);
}
void launch_ping(const NicClient& client, std::uint32_t with_data, const std::uint64_t* answer,
                 int laps, std::uint64_t* nanoseconds, NicTimes* times, cudaStream_t stream) {
  ping_kernel<<<1, 1, 0, stream>>>(client, with_data, answer, laps, nanoseconds, times);
}
void launch_pong(const NicClient& client, std::uint32_t with_data, const std::uint64_t* question,
                 int laps, NicTimes* times, cudaStream_t stream) {
  pong_kernel<<<1, 1, 0, stream>>>(client, with_data, question, laps, times);
}
void launch_completed_puts(const NicClient& client, int laps, std::uint64_t* nanoseconds,
                           NicTimes* times, cudaStream_t stream) {
  completed_puts_kernel<<<1, 1, 0, stream>>>(client, laps, nanoseconds, times);
}

cudaError_t load_nic_kernels() {
  cudaFuncAttributes attributes{};
  for (const void* const kernel :
       {reinterpret_cast<const void*>(puts_kernel), reinterpret_cast<const void*>(ping_kernel),
        reinterpret_cast<const void*>(pong_kernel),
        reinterpret_cast<const void*>(completed_puts_kernel)})
    if (const cudaError_t result = cudaFuncGetAttributes(&attributes, kernel);
        result != cudaSuccess)
      return result;
  return cudaSuccess;
}

}  // namespace shoal::bench::gpu
