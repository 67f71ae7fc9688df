// SPDX-License-Identifier: Apache-2.0
// A second unit of the same program: its functions and state must not clash with the first one's.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "units.h"

__global__ void second_unit(int* box) {
  nvshmem_int_p(box, nvshmem_my_pe(), 0);
  nvshmemx_int_put_block(box, box, 1, 0);
  nvshmemx_barrier_all_block();
}
