// SPDX-License-Identifier: Apache-2.0
// Operations and collectives on streams, and gets in kernels, between nodes of one PE each.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstdlib>
#include <vector>

#include "../check.h"
#include "start.h"

namespace {

constexpr int kCount = 200'000;
constexpr nvshmem_team_t all = NVSHMEM_TEAM_WORLD;

int me, n;
cudaStream_t stream;

void copy(void* to, const void* from, std::size_t bytes) {
  CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}
int value(int pe, int i) {
  return pe * 1000 + i % 977;
}
std::vector<int> values(int pe, int count) {
  std::vector<int> all_values(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) all_values[static_cast<std::size_t>(i)] = value(pe, i);
  return all_values;
}
std::vector<int> fetch(const int* from, int count) {
  std::vector<int> found(static_cast<std::size_t>(count));
  copy(found.data(), from, found.size() * sizeof(int));
  nvshmem_barrier_all();
  return found;
}

__global__ void read(int* dest, const int* source, int* words, int pe) {
  nvshmemx_int_get_block(dest, source, 1000, pe);
  if (threadIdx.x < 4) words[threadIdx.x] = nvshmem_int_g(source + threadIdx.x, pe);
}

void check_operations(int* dest, int* source, uint64_t* flags) {
  const int to = (me + 1) % n, from = (me + n - 1) % n;
  const std::vector<int> mine = values(me, kCount), theirs = values(from, kCount);
  nvshmemx_int_put_nbi_on_stream(dest, source, kCount, to, stream);
  nvshmemx_quiet_on_stream(stream);
  nvshmemx_signal_op_on_stream(flags, 1, NVSHMEM_SIGNAL_SET, to, stream);
  nvshmemx_signal_wait_until_on_stream(flags, NVSHMEM_CMP_EQ, 1, stream);
  CHECK(fetch(dest, kCount) == theirs);
  nvshmemx_int_get_nbi_on_stream(dest, source, kCount, to, stream);
  CHECK(fetch(dest, kCount) == values(to, kCount));
  nvshmemx_putmem_signal_nbi_on_stream(dest, source, 4096, flags + 1, 5, NVSHMEM_SIGNAL_ADD, to,
                                       stream);
  nvshmemx_signal_wait_until_on_stream(flags + 1, NVSHMEM_CMP_GE, 5, stream);
  nvshmemx_int_p_on_stream(dest + 2000, 7 + me, to, stream);
  nvshmemx_int_iput_on_stream(dest + 3000, source, 2, 3, 5, to, stream);
  nvshmemx_barrier_all_on_stream(stream);
  const std::vector<int> found = fetch(dest, 4000);
  for (int i = 0; i < 1024; ++i) CHECK(found[static_cast<std::size_t>(i)] == value(from, i));
  CHECK(found[2000] == 7 + from);
  for (int i = 0; i < 5; ++i)
    CHECK(found[static_cast<std::size_t>(3000 + 2 * i)] == value(from, 3 * i));
  CHECK(nvshmemx_int_g_on_stream(source + 3, to, stream) == value(to, 3));
  read<<<1, 64, 0, stream>>>(dest, source, dest + 1000, to);
  const std::vector<int> got = fetch(dest, 1004);
  for (int i = 0; i < 1000; ++i) CHECK(got[static_cast<std::size_t>(i)] == value(to, i));
  for (int i = 0; i < 4; ++i) CHECK(got[static_cast<std::size_t>(1000 + i)] == value(to, i));
}

void check_collectives(int* dest, int* source, int count) {
  const auto sum = [&](int i) {
    int result = 0;
    for (int pe = 0; pe < n; ++pe) result += value(pe, i);
    return result;
  };
  CHECK(nvshmemx_int_sum_reduce_on_stream(all, dest, source, count, stream) == 0);
  std::vector<int> found = fetch(dest, count);
  for (int i = 0; i < count; ++i) CHECK(found[static_cast<std::size_t>(i)] == sum(i));
  CHECK(nvshmemx_int_sum_reducescatter_on_stream(all, dest, source, count / n, stream) == 0);
  found = fetch(dest, count / n);
  for (int i = 0; i < count / n; ++i)
    CHECK(found[static_cast<std::size_t>(i)] == sum(me * (count / n) + i));
  CHECK(nvshmemx_int_broadcast_on_stream(all, dest, source, count, n - 1, stream) == 0);
  CHECK(fetch(dest, count) == values(n - 1, count));
  CHECK(nvshmemx_int_fcollect_on_stream(all, dest, source, count / n, stream) == 0);
  found = fetch(dest, count / n * n);
  for (int i = 0; i < count / n * n; ++i)
    CHECK(found[static_cast<std::size_t>(i)] == value(i / (count / n), i % (count / n)));
  CHECK(nvshmemx_int_alltoall_on_stream(all, dest, source, count / n, stream) == 0);
  found = fetch(dest, count / n * n);
  for (int i = 0; i < count / n * n; ++i)
    CHECK(found[static_cast<std::size_t>(i)] ==
          value(i / (count / n), me * (count / n) + i % (count / n)));
  CHECK(nvshmemx_barrier_on_stream(all, stream) == 0);
  CHECK(nvshmemx_team_sync_on_stream(all, stream) == 0);
}

}  // namespace

int main() {
  setenv("SHOAL_NODE_SIZE", "1", 1);  // each PE is a node of its own
  if (!init_on_gpu()) return 77;
  me = nvshmem_my_pe();
  n = nvshmem_n_pes();
  CHECK(nvshmem_team_n_pes(NVSHMEMX_TEAM_NODE) == 1);
  int gpus = 0;
  CHECK(cudaGetDeviceCount(&gpus) == cudaSuccess && cudaSetDevice(me % gpus) == cudaSuccess);
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  auto* const dest = static_cast<int*>(nvshmem_calloc(kCount, sizeof(int)));
  auto* const source = static_cast<int*>(nvshmem_calloc(kCount, sizeof(int)));
  auto* const flags = static_cast<uint64_t*>(nvshmem_calloc(2, sizeof(uint64_t)));
  const std::vector<int> mine = values(me, kCount);
  copy(source, mine.data(), mine.size() * sizeof(int));
  nvshmem_barrier_all();
  check_operations(dest, source, flags);
  check_collectives(dest, source, 12);
  check_collectives(dest, source, kCount);
  for (void* const block :
       {static_cast<void*>(flags), static_cast<void*>(source), static_cast<void*>(dest)})
    nvshmem_free(block);
  nvshmem_finalize();
  return 0;
}
