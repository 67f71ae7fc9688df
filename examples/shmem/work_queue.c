// SPDX-License-Identifier: Apache-2.0
// work_queue.c: tasks of different length, taken from a counter on PE 0. Results go into a
// histogram on PE 0, which a lock protects.
#include <shmem.h>
#include <stdio.h>

enum { kTasks = 400, kBins = 10 };

static long next_task;  // on PE 0
static long lock;
static int histogram[kBins];  // on PE 0

// Steps of the Collatz sequence from `start` to 1.
static int steps_from(long start) {
  int steps = 0;
  for (; start != 1; ++steps) start = start % 2 == 0 ? start / 2 : 3 * start + 1;
  return steps;
}

int main(void) {
  shmem_init();
  const int me = shmem_my_pe();
  int done = 0;
  for (long task; (task = shmem_long_atomic_fetch_inc(&next_task, 0)) < kTasks; ++done) {
    const int bin = steps_from(task + 1) % kBins;
    shmem_set_lock(&lock);
    shmem_int_p(&histogram[bin], shmem_int_g(&histogram[bin], 0) + 1, 0);
    shmem_clear_lock(&lock);
  }
  printf("PE %d did %d tasks\n", me, done);
  shmem_barrier_all();

  int total = 0;
  for (int bin = 0; bin < kBins; ++bin) total += histogram[bin];
  const int complete = me != 0 || total == kTasks;
  shmem_finalize();
  return complete ? 0 : 1;
}
