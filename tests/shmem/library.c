// SPDX-License-Identifier: Apache-2.0
// Setup, exit and queries.
#include <shmem.h>

#include "check.h"

static int variable;
const int constant = 1;

int main(void) {
  int initialized = -1, provided = -1, major = 0, minor = 0;
  shmem_query_initialized(&initialized);
  if (initialized != 0) return 1;
  CHECK(shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided) == 0);
  CHECK(provided >= SHMEM_THREAD_FUNNELED);
  shmem_query_initialized(&initialized);
  CHECK(initialized == 1);
  provided = -1;
  shmem_query_thread(&provided);
  CHECK(provided >= SHMEM_THREAD_FUNNELED && provided <= SHMEM_THREAD_MULTIPLE);
  shmem_init();  // counted

  const int me = shmem_my_pe(), n = shmem_n_pes();
  CHECK(n >= 2 && me >= 0 && me < n);
  CHECK(shmem_team_my_pe(SHMEM_TEAM_WORLD) == me);
  shmem_info_get_version(&major, &minor);
  CHECK(major == SHMEM_MAJOR_VERSION && minor == SHMEM_MINOR_VERSION);
  CHECK(major == _SHMEM_MAJOR_VERSION && minor == _SHMEM_MINOR_VERSION);
  char name[SHMEM_MAX_NAME_LEN];
  memset(name, 'x', sizeof name);
  shmem_info_get_name(name);
  CHECK(strcmp(name, SHMEM_VENDOR_STRING) == 0);
  shmem_pcontrol(1);
  shmem_pcontrol(2, "ignored");

  int* block = shmem_malloc(4 * sizeof(int));
  int on_stack = 0;
  CHECK(shmem_pe_accessible(0) == 1 && shmem_pe_accessible(n - 1) == 1);
  CHECK(shmem_pe_accessible(n) == 0 && shmem_pe_accessible(-1) == 0);
  CHECK(shmem_addr_accessible(block, n - 1) == 1);
  CHECK(shmem_addr_accessible(&variable, n - 1) == 1);
  CHECK(shmem_addr_accessible(&on_stack, me) == 0);
  CHECK(shmem_addr_accessible(block, n) == 0);
  CHECK(shmem_ptr(&on_stack, me) == NULL);
  CHECK(shmem_ptr(block, me) == block && shmem_ptr(&variable, me) == &variable);
  block[1] = 100 + me;
  variable = 200 + me;
  shmem_barrier_all();
  for (int pe = 0; pe < n; ++pe) {
    const int* theirs = shmem_ptr(&block[1], pe);
    const int* variable_there = shmem_ptr(&variable, pe);
    CHECK((theirs == NULL) == (variable_there == NULL));
    CHECK(theirs == shmem_team_ptr(SHMEM_TEAM_WORLD, &block[1], pe));
    if (theirs != NULL) CHECK(*theirs == 100 + pe && *variable_there == 200 + pe);
    if (theirs == NULL) CHECK(shmem_team_translate_pe(SHMEM_TEAM_WORLD, pe, SHMEM_TEAM_SHARED) < 0);
  }
  shmem_free(block);
  shmem_finalize();
  CHECK(shmem_my_pe() == me);  // the first initialization still counts
  shmem_finalize();
  shmem_query_initialized(&initialized);
  CHECK(initialized == 0);

  // It starts again, with an empty heap and without the teams of before.
  CHECK(shmem_init_thread(SHMEM_THREAD_FUNNELED, &provided) == 0);
  shmem_query_initialized(&initialized);
  CHECK(initialized == 1 && shmem_my_pe() == me && shmem_n_pes() == n);
  block = shmem_calloc(1, sizeof(int));
  shmem_int_atomic_add(block, me + 1, 0);
  shmem_barrier_all();
  CHECK(shmem_int_g(block, 0) == n * (n + 1) / 2);
  shmem_barrier_all();
  shmem_finalize();
  shmem_query_initialized(&initialized);
  return initialized;
}
