// SPDX-License-Identifier: Apache-2.0
// shmem_global_exit: one PE ends all others, whatever they do, with its status.
#include <shmem.h>
#include <unistd.h>

#include "check.h"

static long never, lock;

int main(int argc, char** argv) {
  const int status = argc > 1 ? atoi(argv[1]) : 0;
  shmem_init();
  const int me = shmem_my_pe();
  printf("PE %d was here", me);  // buffered
  if (me == 1) shmem_set_lock(&lock);
  shmem_barrier_all();
  if (me == 0) shmem_global_exit(status);
  if (me == 1) shmem_long_wait_until(&never, SHMEM_CMP_NE, 0);
  if (me == 2) shmem_set_lock(&lock);
  if (me == 3) sleep(300);
  if (me == 4) shmem_barrier_all();
  for (;;) {
  }
}
