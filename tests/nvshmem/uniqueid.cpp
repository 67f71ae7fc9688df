// SPDX-License-Identifier: Apache-2.0
// Initialization by unique id: one process makes the id and forks the others. Twice, with other
// PEs, since a process may start the library again.
#include <nvshmem.h>
#include <nvshmemx.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "check.h"

namespace {

void run_pe(int rank, int ranks, const nvshmemx_uniqueid_t& id) {
  nvshmemx_init_attr_t attributes;
  std::memset(&attributes, 0xa5, sizeof attributes);  // as programs that do not initialize it
  CHECK(nvshmemx_set_attr_uniqueid_args(rank, ranks, &id, &attributes) == 0);
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0);
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes) == 0);  // counted
  nvshmem_init();                                                            // the same
  nvshmem_finalize();
  nvshmem_finalize();
  CHECK(nvshmem_my_pe() == rank && nvshmem_n_pes() == ranks);
  int* const sum = static_cast<int*>(nvshmem_calloc(1, sizeof(int)));
  nvshmem_int_atomic_add(sum, rank + 1, 0);
  nvshmem_barrier_all();
  CHECK(nvshmem_int_g(sum, 0) == ranks * (ranks + 1) / 2);
  nvshmem_barrier_all();
  nvshmem_free(sum);
  nvshmem_finalize();
}

}  // namespace

int main() {
  static_assert(sizeof(nvshmemx_uniqueid_t) == 128 && sizeof(nvshmemx_uniqueid_args_t) == 24 &&
                sizeof(nvshmemx_init_args_t) == 128 && sizeof(nvshmemx_init_attr_t) == 144 &&
                sizeof(nvshmem_team_config_t) == 64);
  for (int ranks = 3; ranks >= 1; ranks -= 2) {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    CHECK(nvshmemx_get_uniqueid(&id) == 0);
    for (int rank = 1; rank < ranks; ++rank) {
      if (fork() == 0) {
        run_pe(rank, ranks, id);
        std::_Exit(0);
      }
    }
    run_pe(0, ranks, id);
    for (int rank = 1; rank < ranks; ++rank) {
      int status = -1;
      CHECK(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }
  return 0;
}
