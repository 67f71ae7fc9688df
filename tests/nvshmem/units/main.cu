// SPDX-License-Identifier: Apache-2.0
// The host of both kernels; a unit without device code of its own. Compiled and linked, not run.
#define NVSHMEM_HOSTLIB_ONLY
#include <nvshmem.h>
#include <nvshmemx.h>

#include "units.h"

int main() {
  nvshmem_init();
  const int pes = nvshmem_n_pes();
  int* const box = static_cast<int*>(nvshmem_malloc(1024));
  int* argument = box;
  void* arguments[] = {&argument};
  const auto* const kernel = reinterpret_cast<const void*>(&second_unit);
  const int launched =
      nvshmemx_collective_launch(kernel, dim3(1), dim3(32), arguments, 0, cudaStreamPerThread);
  first_unit<<<1, 32>>>(box, nullptr, nullptr, nullptr, nullptr, nullptr);
  nvshmem_free(box);
  nvshmem_finalize();
  return launched + pes;
}
