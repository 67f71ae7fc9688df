// SPDX-License-Identifier: Apache-2.0
// Initialization by an MPI communicator: the odd and the even ranks are a world each.
#include <mpi.h>
#include <nvshmem.h>
#include <nvshmemx.h>

#include "check.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);

  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  attributes.mpi_comm = &half;
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attributes) == 0);
  CHECK(nvshmem_my_pe() == rank / 2 && nvshmem_n_pes() == size / 2);
  int* const box = static_cast<int*>(nvshmem_malloc(sizeof(int)));
  nvshmem_int_p(box, rank, (nvshmem_my_pe() + 1) % nvshmem_n_pes());
  nvshmem_barrier_all();
  CHECK(*box % 2 == rank % 2);
  nvshmem_free(box);
  CHECK(nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attributes) == 0);  // counted
  nvshmem_finalize();
  nvshmem_finalize();
  MPI_Comm_free(&half);
  MPI_Finalize();
  return 0;
}
