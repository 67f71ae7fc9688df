// SPDX-License-Identifier: Apache-2.0
// Collectives on streams, of every type and operator, and in kernels by a block, a warp and a
// thread; in place, over a team in reverse order, between other operations. Blocks of 1024 threads.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <cstring>
#include <vector>

#include "../check.h"
#include "start.h"

namespace {

constexpr nvshmem_team_t all = NVSHMEM_TEAM_WORLD;
constexpr int kArea = 64;  ///< elements from the result of one collective to the next
constexpr int kAreas = 9;
constexpr int kCount = 5, kBlock = 2;

int me, n;
cudaStream_t stream;
int* wrong;  ///< results of collectives in kernels that are not 0

template <typename T>
T value(int number) {
  return static_cast<T>(static_cast<float>(number));
}
int element(int pe, int i) {
  return pe + 1 + i % 3;
}

void copy(void* to, const void* from, std::size_t bytes) {
  CHECK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream) == cudaSuccess);
  CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

/// Result of `combine` over element i of all PEs.
template <typename Combine>
int over_all(int i, const Combine& combine) {
  int result = element(0, i);
  for (int pe = 1; pe < n; ++pe) result = combine(result, element(pe, i));
  return result;
}

/// Fills the source, runs `call` and compares the results.
template <typename T, typename Call>
void check(const char* what, T* dest, T* source, const Call& call) {
  std::vector<T> values(kArea), results(kAreas * kArea);
  for (int i = 0; i < kArea; ++i) values[static_cast<std::size_t>(i)] = value<T>(element(me, i));
  copy(source, values.data(), values.size() * sizeof(T));
  nvshmem_barrier_all();
  call();
  copy(results.data(), dest, results.size() * sizeof(T));
  const auto expect = [&](int area, int i, int number) {
    const auto found = results[static_cast<std::size_t>(area * kArea + i)];
    if (static_cast<float>(found) == static_cast<float>(number)) return;
    std::fprintf(stderr, "%s: area %d, element %d on PE %d is %f, not %d\n", what, area, i, me,
                 static_cast<double>(static_cast<float>(found)), number);
    std::_Exit(1);
  };
  const auto sum = [](int a, int b) { return a + b; };
  const auto prod = [](int a, int b) { return a * b; };
  const auto min = [](int a, int b) { return a < b ? a : b; };
  const auto max = [](int a, int b) { return a > b ? a : b; };
  for (int i = 0; i < kCount; ++i) {
    expect(0, i, element(n - 1, i));
    expect(3, i, over_all(i, sum));
    expect(4, i, over_all(i, prod));
    expect(5, i, over_all(i, min));
    expect(6, i, over_all(i, max));
  }
  for (int i = 0; i < kBlock * n; ++i) {
    expect(1, i, element(i / kBlock, i % kBlock));
    expect(2, i, element(i / kBlock, me * kBlock + i % kBlock));
  }
  for (int i = 0; i < kBlock; ++i) {
    expect(7, i, over_all(me * kBlock + i, sum));
    expect(8, i, over_all(me * kBlock + i, max));
  }
  nvshmem_barrier_all();
}

/// Like check, for the operators of bits: every PE has 0x40 and a bit of its own.
template <typename T, typename Call>
void check_bits(const char* what, T* dest, T* source, const Call& call) {
  std::vector<T> values(kArea, static_cast<T>(0x40 | 1 << me)), results(4 * kArea);
  copy(source, values.data(), values.size() * sizeof(T));
  nvshmem_barrier_all();
  call();
  copy(results.data(), dest, results.size() * sizeof(T));
  const int bits = (1 << n) - 1;
  const int expected[] = {0x40, 0x40 | bits, (n % 2 == 0 ? 0 : 0x40) | bits, 0x40 | bits};
  for (int area = 0; area < 4; ++area)
    for (int i = 0; i < kBlock; ++i) {
      const auto found = results[static_cast<std::size_t>(area * kArea + i)];
      if (found == static_cast<T>(expected[area])) continue;
      std::fprintf(stderr, "%s: area %d, element %d on PE %d is %llx, not %x\n", what, area, i, me,
                   static_cast<unsigned long long>(found), expected[area]);
      std::_Exit(1);
    }
  nvshmem_barrier_all();
}

// The calls, of functions with PREFIX and SUFFIX; the further arguments are those after the counts.
#define MOVE_AND_REDUCE(PREFIX, NAME, SUFFIX, ...)                                               \
  (PREFIX##_##NAME##_broadcast##SUFFIX(all, dest, source, kCount, pes - 1, ##__VA_ARGS__) |      \
   PREFIX##_##NAME##_fcollect##SUFFIX(all, dest + kArea, source, kBlock, ##__VA_ARGS__) |        \
   PREFIX##_##NAME##_alltoall##SUFFIX(all, dest + 2 * kArea, source, kBlock, ##__VA_ARGS__) |    \
   PREFIX##_##NAME##_sum_reduce##SUFFIX(all, dest + 3 * kArea, source, kCount, ##__VA_ARGS__) |  \
   PREFIX##_##NAME##_prod_reduce##SUFFIX(all, dest + 4 * kArea, source, kCount, ##__VA_ARGS__) | \
   PREFIX##_##NAME##_min_reduce##SUFFIX(all, dest + 5 * kArea, source, kCount, ##__VA_ARGS__) |  \
   PREFIX##_##NAME##_max_reduce##SUFFIX(all, dest + 6 * kArea, source, kCount, ##__VA_ARGS__) |  \
   PREFIX##_##NAME##_sum_reducescatter##SUFFIX(all, dest + 7 * kArea, source, kBlock,            \
                                               ##__VA_ARGS__) |                                  \
   PREFIX##_##NAME##_max_reducescatter##SUFFIX(all, dest + 8 * kArea, source, kBlock,            \
                                               ##__VA_ARGS__))
#define REDUCE_BITS(PREFIX, NAME, SUFFIX, ...)                                                  \
  (PREFIX##_##NAME##_and_reduce##SUFFIX(all, dest, source, kBlock, ##__VA_ARGS__) |             \
   PREFIX##_##NAME##_or_reduce##SUFFIX(all, dest + kArea, source, kBlock, ##__VA_ARGS__) |      \
   PREFIX##_##NAME##_xor_reduce##SUFFIX(all, dest + 2 * kArea, source, kBlock, ##__VA_ARGS__) | \
   PREFIX##_##NAME##_or_reducescatter##SUFFIX(all, dest + 3 * kArea, source, kBlock,            \
                                              ##__VA_ARGS__))
#define KERNEL(CALLS, KERNEL_NAME, TYPE, PREFIX, NAME, SUFFIX)                                    \
  __global__ void __launch_bounds__(1024) KERNEL_NAME(TYPE* dest, const TYPE* source, int* bad) { \
    const int pes = nvshmem_n_pes();                                                              \
    (void)pes;                                                                                    \
    const int result = CALLS(PREFIX, NAME, SUFFIX);                                               \
    if (result != 0) atomicAdd(bad, 1);                                                           \
  }
#define CHECK_TYPE(TYPE, NAME)                                                       \
  void check_##NAME(TYPE* dest, TYPE* source) {                                      \
    const int pes = n;                                                               \
    check(#NAME " on a stream", dest, source,                                        \
          [&] { CHECK(MOVE_AND_REDUCE(nvshmemx, NAME, _on_stream, stream) == 0); }); \
  }
SHOAL_NVSHMEM_RMA_TYPES(CHECK_TYPE)
#define CHECK_BITWISE(TYPE, NAME)                                                     \
  void check_bits_##NAME(TYPE* dest, TYPE* source) {                                  \
    check_bits(#NAME " on a stream", dest, source,                                    \
               [&] { CHECK(REDUCE_BITS(nvshmemx, NAME, _on_stream, stream) == 0); }); \
  }
SHOAL_SHMEM_BITWISE_REDUCE_TYPES(CHECK_BITWISE)

// In kernels, types of one width and kind share their code, and compiling each takes seconds.
KERNEL(MOVE_AND_REDUCE, by_block_float, float, nvshmemx, float, _block)
KERNEL(MOVE_AND_REDUCE, by_block_half, __half, nvshmemx, half, _block)
KERNEL(MOVE_AND_REDUCE, by_warp_bfloat16, __nv_bfloat16, nvshmemx, bfloat16, _warp)
KERNEL(MOVE_AND_REDUCE, by_thread_uint8, uint8_t, nvshmem, uint8, )
KERNEL(REDUCE_BITS, bits_by_block, uint64_t, nvshmemx, uint64, _block)

/// A fcollect whose block b is from the PE b of `team`, by bytes, then a broadcast in place.
__global__ void by_team(nvshmem_team_t team, int* dest, const int* source, int* bad) {
  int result = nvshmemx_fcollectmem_block(team, dest, source, sizeof(int));
  result |= nvshmemx_barrier_block(team);
  result |=
      nvshmemx_broadcastmem_block(team, dest, dest, sizeof(int), nvshmem_team_n_pes(team) - 1);
  result |= nvshmemx_int_sum_reduce_block(99999, dest, source, 1) == 1 ? 0 : 1;
  if (result != 0) atomicAdd(bad, 1);
}

void check_teams(int* dest, int* source) {
  nvshmem_team_t reversed;
  CHECK(nvshmem_team_split_strided(all, n - 1, -1, n, nullptr, 0, &reversed) == 0);
  std::vector<int> found(static_cast<std::size_t>(n));
  const auto bytes = found.size() * sizeof(int);
  copy(source, &me, sizeof me);
  nvshmem_barrier_all();
  for (const bool in_kernel : {false, true}) {
    if (in_kernel) {
      by_team<<<1, 32, 0, stream>>>(reversed, dest, source, wrong);
    } else {
      CHECK(nvshmemx_fcollectmem_on_stream(reversed, dest, source, sizeof(int), stream) == 0);
      CHECK(nvshmemx_broadcastmem_on_stream(reversed, dest, dest, sizeof(int), n - 1, stream) == 0);
    }
    copy(found.data(), dest, bytes);
    // Block 0 was that of PE n - 1; the last PE of the team, PE 0, has sent its own copy of it.
    for (int i = 0; i < n; ++i) CHECK(found[static_cast<std::size_t>(i)] == n - 1 - i);
    nvshmem_barrier_all();
  }
  nvshmem_team_destroy(reversed);
}

/// Sizes above and below the limits of the algorithms, in a ring of puts, reductions and barriers.
void check_sizes() {
  for (const std::size_t count : {std::size_t{100}, std::size_t{30'000}, std::size_t{1'000'000}}) {
    auto* const values = static_cast<float*>(nvshmem_calloc(count, sizeof(float)));
    std::vector<float> numbers(count, static_cast<float>(me + 1));
    copy(values, numbers.data(), count * sizeof(float));
    nvshmem_barrier_all();
    CHECK(nvshmemx_float_sum_reduce_on_stream(all, values, values, count, stream) == 0);
    CHECK(nvshmemx_barrier_on_stream(all, stream) == 0);
    nvshmemx_float_p_on_stream(values + 1, 100.0F + static_cast<float>(me), (me + 1) % n, stream);
    nvshmemx_barrier_all_on_stream(stream);
    copy(numbers.data(), values, count * sizeof(float));
    for (std::size_t i = 0; i < count; ++i)
      CHECK(numbers[i] == (i == 1 ? 100.0F + static_cast<float>((me + n - 1) % n)
                                  : static_cast<float>(n * (n + 1) / 2)));
    nvshmem_barrier_all();
    nvshmem_free(values);
  }
}

}  // namespace

int main() {
  if (!init_on_gpu()) return 77;
  me = nvshmem_my_pe();
  n = nvshmem_n_pes();
  CHECK(n <= 3);  // the products of small types
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  wrong = static_cast<int*>(nvshmem_calloc(1, sizeof(int)));
  void* const dest = nvshmem_calloc(kAreas * kArea, sizeof(double));
  void* const source = nvshmem_calloc(kArea, sizeof(double));
#define CALL(TYPE, NAME) check_##NAME(static_cast<TYPE*>(dest), static_cast<TYPE*>(source));
  SHOAL_NVSHMEM_RMA_TYPES(CALL)
#define CALL_BITWISE(TYPE, NAME) \
  check_bits_##NAME(static_cast<TYPE*>(dest), static_cast<TYPE*>(source));
  SHOAL_SHMEM_BITWISE_REDUCE_TYPES(CALL_BITWISE)
#define CHECK_KERNEL(CHECKS, KERNEL, TYPE, THREADS)                                               \
  CHECKS(#KERNEL, static_cast<TYPE*>(dest), static_cast<TYPE*>(source), [&] {                     \
    KERNEL<<<1, THREADS, 0, stream>>>(static_cast<TYPE*>(dest), static_cast<const TYPE*>(source), \
                                      wrong);                                                     \
  })
  CHECK_KERNEL(check, by_block_float, float, 1024);
  CHECK_KERNEL(check, by_block_half, __half, 1024);
  CHECK_KERNEL(check, by_warp_bfloat16, __nv_bfloat16, 32);
  CHECK_KERNEL(check, by_thread_uint8, uint8_t, 1);
  CHECK_KERNEL(check_bits, bits_by_block, uint64_t, 1024);
  check_teams(static_cast<int*>(dest), static_cast<int*>(source));
  check_sizes();
  int bad = 1;
  copy(&bad, wrong, sizeof bad);
  CHECK(bad == 0);
  for (void* const block : {source, dest, static_cast<void*>(wrong)}) nvshmem_free(block);
  nvshmem_finalize();
  return 0;
}
