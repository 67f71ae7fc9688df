// SPDX-License-Identifier: Apache-2.0
// Makes the mistake that the argument names. tests/CMakeLists.txt compares the message.
#include <nvshmem.h>
#include <nvshmemx.h>

#include <map>
#include <string>

#include "check.h"

namespace {

int* words;
int on_the_stack;
uint64_t* flag;

const std::map<std::string, void (*)()> mistakes = {
    {"pe", [] { nvshmem_int_p(words, 1, 2); }},
    {"negative_pe", [] { nvshmem_int_g(words, -1); }},
    {"stack", [] { nvshmem_int_put(&on_the_stack, words, 1, 1); }},
    {"overflow", [] { nvshmem_int_put(words, words, std::size_t{1} << 62, 1); }},
    {"unaligned",
     [] { nvshmem_int_atomic_inc(reinterpret_cast<int*>(reinterpret_cast<char*>(words) + 2), 1); }},
    {"stride", [] { nvshmem_int_iput(words, words, 0, 1, 4, 1); }},
    {"sig_op", [] { nvshmem_putmem_signal(words, words, 4, flag, 1, 7, 1); }},
    {"cmp", [] { nvshmemx_signal_wait_until_on_stream(flag, 6, 1, nullptr); }},
    {"free", [] { nvshmem_free(&on_the_stack); }},
    {"team", [] { nvshmem_barrier(NVSHMEM_TEAM_INVALID); }},
    {"split_overlap",
     [] {
       nvshmem_team_t team;
       nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, 1 + nvshmem_my_pe(), nullptr, 0, &team);
     }},
    {"split_differs",
     [] {
       const int me = nvshmem_my_pe();
       nvshmem_team_t team;
       nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, me, 1 - 2 * me, 2, nullptr, 0, &team);
     }},
    {"destroy_world", [] { nvshmem_team_destroy(NVSHMEM_TEAM_WORLD); }},
    {"stream", [] { nvshmemx_int_put_on_stream(words, words, 1, 1, nullptr); }},
    {"get_on_stream", [] { (void)nvshmemx_int_g_on_stream(words, 1, nullptr); }},
    {"reduce_on_stream",
     [] { nvshmemx_int_sum_reduce_on_stream(NVSHMEM_TEAM_WORLD, words, words, 1, nullptr); }},
    {"scatter_overflow",
     [] { nvshmem_int_sum_reducescatter(NVSHMEM_TEAM_WORLD, words, words, std::size_t{1} << 62); }},
    {"root", [] { nvshmem_int_broadcast(NVSHMEM_TEAM_WORLD, words, words, 1, 2); }},
    {"other_flags",
     [] {
       nvshmemx_uniqueid_t id;
       nvshmemx_get_uniqueid(&id);
       nvshmemx_init_attr_t other;
       nvshmemx_set_attr_uniqueid_args(nvshmem_my_pe(), 2, &id, &other);
       nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &other);
     }},
    {"late",
     [] {
       nvshmem_finalize();
       nvshmem_barrier_all();
     }},
};

}  // namespace

int main(int, char** argv) {
  const std::string mistake = argv[1];
  nvshmemx_init_attr_t attributes = NVSHMEMX_INIT_ATTR_INITIALIZER;
  if (mistake == "early") nvshmem_barrier_all();
  if (mistake == "flags") nvshmemx_init_attr(64, &attributes);
  if (mistake == "no_id") nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
  if (mistake == "empty_id") {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(0, 2, &id, &attributes);
    nvshmemx_init_attr(NVSHMEMX_INIT_WITH_UNIQUEID, &attributes);
  }
  if (mistake == "rank") {
    nvshmemx_uniqueid_t id = NVSHMEMX_UNIQUEID_INITIALIZER;
    nvshmemx_set_attr_uniqueid_args(2, 2, &id, &attributes);
  }
  if (mistake == "no_mpi") nvshmemx_init_attr(NVSHMEMX_INIT_WITH_MPI_COMM, &attributes);
  if (mistake == "no_shmem") nvshmemx_init_attr(NVSHMEMX_INIT_WITH_SHMEM, &attributes);
  if (mistake == "thread_level") nvshmem_init_thread(9, nullptr);
  nvshmem_init();
  words = static_cast<int*>(nvshmem_malloc(64));
  flag = static_cast<uint64_t*>(nvshmem_malloc(8));
  if (mistake == "exit") {
    if (nvshmem_my_pe() == 0) nvshmem_global_exit(5);
    nvshmem_barrier_all();
  }
  mistakes.at(mistake)();
  return 0;
}
