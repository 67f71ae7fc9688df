// SPDX-License-Identifier: Apache-2.0
// Teams.
#include <shmem.h>

#include "check.h"

static int value;

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes();
  shmem_team_t team = SHMEM_TEAM_WORLD, row, column;

  CHECK(shmem_team_n_pes(SHMEM_TEAM_WORLD) == n);
  CHECK(shmem_team_my_pe(SHMEM_TEAM_INVALID) == -1 && shmem_team_n_pes(SHMEM_TEAM_INVALID) == -1);
  CHECK(shmem_team_n_pes(SHMEM_TEAM_SHARED) >= 1);
  CHECK(shmem_team_translate_pe(SHMEM_TEAM_SHARED, shmem_team_my_pe(SHMEM_TEAM_SHARED),
                                SHMEM_TEAM_WORLD) == me);
  CHECK(shmem_team_translate_pe(SHMEM_TEAM_WORLD, n, SHMEM_TEAM_WORLD) == -1);
  CHECK(shmem_team_translate_pe(SHMEM_TEAM_INVALID, 0, SHMEM_TEAM_WORLD) == -1);

  // Even PEs, with a configuration.
  const shmem_team_config_t config = {.num_contexts = 3};
  const int even = (n + 1) / 2;
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 2, even, &config, SHMEM_TEAM_NUM_CONTEXTS,
                                 &team) == 0);
  CHECK((team == SHMEM_TEAM_INVALID) == (me % 2 == 1));
  shmem_team_t part = team;
  if (team != SHMEM_TEAM_INVALID) {
    shmem_team_config_t found = {0};
    CHECK(shmem_team_get_config(team, SHMEM_TEAM_NUM_CONTEXTS, &found) == 0);
    CHECK(found.num_contexts == 3);
    CHECK(shmem_team_my_pe(team) == me / 2 && shmem_team_n_pes(team) == even);
    for (int pe = 0; pe < n; ++pe)
      CHECK(shmem_team_translate_pe(SHMEM_TEAM_WORLD, pe, team) == (pe % 2 == 0 ? pe / 2 : -1));
    shmem_team_sync(team);
    // A team of a team, in reverse order.
    shmem_team_t reversed;
    CHECK(shmem_team_split_strided(team, even - 1, -1, even, NULL, 0, &reversed) == 0);
    CHECK(shmem_team_my_pe(reversed) == even - 1 - me / 2);
    CHECK(shmem_team_translate_pe(reversed, 0, SHMEM_TEAM_WORLD) == 2 * (even - 1));
    shmem_team_destroy(reversed);
  }
  CHECK(shmem_team_get_config(SHMEM_TEAM_INVALID, 0, NULL) != 0);
  CHECK(shmem_team_get_config(SHMEM_TEAM_WORLD, 0, NULL) == 0);

  // An invalid team fails on all PEs alike.
  team = SHMEM_TEAM_WORLD;
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n + 1, NULL, 0, &team) != 0);
  CHECK(team == SHMEM_TEAM_INVALID);
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, n, 1, 1, NULL, 0, &team) != 0);
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 0, 2, NULL, 0, &team) != 0);
  CHECK(shmem_team_split_strided(SHMEM_TEAM_INVALID, 0, 1, 1, NULL, 0, &team) != 0);
  CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, 0, NULL, 0, &row, NULL, 0, &column) != 0);
  CHECK(shmem_team_split_2d(SHMEM_TEAM_INVALID, 1, NULL, 0, &row, NULL, 0, &column) != 0);
  CHECK(row == SHMEM_TEAM_INVALID && column == SHMEM_TEAM_INVALID);
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 1, 0, 1, NULL, 0, &team) == 0);  // one PE
  CHECK((team != SHMEM_TEAM_INVALID) == (me == 1));
  if (me == 1) shmem_team_destroy(team);

  for (int width = 1; width <= n + 1; ++width) {
    CHECK(shmem_team_split_2d(SHMEM_TEAM_WORLD, width, NULL, 0, &row, NULL, 0, &column) == 0);
    const int x = width < n ? width : n;
    CHECK(shmem_team_my_pe(row) == me % x && shmem_team_my_pe(column) == me / x);
    CHECK(shmem_team_n_pes(row) == (n - me / x * x < x ? n - me / x * x : x));
    // A ring in each row: PE numbers are those of the team of the context.
    shmem_ctx_t ctx;
    CHECK(shmem_team_create_ctx(row, 0, &ctx) == 0);
    const int size = shmem_team_n_pes(row), next = (shmem_team_my_pe(row) + 1) % size;
    value = -1;
    shmem_barrier_all();
    shmem_ctx_int_p(ctx, &value, me, next);
    shmem_ctx_quiet(ctx);
    shmem_barrier_all();
    const int left = (shmem_team_my_pe(row) + size - 1) % size;
    CHECK(value == shmem_team_translate_pe(row, left, SHMEM_TEAM_WORLD));
    shmem_ctx_destroy(ctx);
    shmem_team_destroy(row);
    shmem_team_destroy(column);
  }
  // Slots of teams are used again.
  for (int i = 0; i < 300; ++i) {
    CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team) == 0);
    shmem_team_destroy(team);
  }
  shmem_team_destroy(SHMEM_TEAM_INVALID);
  if (part != SHMEM_TEAM_INVALID) shmem_team_destroy(part);
  shmem_finalize();
  return 0;
}
