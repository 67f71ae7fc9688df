// SPDX-License-Identifier: Apache-2.0
// Disjoint teams made in one call: every rail passes a start of its own.
#include <shmem.h>

#include "check.h"

static int dest, source;

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes();
  source = me;
  for (int stride = 1; stride <= n; ++stride) {
    const int rail = me % stride, size = (n - rail + stride - 1) / stride;
    shmem_team_t team = SHMEM_TEAM_INVALID;
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, rail, stride, size, NULL, 0, &team) == 0);
    CHECK(shmem_team_my_pe(team) == me / stride && shmem_team_n_pes(team) == size);
    for (int i = 0; i < size; ++i)
      CHECK(shmem_team_translate_pe(team, i, SHMEM_TEAM_WORLD) == rail + i * stride);
    CHECK(shmem_int_sum_reduce(team, &dest, &source, 1) == 0);
    CHECK(dest == size * rail + stride * (size * (size - 1) / 2));
    shmem_team_sync(team);
    shmem_team_destroy(team);
  }
  // The last PE is outside the set that it passes.
  const int outside = me == n - 1;
  shmem_team_t team = SHMEM_TEAM_WORLD;
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, outside ? n + 7 : 0, outside ? -3 : 1,
                                 outside ? 99 : n - 1, NULL, 0, &team) == 0);
  CHECK((team == SHMEM_TEAM_INVALID) == outside);
  if (!outside) shmem_team_destroy(team);
  // A member whose set leaves the parent fails on all PEs.
  team = SHMEM_TEAM_WORLD;
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, me, 1, outside ? 2 : 1, NULL, 0, &team) != 0);
  CHECK(team == SHMEM_TEAM_INVALID);
  shmem_finalize();
  return 0;
}
