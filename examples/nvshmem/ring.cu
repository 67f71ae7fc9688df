// SPDX-License-Identifier: Apache-2.0
// ring.cu: each PE sends a block of numbers to the next PE from a kernel, and waits for that of the
// one before it. Start with: shoal-run -n 2 ./example_nvshmem_ring
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdio>
#include <vector>

constexpr int kCount = 1024;

__global__ void ring(int* received, const int* mine, uint64_t* arrived) {
  const int next = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  nvshmemx_int_put_signal_block(received, mine, kCount, arrived, 1, NVSHMEM_SIGNAL_SET, next);
  if (threadIdx.x == 0) nvshmem_signal_wait_until(arrived, NVSHMEM_CMP_EQ, 1);
}

int main() {
  int gpus = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&gpus); error != cudaSuccess || gpus == 0) {
    std::fprintf(stderr, "ring: needs a GPU: %s\n",
                 error != cudaSuccess ? cudaGetErrorString(error) : "this machine has none");
    return 77;  // CTest: skipped
  }
  nvshmem_init();
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  auto* const received = static_cast<int*>(nvshmem_calloc(kCount, sizeof(int)));
  auto* const mine = static_cast<int*>(nvshmem_malloc(kCount * sizeof(int)));
  auto* const arrived = static_cast<uint64_t*>(nvshmem_calloc(1, sizeof(uint64_t)));
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  std::vector<int> numbers(kCount, 100 + me);
  cudaMemcpyAsync(mine, numbers.data(), kCount * sizeof(int), cudaMemcpyDefault, stream);
  nvshmemx_barrier_all_on_stream(stream);
  ring<<<1, 256, 0, stream>>>(received, mine, arrived);
  cudaMemcpyAsync(numbers.data(), received, kCount * sizeof(int), cudaMemcpyDefault, stream);
  const cudaError_t result = cudaStreamSynchronize(stream);
  const int expected = 100 + (me + n - 1) % n;
  int wrong = result == cudaSuccess ? 0 : kCount;
  for (const int number : numbers) wrong += number == expected ? 0 : 1;
  std::printf("PE %d of %d: %d from the PE before, %d wrong\n", me, n, numbers[0], wrong);
  nvshmem_barrier_all();
  nvshmem_free(arrived);
  nvshmem_free(mine);
  nvshmem_free(received);
  nvshmem_finalize();
  return wrong == 0 ? 0 : 1;
}
