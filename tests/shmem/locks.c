// SPDX-License-Identifier: Apache-2.0
// Locks: mutual exclusion, and the data that they protect.
#include <shmem.h>

#include "check.h"

enum { kRounds = 100 };

static long lock, other;
static long counter, owner = -1;

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes();
  for (int i = 0; i < kRounds; ++i) {
    if (i % 3 == 0) {
      while (shmem_test_lock(&lock) != 0) {
      }
    } else {
      shmem_set_lock(&lock);
    }
    // Plain put and get: only the lock orders them.
    CHECK(shmem_long_g(&owner, 1) == -1);
    shmem_long_p(&owner, me, 1);
    shmem_long_p(&counter, shmem_long_g(&counter, 1) + 1, 1);
    shmem_quiet();
    CHECK(shmem_long_g(&owner, 1) == me);
    shmem_long_p(&owner, -1, 1);
    shmem_clear_lock(&lock);
  }
  shmem_barrier_all();
  CHECK(shmem_long_g(&counter, 1) == (long)kRounds * n);

  // A lock that is taken; another lock is independent.
  if (me == 0) shmem_set_lock(&lock);
  shmem_barrier_all();
  if (me != 0) CHECK(shmem_test_lock(&lock) == 1);
  shmem_barrier_all();
  if (me == 1) {
    CHECK(shmem_test_lock(&other) == 0);
    shmem_clear_lock(&other);
  }
  if (me == 0) shmem_clear_lock(&lock);
  shmem_barrier_all();
  if (me == n - 1) {
    CHECK(shmem_test_lock(&lock) == 0);
    shmem_clear_lock(&lock);
  }
  shmem_finalize();
  return 0;
}
