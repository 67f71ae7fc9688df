// SPDX-License-Identifier: Apache-2.0
// shmem_bench.c: times of OpenSHMEM calls, by size. The same source is compiled for Shoal and for
// another OpenSHMEM; shmem_bench.py compares them.
//
// PE 0 prints a line per row: operation, bytes, microseconds per call (the least of kRounds means).
// Arguments name the rows to run. The time of a collective ends when all PEs have it: the root of a
// broadcast may be far ahead.
#include <shmem.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

enum { kMost = 4 << 20, kRounds = 7 };

static char *symmetric_a, *symmetric_b, *local;
static long word;
static int me, n;

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

// One-sided calls are made by PE 0, to the last PE; collectives by all.
static void put(size_t bytes) {
  shmem_putmem(symmetric_a, local, bytes, n - 1);
}
static void put_quiet(size_t bytes) {
  shmem_putmem(symmetric_a, local, bytes, n - 1);
  shmem_quiet();
}
static void get(size_t bytes) {
  shmem_getmem(local, symmetric_a, bytes, n - 1);
}
static void fetch_add(size_t bytes) {
  (void)bytes;
  shmem_long_atomic_fetch_add(&word, 1, n - 1);
}
static void add(size_t bytes) {
  (void)bytes;
  shmem_long_atomic_add(&word, 1, n - 1);
}
static void compare_swap(size_t bytes) {
  (void)bytes;
  shmem_long_atomic_compare_swap(&word, 0, 1, n - 1);
}
static void barrier(size_t bytes) {
  (void)bytes;
  shmem_barrier_all();
}
static long sync_array[SHMEM_BCAST_SYNC_SIZE + SHMEM_REDUCE_SYNC_SIZE + SHMEM_ALLTOALL_SYNC_SIZE];
static char work[kMost / 2 + 8 * SHMEM_REDUCE_MIN_WRKDATA_SIZE];
// Active sets: Open MPI 4 has no teams.
static void broadcast(size_t bytes) {
  shmem_broadcast64(symmetric_b, symmetric_a, bytes / 8, 0, 0, 0, n, sync_array);
}
static void reduce(size_t bytes) {
  shmem_double_sum_to_all((double*)(void*)symmetric_b, (double*)(void*)symmetric_a,
                          (int)(bytes / 8), 0, 0, n, (double*)(void*)work, sync_array);
}
static void all_to_all(size_t bytes) {
  shmem_alltoall64(symmetric_b, symmetric_a, bytes / 8 / (size_t)n, 0, 0, n, sync_array);
}
static void malloc_free(size_t bytes) {
  shmem_free(shmem_malloc(bytes));
}

struct Row {
  const char* name;
  void (*call)(size_t bytes);
  int collective;
  size_t least, most;
};
static const struct Row rows[] = {
    {"put", put, 0, 8, kMost},       {"put+quiet", put_quiet, 0, 8, kMost},
    {"get", get, 0, 8, kMost},       {"fetch_add", fetch_add, 0, 8, 8},
    {"add", add, 0, 8, 8},           {"compare_swap", compare_swap, 0, 8, 8},
    {"barrier", barrier, 1, 8, 8},   {"broadcast", broadcast, 1, 8, kMost},
    {"reduce", reduce, 1, 8, kMost}, {"alltoall", all_to_all, 1, 64, kMost},
    {"malloc+free", malloc_free, 1, 64, 64},
};

static const size_t sizes[] = {8, 64, 512, 4096, 32768, 262144, kMost};

static double measure(const struct Row* row, size_t bytes) {
  const int calls = bytes <= 1024 ? 1000 : bytes <= 65536 ? 200 : 20;
  double best = 1e30;
  for (int round = 0; round < kRounds; ++round) {
    shmem_barrier_all();
    const double start = now_us();
    if (row->collective || me == 0)
      for (int i = 0; i < calls; ++i) row->call(bytes);
    if (row->collective)
      shmem_barrier_all();
    else if (me == 0)
      shmem_quiet();
    const double each = (now_us() - start) / calls;
    if (each < best) best = each;
  }
  shmem_barrier_all();
  return best;
}

// True if the arguments, if there are any, name the row.
static int is_wanted(const char* name, int argc, char** argv) {
  for (int i = 1; i < argc; ++i)
    if (strcmp(argv[i], name) == 0) return 1;
  return argc < 2;
}

int main(int argc, char** argv) {
  shmem_init();
  me = shmem_my_pe();
  n = shmem_n_pes();
  symmetric_a = shmem_malloc(kMost);
  symmetric_b = shmem_malloc(kMost);
  local = shmem_malloc(kMost);
  memset(symmetric_a, 0, kMost);
  memset(symmetric_b, 0, kMost);
  memset(local, 0, kMost);
  for (size_t i = 0; i < sizeof sync_array / sizeof sync_array[0]; ++i)
    sync_array[i] = SHMEM_SYNC_VALUE;
  shmem_barrier_all();
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; ++r)
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i) {
      const size_t bytes = sizes[i];
      if (bytes < rows[r].least || bytes > rows[r].most) continue;
      if (!is_wanted(rows[r].name, argc, argv)) continue;
      const double us = measure(&rows[r], bytes);
      if (me == 0) printf("%s %zu %.4f\n", rows[r].name, bytes, us);
      fflush(stdout);
    }
  if (me == 0) printf("end\n");
  fflush(stdout);
  shmem_finalize();
  return 0;
}
