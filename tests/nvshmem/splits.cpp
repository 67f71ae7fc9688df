// SPDX-License-Identifier: Apache-2.0
// Disjoint teams made in one call: every rail passes a start of its own, as DeepEP's low-latency
// mode does.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "check.h"

int main() {
  nvshmem_init();
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  int* const words = static_cast<int*>(nvshmem_malloc(2 * sizeof(int)));
  words[0] = me;
  for (int stride = 1; stride <= n; ++stride) {
    const int rail = me % stride, size = (n - rail + stride - 1) / stride;
    nvshmem_team_t team = NVSHMEM_TEAM_INVALID;
    CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, rail, stride, size, nullptr, 0, &team) ==
          0);
    CHECK(nvshmem_team_my_pe(team) == me / stride && nvshmem_team_n_pes(team) == size);
    for (int i = 0; i < size; ++i)
      CHECK(nvshmem_team_translate_pe(team, i, NVSHMEM_TEAM_WORLD) == rail + i * stride);
    CHECK(nvshmem_int_sum_reduce(team, words + 1, words, 1) == 0);
    CHECK(words[1] == size * rail + stride * (size * (size - 1) / 2));
    CHECK(nvshmem_barrier(team) == 0);
    nvshmem_team_destroy(team);
  }
  // The last PE is outside the set that it passes.
  const bool outside = me == n - 1;
  nvshmem_team_t team = NVSHMEM_TEAM_WORLD;
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, outside ? n + 7 : 0, outside ? -3 : 1,
                                   outside ? 99 : n - 1, nullptr, 0, &team) == 0);
  CHECK((team == NVSHMEM_TEAM_INVALID) == outside);
  if (!outside) nvshmem_team_destroy(team);
  // A member whose set leaves the parent fails on all PEs.
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, me, 1, outside ? 2 : 1, nullptr, 0, &team) ==
        NVSHMEMX_ERROR_INVALID_VALUE);
  CHECK(team == NVSHMEM_TEAM_INVALID);
  nvshmem_barrier_all();
  nvshmem_free(words);
  nvshmem_finalize();
  return 0;
}
