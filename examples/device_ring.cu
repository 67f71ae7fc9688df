// SPDX-License-Identifier: Apache-2.0
// A user-written kernel that communicates: every PE sends its row around a ring, adds the rows that
// arrive, and ends with the sum of all rows. The 8 PEs are threads and share the available GPUs.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <shoal/cuda.hpp>
#include <shoal/device.hpp>
#include <vector>

namespace {

constexpr int kPes = 8;
constexpr std::size_t kCount = 1000;  // floats in a row

// [kernel]
/// One block. `inbox` [n_pes, kCount] and `arrived` [n_pes] are symmetric, `arrived` zero at the
/// start; `mine` and `sum` [kCount] are any memory of this GPU.
__global__ void ring_sum(const __grid_constant__ shoal::device::World world, float* inbox,
                         std::uint64_t* arrived, const float* mine, float* sum) {
  using namespace shoal::device;
  const Block block;
  const shoal::Pe next = (world.my_pe + 1) % world.n_pes;
  for (std::size_t i = threadIdx.x; i < kCount; i += blockDim.x) sum[i] = mine[i];

  const float* row = mine;
  for (shoal::Pe hop = 1; hop < world.n_pes; ++hop) {
    // Each hop has its own row and flag, so they need no release.
    float* const landing = inbox + hop * kCount;
    put_signal(block, world, landing, row, kCount, &arrived[hop], shoal::SignalOp::set, 1, next);
    if (!wait_until(block, world, &arrived[hop], shoal::Compare::equal, 1))
      return;  // check_failures throws the reason
    for (std::size_t i = threadIdx.x; i < kCount; i += blockDim.x) sum[i] += landing[i];
    row = landing;
  }
}
// [kernel]

void check(cudaError_t result) {
  if (result != cudaSuccess) throw shoal::Error(shoal::Code::system, cudaGetErrorString(result));
}

// [host]
void run_pe(shoal::World& world) {
  const shoal::cuda::LaunchContext gpu = shoal::cuda::launch_context(world);
  check(cudaSetDevice(gpu.device));
  cudaStream_t stream = nullptr;
  // Not the legacy default stream: PEs share the GPU.
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));

  {
    auto inbox = world.heap().allocate<float>(kPes * kCount);
    auto arrived = world.heap().allocate<std::uint64_t>(kPes);  // zeroed on all PEs
    auto rows = world.heap().allocate<float>(2 * kCount);       // this PE's row, then the sum
    const float value = 1.0F + static_cast<float>(world.my_pe());
    world.put(rows.on(world.my_pe()).subspan(0, kCount), std::vector<float>(kCount, value));

    shoal::device::launch_collective(world, stream, {.grid = 1, .block = 256}, ring_sum,
                                     shoal::cuda::device_world(world), inbox.data(), arrived.data(),
                                     rows.data(), rows.data() + kCount);
    check(cudaStreamSynchronize(stream));
    shoal::cuda::check_failures(world);

    std::vector<float> sum(kCount);
    world.get(std::span(sum), rows.on(world.my_pe()).subspan(kCount, kCount));
    for (const float got : sum)
      if (got != kPes * (kPes + 1) / 2)
        throw shoal::Error(shoal::Code::mismatch, "expected 36, got " + std::to_string(got));
  }
  check(cudaStreamDestroy(stream));
  std::printf("PE %d of %d on GPU %d: the sum of all rows is 36\n", world.my_pe(), world.n_pes(),
              gpu.device);
}
// [host]

}  // namespace

// [main]
int main() {
  // Streams that wait for each other need a hardware queue each, and kernels that are loaded before
  // anything waits.
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) {
    std::puts("skipped: this example needs a GPU, and the CUDA driver shows none");
    return 77;  // CTest's code for skipped
  }
  shoal::Settings settings = shoal::Settings::from_environment();
  settings.heap = "cuda";
  settings.symmetric_size = 64 << 20;
  try {
    shoal::run_threads(kPes, settings, run_pe);
  } catch (const shoal::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
// [main]
