// SPDX-License-Identifier: Apache-2.0
// SHMEM_THREAD_MULTIPLE: operations, waits and collectives of several threads at once.
#include <pthread.h>
#include <shmem.h>

#include "check.h"

enum { kThreads = 4 };

static int me, n, next, last, rounds;
static long counter;
static long boxes[kThreads], flags[kThreads], acknowledged[kThreads];
static uint64_t same_pe;
static int sums[kThreads], parts[kThreads];
static shmem_team_t teams[kThreads];
static long lock, guarded;

// A ping between the same threads of two PEs; each thread has a team of its own.
static void* work(void* argument) {
  const long t = (long)(intptr_t)argument;
  shmem_ctx_t ctx;
  CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &ctx) == 0);
  for (long round = 1; round <= rounds; ++round) {
    shmem_long_atomic_inc(&counter, 0);
    shmem_ctx_long_p(ctx, &boxes[t], round * 10 + t, next);
    shmem_ctx_quiet(ctx);
    shmem_long_atomic_set(&flags[t], round, next);
    shmem_long_wait_until(&flags[t], SHMEM_CMP_EQ, round);
    CHECK(boxes[t] == round * 10 + t);
    shmem_long_atomic_set(&acknowledged[t], round, last);
    shmem_long_wait_until(&acknowledged[t], SHMEM_CMP_EQ, round);
    if (round % 20 == 0) {
      parts[t] = me + (int)t;
      CHECK(shmem_int_sum_reduce(teams[t], &sums[t], &parts[t], 1) == 0);
      CHECK(sums[t] == n * (n - 1) / 2 + n * t);
    }
    if (round % 50 == 0) {
      shmem_set_lock(&lock);
      shmem_long_p(&guarded, shmem_long_g(&guarded, 0) + 1, 0);
      shmem_clear_lock(&lock);
    }
  }
  shmem_ctx_destroy(ctx);
  return NULL;
}

// Threads of one PE may wait for each other.
static void* signal_self(void* argument) {
  (void)argument;
  shmem_signal_set(&same_pe, 1, me);
  return NULL;
}

int main(void) {
  int provided = 0;
  shmem_init_thread(SHMEM_THREAD_MULTIPLE, &provided);
  CHECK(provided == SHMEM_THREAD_MULTIPLE);
  rounds = few() ? 100 : 200;
  me = shmem_my_pe();
  n = shmem_n_pes();
  next = (me + 1) % n;
  last = (me + n - 1) % n;
  for (int t = 0; t < kThreads; ++t)
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &teams[t]) == 0);
  pthread_t threads[kThreads], other;
  for (long t = 0; t < kThreads; ++t)
    CHECK(pthread_create(&threads[t], NULL, work, (void*)(intptr_t)t) == 0);
  for (int t = 0; t < kThreads; ++t) pthread_join(threads[t], NULL);
  CHECK(pthread_create(&other, NULL, signal_self, NULL) == 0);
  shmem_signal_wait_until(&same_pe, SHMEM_CMP_EQ, 1);
  pthread_join(other, NULL);
  shmem_barrier_all();
  if (me == 0)
    CHECK(counter == (long)kThreads * rounds * n && guarded == rounds / 50L * kThreads * n);
  shmem_finalize();
  return 0;
}
