// SPDX-License-Identifier: Apache-2.0
// Initialization by the OpenSHMEM of the program, here Shoal's: both interfaces in one program.
#include <nvshmem.h>
#include <nvshmemx.h>
#include <shmem.h>

#include "check.h"

int main() {
  shmem_init();
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_SHMEM, &attributes) == 0);
  CHECK(nvshmem_my_pe() == shmem_my_pe() && nvshmem_n_pes() == shmem_n_pes());
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  int* const box = static_cast<int*>(nvshmem_malloc(sizeof(int)));
  nvshmem_int_p(box, me, (me + 1) % n);
  nvshmem_barrier_all();
  CHECK(*box == (me + n - 1) % n);
  shmem_barrier_all();
  nvshmem_free(box);
  nvshmem_finalize();
  shmem_finalize();
  return 0;
}
