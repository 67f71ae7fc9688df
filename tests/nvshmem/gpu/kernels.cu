// SPDX-License-Identifier: Apache-2.0
// Functions inside kernels and on streams: put and get of each scope, atomics, signals, waits,
// barriers, and collective launch. Kernels of 1024 threads, with relocatable device code.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <vector>

#include "../check.h"
#include "start.h"

namespace {

constexpr int kCount = 1000;
constexpr unsigned kThreads = 1024;

struct Boxes {
  int* from_thread;
  int* from_warp;
  int* from_block;
  int* strided;
  unsigned long long* counter;
  float* value;
  uint64_t* flag;
  int* wrong;  ///< checks of kernels that do not hold
};

__global__ void exchange(Boxes boxes, const int* mine) {
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n;
  const bool leader = threadIdx.x == 0;
  if (leader) nvshmem_int_put(boxes.from_thread, mine, kCount, next);
  if (threadIdx.x < 32) nvshmemx_int_put_nbi_warp(boxes.from_warp, mine, kCount, next);
  nvshmemx_int_put_block(boxes.from_block, mine, kCount, next);
  nvshmemx_int_iput_block(boxes.strided, mine, 2, 3, 100, next);
  nvshmem_ulonglong_atomic_add(boxes.counter, 1, 0);
  if (leader) {
    nvshmem_float_atomic_set(boxes.value, static_cast<float>(me) + 0.5f, next);
    nvshmem_quiet();
    nvshmemx_signal_op(boxes.flag, 1, NVSHMEM_SIGNAL_ADD, next);
    nvshmem_signal_wait_until(boxes.flag, NVSHMEM_CMP_GE, 1);
  }
  if (threadIdx.x < 128) nvshmemx_barrier_all_warpgroup();
  nvshmemx_barrier_all_block();

  const int expected = 1000 * ((me + n - 1) % n);
  int wrong = 0;
  for (int i = static_cast<int>(threadIdx.x); i < kCount; i += static_cast<int>(blockDim.x)) {
    wrong += boxes.from_thread[i] != expected + i;
    wrong += boxes.from_warp[i] != expected + i;
    wrong += boxes.from_block[i] != expected + i;
    if (i < 100) wrong += boxes.strided[2 * i] != expected + 3 * i;
  }
  if (leader) {
    wrong +=
        nvshmem_ulonglong_g(boxes.counter, 0) != static_cast<unsigned long long>(n) * blockDim.x;
    wrong += *boxes.value != static_cast<float>((me + n - 1) % n) + 0.5f;
    wrong += nvshmem_team_n_pes(NVSHMEM_TEAM_WORLD) != n || nvshmem_team_my_pe(99999) != -1;
    wrong += nvshmem_int_g(boxes.from_block + 1, next) != 1000 * me + 1;
    wrong += nvshmem_ptr(boxes.wrong, me) != boxes.wrong;
    wrong += nvshmem_uint64_test(boxes.flag, NVSHMEM_CMP_NE, 1) != 0;
  }
  atomicAdd(boxes.wrong, wrong);
}

__global__ void largest(double2* pairs, int* wrong) {
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  if (threadIdx.x == 0) pairs[1] = make_double2(me == 0 ? -1 : 1, me);
  int bad = nvshmemx_double2_maxloc_reduce_block(NVSHMEM_TEAM_WORLD, pairs, pairs + 1, 1);
  bad += pairs[0].x != (n == 1 ? -1 : 1) || pairs[0].y != (n == 1 ? 0 : 1);
  atomicAdd(wrong, bad);
}

template <typename T>
T* allocate(std::size_t count) {
  return static_cast<T*>(nvshmem_calloc(count, sizeof(T)));
}

}  // namespace

int main() {
  if (!init_on_gpu()) return 77;
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes(), next = (me + 1) % n;
  cudaStream_t stream;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  Boxes boxes{allocate<int>(kCount),           allocate<int>(kCount),
              allocate<int>(kCount),           allocate<int>(kCount),
              allocate<unsigned long long>(1), allocate<float>(1),
              allocate<uint64_t>(1),           allocate<int>(1)};
  int* mine = allocate<int>(kCount);
  std::vector<int> numbers(kCount);
  for (int i = 0; i < kCount; ++i) numbers[static_cast<std::size_t>(i)] = 1000 * me + i;
  const auto copy = [&](void* to, const void* from, std::size_t bytes) {
    CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess);
    CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
  };
  copy(mine, numbers.data(), kCount * sizeof(int));
  nvshmem_barrier_all();

  // A grid of zeros fills the GPU; more does not fit.
  void* arguments[] = {&boxes, &mine};
  const auto* const kernel = reinterpret_cast<const void*>(&exchange);
  int most = 0;
  CHECK(nvshmemx_collective_launch_query_gridsize(kernel, dim3(kThreads), arguments, 0, &most) ==
        0);
  CHECK(most > 0);
  CHECK(nvshmemx_collective_launch(kernel, dim3(static_cast<unsigned>(most) + 1), dim3(kThreads),
                                   arguments, 0, stream) == NVSHMEMX_ERROR_INVALID_VALUE);
  CHECK(nvshmemx_collective_launch(kernel, dim3(1), dim3(kThreads), arguments, 0, stream) == 0);
  auto* const pairs = allocate<double2>(2);
  largest<<<1, kThreads, 0, stream>>>(pairs, boxes.wrong);
  CHECK(cudaGetLastError() == cudaSuccess);
  int wrong = -1;
  copy(&wrong, boxes.wrong, sizeof wrong);
  CHECK(wrong == 0);
  nvshmem_barrier_all();

  // The same operations on streams.
  nvshmemx_int_put_signal_on_stream(boxes.from_warp, mine + 1, 10, boxes.flag, 7,
                                    NVSHMEM_SIGNAL_SET, next, stream);
  nvshmemx_signal_wait_until_on_stream(boxes.flag, NVSHMEM_CMP_EQ, 7, stream);
  nvshmemx_int_p_on_stream(boxes.wrong, me + 5, next, stream);
  nvshmemx_barrier_all_on_stream(stream);
  copy(numbers.data(), boxes.from_warp, 10 * sizeof(int));
  for (int i = 0; i < 10; ++i)
    CHECK(numbers[static_cast<std::size_t>(i)] == 1000 * ((me + n - 1) % n) + i + 1);
  copy(&wrong, boxes.wrong, sizeof wrong);
  CHECK(wrong == (me + n - 1) % n + 5);
  CHECK(nvshmemx_int_g_on_stream(boxes.wrong, next, stream) == me + 5);
  nvshmemx_int_get_on_stream(mine, boxes.wrong, 1, next, stream);
  nvshmemx_quiet_on_stream(stream);
  copy(&wrong, mine, sizeof wrong);
  CHECK(wrong == me + 5);
  // The host's own operations on the same heap.
  CHECK(nvshmem_int_g(boxes.wrong, next) == me + 5);
  CHECK(nvshmem_ulonglong_atomic_fetch(boxes.counter, 0) ==
        1ULL * kThreads * static_cast<unsigned>(n));
  nvshmem_barrier_all();
  for (void* const block :
       {static_cast<void*>(mine), static_cast<void*>(boxes.wrong), static_cast<void*>(pairs)})
    nvshmem_free(block);
  nvshmem_finalize();
  return 0;
}
