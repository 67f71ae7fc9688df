// SPDX-License-Identifier: Apache-2.0
// A profiling library replaces shmem_X and calls pshmem_X.
#include <pshmem.h>

#include "check.h"

static int puts_seen, inits_seen;
static int word;

void shmem_init(void) {
  ++inits_seen;
  pshmem_init();
}
void shmem_int_p(int* dest, int value, int pe) {
  ++puts_seen;
  pshmem_int_p(dest, value + 1, pe);
}

int main(void) {
  shmem_init();
  const int me = pshmem_my_pe(), n = pshmem_n_pes(), next = (me + 1) % n;
  shmem_int_p(&word, 10 * me, next);
  pshmem_barrier_all();
  CHECK(word == 10 * ((me + n - 1) % n) + 1);
  pshmem_barrier_all();
  shmem_p(&word, 7, next);  // the generic form calls the replaced routine
  pshmem_barrier_all();
  CHECK(word == 8 && puts_seen == 2 && inits_seen == 1);
  pshmem_finalize();
  return 0;
}
