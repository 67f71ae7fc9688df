// SPDX-License-Identifier: Apache-2.0
// Predefined teams, splits and teams by an id.
#include <nvshmem.h>
#include <nvshmemx.h>

#include "check.h"

int main() {
  nvshmem_init();
  const int me = nvshmem_my_pe(), n = nvshmem_n_pes();
  for (const int team : {+NVSHMEM_TEAM_WORLD, +NVSHMEM_TEAM_SHARED, +NVSHMEMX_TEAM_NODE,
                         +NVSHMEMX_TEAM_GPU_LEADERS}) {
    CHECK(nvshmem_team_my_pe(team) == me && nvshmem_team_n_pes(team) == n);
    CHECK(nvshmem_team_translate_pe(team, me, NVSHMEM_TEAM_WORLD) == me);
  }
  // One node, and no GPU that PEs share.
  for (const int team : {+NVSHMEMX_TEAM_SAME_MYPE_NODE, +NVSHMEMX_TEAM_SAME_GPU}) {
    CHECK(nvshmem_team_my_pe(team) == 0 && nvshmem_team_n_pes(team) == 1);
    CHECK(nvshmem_team_translate_pe(team, 0, NVSHMEM_TEAM_WORLD) == me);
  }
  CHECK(nvshmem_team_my_pe(NVSHMEM_TEAM_INVALID) == -1 && nvshmem_team_n_pes(99999) == -1);
  CHECK(nvshmem_team_translate_pe(NVSHMEM_TEAM_WORLD, n, NVSHMEM_TEAM_WORLD) == -1);

  nvshmem_team_t even = 77;
  nvshmem_team_config_t config = NVSHMEM_TEAM_CONFIG_INITIALIZER;
  config.num_contexts = 3;
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 2, (n + 1) / 2, &config,
                                   NVSHMEM_TEAM_NUM_CONTEXTS, &even) == 0);
  if (me % 2 == 0) {
    CHECK(even > NVSHMEMX_TEAM_GPU_LEADERS && nvshmem_team_my_pe(even) == me / 2);
    CHECK(nvshmem_team_translate_pe(even, me / 2, NVSHMEM_TEAM_WORLD) == me);
    nvshmem_team_config_t found = NVSHMEM_TEAM_CONFIG_INITIALIZER;
    CHECK(nvshmem_team_get_config(even, &found) == 0 && found.num_contexts == 3);
    CHECK(nvshmem_sync(even) == 0 && nvshmem_barrier(even) == 0 && nvshmem_team_sync(even) == 0);
    nvshmem_team_destroy(even);
    CHECK(nvshmem_team_n_pes(even) == -1);
  } else {
    CHECK(even == NVSHMEM_TEAM_INVALID);
  }
  nvshmem_team_destroy(NVSHMEM_TEAM_INVALID);

  nvshmem_team_t none = 77;
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, n + 1, nullptr, 0, &none) ==
        NVSHMEMX_ERROR_INVALID_VALUE);
  CHECK(none == NVSHMEM_TEAM_INVALID);
  CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_INVALID, 0, 1, 1, nullptr, 0, &none) != 0);

  nvshmem_team_t row, column;
  CHECK(nvshmem_team_split_2d(NVSHMEM_TEAM_WORLD, 2, nullptr, 0, &row, nullptr, 0, &column) == 0);
  CHECK(nvshmem_team_my_pe(row) == me % 2 && nvshmem_team_my_pe(column) == me / 2);
  nvshmem_team_destroy(row);
  nvshmem_team_destroy(column);

  // PE 0 passes the id; the team numbers the PEs in reverse.
  auto* const id = static_cast<uint64_t*>(nvshmem_malloc(sizeof(uint64_t)));
  if (me == 0) CHECK(nvshmemx_team_get_uniqueid(id) == 0);
  nvshmem_barrier_all();
  config.uniqueid = nvshmem_uint64_g(id, 0);
  nvshmem_team_t reversed;
  CHECK(nvshmemx_team_init(&reversed, &config, 0, n, n - 1 - me) == 0);
  CHECK(nvshmem_team_translate_pe(reversed, 0, NVSHMEM_TEAM_WORLD) == n - 1);
  nvshmem_team_destroy(reversed);

  // Numbers are used again.
  for (int i = 0; i < 300; ++i) {
    nvshmem_team_t twin;
    CHECK(nvshmem_team_split_strided(NVSHMEM_TEAM_WORLD, 0, 1, n, nullptr, 0, &twin) == 0);
    nvshmem_team_destroy(twin);
  }
  nvshmem_barrier_all();
  nvshmem_free(id);
  nvshmem_finalize();
  return 0;
}
