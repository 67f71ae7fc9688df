// SPDX-License-Identifier: Apache-2.0
// Contexts: creation with each option, operations, sessions.
#include <shmem.h>
#include <sys/resource.h>

#include "check.h"

static long words[64];

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, last = (me + n - 1) % n;
  const long options[] = {0,
                          SHMEM_CTX_SERIALIZED,
                          SHMEM_CTX_PRIVATE,
                          SHMEM_CTX_NOSTORE,
                          SHMEM_CTX_PRIVATE | SHMEM_CTX_NOSTORE,
                          SHMEM_CTX_SERIALIZED | SHMEM_CTX_NOSTORE};
  for (size_t i = 0; i < sizeof options / sizeof options[0]; ++i) {
    shmem_ctx_t ctx = SHMEM_CTX_INVALID;
    shmem_team_t team = SHMEM_TEAM_INVALID;
    CHECK(shmem_ctx_create(options[i], &ctx) == 0 && ctx != SHMEM_CTX_INVALID);
    CHECK(shmem_ctx_get_team(ctx, &team) == 0 && team == SHMEM_TEAM_WORLD);
    const shmem_ctx_session_config_t config = {.total_ops = 64};
    shmem_ctx_session_start(ctx, SHMEM_CTX_SESSION_BATCH, &config, SHMEM_CTX_SESSION_TOTAL_OPS);
    shmem_ctx_session_start(ctx, 0, NULL, 0);
    long sources[64];
    for (int w = 0; w < 64; ++w) {
      sources[w] = (long)i * 1000 + me * 64 + w;
      shmem_ctx_long_put_nbi(ctx, &words[w], &sources[w], 1, next);
    }
    shmem_ctx_fence(ctx);
    shmem_ctx_quiet(ctx);
    shmem_ctx_session_stop(ctx);
    shmem_sync_all();
    for (int w = 0; w < 64; ++w) CHECK(words[w] == (long)i * 1000 + last * 64 + w);
    CHECK(shmem_ctx_long_g(ctx, &words[1], next) == (long)i * 1000 + me * 64 + 1);
    shmem_sync_all();
    shmem_ctx_destroy(ctx);
  }
  shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;
  shmem_team_t team = SHMEM_TEAM_INVALID;
  CHECK(shmem_ctx_get_team(SHMEM_CTX_DEFAULT, &team) == 0 && team == SHMEM_TEAM_WORLD);
  CHECK(shmem_ctx_get_team(SHMEM_CTX_INVALID, &team) != 0 && team == SHMEM_TEAM_INVALID);
  CHECK(shmem_team_create_ctx(SHMEM_TEAM_INVALID, 0, &ctx) != 0 && ctx == SHMEM_CTX_INVALID);
  shmem_ctx_destroy(SHMEM_CTX_INVALID);
  shmem_ctx_quiet(SHMEM_CTX_INVALID);
  shmem_ctx_fence(SHMEM_CTX_INVALID);
  // A context ends with its team, a private one does not.
  CHECK(shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team) == 0);
  CHECK(shmem_team_create_ctx(team, 0, &ctx) == 0);
  shmem_ctx_long_atomic_add(ctx, &words[0], 1, next);
  shmem_team_destroy(team);
  // Destroyed contexts take no memory.
  struct rusage before, after;
  CHECK(getrusage(RUSAGE_SELF, &before) == 0);
  for (int i = 0; i < 300000; ++i) {
    shmem_ctx_t ctx;
    CHECK(shmem_ctx_create(0, &ctx) == 0);
    shmem_ctx_destroy(ctx);
  }
  CHECK(getrusage(RUSAGE_SELF, &after) == 0);
  CHECK(after.ru_maxrss - before.ru_maxrss < 16 << 10);  // KiB
  shmem_finalize();
  return 0;
}
