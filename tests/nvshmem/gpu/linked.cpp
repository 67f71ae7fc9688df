// SPDX-License-Identifier: Apache-2.0
// A kernel that was linked with the library of device functions and is loaded after initialization:
// as a module of the driver API, then as a library.
#include <cuda.h>
#include <cuda_runtime.h>
#include <nvshmem_host.h>

#include <cstdint>
#include <vector>

#include "../check.h"
#include "start.h"

// linked_ring.cu, linked for this build's GPU.
asm(".section .rodata\n.balign 16\n.global linked_ring\nlinked_ring:\n.incbin \"" SHOAL_LINKED_RING
    "\"\n.previous");
extern "C" const unsigned char linked_ring[];

namespace {

constexpr std::size_t kCount = 1000;

/// A function of the driver API, which this program does not link.
template <typename Function>
Function driver(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  CHECK(cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result) ==
        cudaSuccess);
  CHECK(found != nullptr);
  return reinterpret_cast<Function>(found);
}

template <typename T>
T* allocate(std::size_t count) {
  return static_cast<T*>(nvshmem_calloc(count, sizeof(T)));
}

struct Ring {
  int* box = allocate<int>(kCount);
  int* mine = allocate<int>(kCount);
  std::uint64_t* flag = allocate<std::uint64_t>(1);
  int* arrived = allocate<int>(1);

  static int value(int pe, std::size_t i) { return 1000 * pe + static_cast<int>(i); }

  Ring() {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < kCount; ++i) numbers.push_back(value(nvshmem_my_pe(), i));
    CHECK(cudaMemcpy(mine, numbers.data(), kCount * sizeof(int), cudaMemcpyDefault) == cudaSuccess);
    nvshmem_barrier_all();
  }

  /// Runs a turn, 1 or 2, by `launch(arguments)` and checks what arrived.
  template <typename Launch>
  void run(std::uint64_t turn, const Launch& launch) {
    std::size_t count = kCount;
    void* arguments[] = {&box, &mine, &count, &flag, &turn, &arrived};
    launch(arguments);
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    const int n = nvshmem_n_pes(), previous = (nvshmem_my_pe() + n - 1) % n;
    std::vector<int> seen(kCount);
    CHECK(cudaMemcpy(seen.data(), box, kCount * sizeof(int), cudaMemcpyDefault) == cudaSuccess);
    for (std::size_t i = 0; i < kCount; ++i) CHECK(seen[i] == value(previous, i));
    // The previous PE adds the last number that it received, once a turn.
    CHECK(cudaMemcpy(seen.data(), arrived, sizeof(int), cudaMemcpyDefault) == cudaSuccess);
    CHECK(seen[0] == static_cast<int>(turn) * value((previous + n - 1) % n, kCount - 1));
    nvshmem_barrier_all();
  }
};

void run_module(Ring& ring) {
  CUmodule module = nullptr;
  CHECK(driver<decltype(&cuModuleLoadData)>("cuModuleLoadData")(&module, linked_ring) ==
        CUDA_SUCCESS);
  CHECK(nvshmemx_cumodule_init(module) == NVSHMEMX_SUCCESS);
  CUfunction kernel = nullptr;
  CHECK(driver<decltype(&cuModuleGetFunction)>("cuModuleGetFunction")(&kernel, module, "ring") ==
        CUDA_SUCCESS);
  const auto launch = driver<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  ring.run(1, [&](void** arguments) {
    CHECK(launch(kernel, 1, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr) == CUDA_SUCCESS);
  });
  CHECK(nvshmemx_cumodule_finalize(module) == NVSHMEMX_SUCCESS);
}

void run_library(Ring& ring) {
  cudaLibrary_t library = nullptr;
  CHECK(cudaLibraryLoadData(&library, linked_ring, nullptr, nullptr, 0, nullptr, nullptr, 0) ==
        cudaSuccess);
  CHECK(nvshmemx_culibrary_init(library) == NVSHMEMX_SUCCESS);
  cudaKernel_t kernel = nullptr;
  CHECK(cudaLibraryGetKernel(&kernel, library, "ring") == cudaSuccess);
  ring.run(2, [&](void** arguments) {
    CHECK(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(1), dim3(64), arguments, 0,
                           nullptr) == cudaSuccess);
  });
  CHECK(nvshmemx_culibrary_finalize(library) == NVSHMEMX_SUCCESS);
}

}  // namespace

int main() {
  if (!init_on_gpu()) return 77;
  Ring ring;
  run_module(ring);
  run_library(ring);
  nvshmem_finalize();
  return 0;
}
