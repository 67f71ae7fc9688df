// SPDX-License-Identifier: Apache-2.0
// world.hpp: worlds of PEs that share the GPUs of this machine, as threads or as processes, for
// tests of kernels and streams.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "shoal/world.hpp"
#include "support/process/process.hpp"

namespace shoal::test {

/// Streams of PEs that share a GPU wait for each other. Each needs a separate hardware queue, and
/// kernels must be loaded before any of them waits. The CUDA driver reads these variables when it
/// starts, so they are set before main.
inline const bool environment_is_set = [] {
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  return true;
}();

/// The reason why tests that need a GPU cannot run; empty if they can.
inline std::string no_gpu() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaSuccess && count > 0) return {};
  return std::string("no GPU: ") +
         (result == cudaSuccess ? "the driver shows none" : cudaGetErrorString(result));
}

#define SHOAL_NEEDS_GPU() \
  if (const std::string reason = shoal::test::no_gpu(); !reason.empty()) GTEST_SKIP() << reason

inline Settings cuda_settings() {
  Settings settings;
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{64} << 20;
  settings.timeout = std::chrono::seconds(20);
  return settings;
}

/// cuda_settings for tests in which a wait times out.
inline Settings settings_for_timeouts() {
  Settings settings = cuda_settings();
  settings.timeout = std::chrono::milliseconds(500);
  return settings;
}

inline void check_cuda(cudaError_t result) {
  if (result != cudaSuccess) throw Error(Code::system, cudaGetErrorString(result));
}

/// A stream of a PE. Streams are created once and kept. If streams are destroyed and created anew,
/// some drivers put two of three on one of the 32 hardware queues (in one world of ten; in none of
/// forty with kept streams).
class TestStream {
 public:
  explicit TestStream(const World& world) {
    const int device = cuda::launch_context(world).device;
    check_cuda(cudaSetDevice(device));
    static std::mutex mutex;
    static auto* const kept = new std::map<std::pair<int, Pe>, cudaStream_t>;
    const std::lock_guard lock(mutex);
    cudaStream_t& stream = (*kept)[{device, world.my_pe()}];
    if (stream == nullptr) {
      check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
      // The driver sets up a stream's queue with its first work, which must wait for no PE.
      void* byte = nullptr;
      check_cuda(cudaMallocAsync(&byte, 1, stream));
      check_cuda(cudaMemsetAsync(byte, 0, 1, stream));
      check_cuda(cudaFreeAsync(byte, stream));
      check_cuda(cudaStreamSynchronize(stream));
    }
    stream_ = stream;
  }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;

  operator cudaStream_t() const { return stream_; }
  void synchronize() const { check_cuda(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Runs `body` on `n_pes` PEs. A failure that a kernel reports and the body does not take fails the
/// test.
inline void run_gpu_pes(Pe n_pes, const std::function<void(World&, const TestStream&)>& body,
                        const Settings& settings = cuda_settings()) {
  run_threads(n_pes, settings, [&](World& world) {
    const TestStream stream(world);
    body(world, stream);
    stream.synchronize();
    cuda::check_failures(world);
  });
}

/// Four PEs on two emulated nodes: kernels find heaps through a table, and half of the heaps are
/// out of reach, since there is no proxy.
inline Settings settings_in_nodes() {
  Settings settings = cuda_settings();
  settings.node_size = 2;
  settings.proxy_slots = 0;
  return settings;
}

/// Runs the PE body `body` on four processes whose memory is passed by `handle`
/// (SHOAL_CUDA_HANDLE). Processes on one GPU take turns, a millisecond each.
inline void run_gpu_processes(const std::string& body, const std::string& handle) {
  const Environment environment = {{"SHOAL_HEAP", "cuda"},
                                   {"SHOAL_CUDA_HANDLE", handle},
                                   {"SHOAL_SYMMETRIC_SIZE", "64M"},
                                   {"SHOAL_TIMEOUT_MS", "60000"}};
  expect_success(
      run_pes(4, body, {.env = environment, .limit = std::chrono::milliseconds(240'000)}));
}

/// The work of a PE body: the same as run_gpu_pes in each of its threads. With CUDA IPC the driver
/// chooses the addresses of heaps, so some of four PEs find them through a table.
inline void run_gpu_process(const PeContext& pe,
                            const std::function<void(World&, const TestStream&)>& body) {
  World world = World::open({pe.settings, nullptr});
  {
    const auto tables = world.heap().allocate<std::int32_t>(1);
    if (cuda::device_world(world).bases != nullptr) world.atomic_fetch_add(tables.on(0)[0], 1);
    barrier(world.team());
    if (pe.settings.cuda_handle == "ipc")
      EXPECT_GT(world.get_value(tables.on(0)[0]), 0) << "all heaps lie in one window";
    const TestStream stream(world);
    body(world, stream);
    stream.synchronize();
    cuda::check_failures(world);
    barrier(world.team());
  }
  world.close();
}

/// This PE's copy.
template <typename T>
std::vector<T> fetch(const World& world, const SymmetricArray<T>& array) {
  std::vector<T> values(array.size());
  world.get(std::span(values), array.on(world.my_pe()));
  return values;
}
template <typename T>
void fill(const World& world, const SymmetricArray<T>& array, const std::vector<T>& values) {
  world.put(array.on(world.my_pe()).subspan(0, values.size()), values);
}

/// The next and the previous PE in a ring of those whose heaps this PE reaches by load and store.
inline Pe right(const World& world) {
  const Team near = world.shared_team();
  return near.world_pe((near.my_pe() + 1) % near.size());
}
inline Pe left(const World& world) {
  const Team near = world.shared_team();
  return near.world_pe((near.my_pe() + near.size() - 1) % near.size());
}

}  // namespace shoal::test
