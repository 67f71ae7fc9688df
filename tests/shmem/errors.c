// SPDX-License-Identifier: Apache-2.0
// Makes the mistake that the argument names: the message is tested.
#include <shmem.h>
#include <unistd.h>

#include "check.h"

static int word;
static long lock;

int main(int argc, char** argv) {
  const char* const mistake = argc > 1 ? argv[1] : "";
  int on_stack = 0;
#define WHEN(name) if (strcmp(mistake, name) == 0)
  WHEN("early") shmem_barrier_all();
  shmem_init();
  const int n = shmem_n_pes(), me = shmem_my_pe();
  int* block = shmem_malloc(16);
  shmem_team_t team;
  shmem_ctx_t ctx = SHMEM_CTX_DEFAULT;
  WHEN("pe") shmem_int_p(&word, 1, n);
  WHEN("negative_pe") shmem_int_get(&on_stack, &word, 1, -1);
  WHEN("stack") shmem_int_put(&on_stack, &word, 1, 0);
  WHEN("beyond") shmem_putmem(block, block, (size_t)1 << 50, 0);
  WHEN("overflow") shmem_long_put(&lock, &lock, SIZE_MAX / 4, 0);
  WHEN("unaligned") shmem_int_atomic_inc((int*)((char*)block + 1), 0);
  WHEN("cmp") shmem_int_wait_until(&word, 6, 0);
  WHEN("sig_op") shmem_putmem_signal(block, block, 4, (uint64_t*)(void*)(block + 2), 1, 7, 0);
  WHEN("stride") shmem_int_iput(block, block, 0, 1, 2, 0);
  WHEN("free") shmem_free(&on_stack);
  WHEN("double_free") {
    shmem_free(block);
    shmem_free(block);
  }
  WHEN("thread_level") shmem_init_thread(9, &on_stack);
  WHEN("team") shmem_team_sync(SHMEM_TEAM_INVALID);
  WHEN("destroyed_team") {
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, &team);
    shmem_team_t copy = team;
    shmem_team_destroy(team);
    shmem_team_sync(copy);
  }
  WHEN("split_overlap") shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1 + me, NULL, 0, &team);
  WHEN("destroy_world") shmem_team_destroy(SHMEM_TEAM_WORLD);
  WHEN("ctx_options") shmem_ctx_create(1 << 10, &ctx);
  WHEN("destroyed_ctx") {
    shmem_ctx_create(0, &ctx);
    shmem_ctx_destroy(ctx);
    shmem_ctx_int_p(ctx, &word, 1, 0);
  }
  WHEN("garbage_ctx") shmem_ctx_int_p((shmem_ctx_t)(uintptr_t)0x7123456789, &word, 1, 0);
  WHEN("garbage_team") shmem_team_sync((shmem_team_t)(uintptr_t)0x7123456789);
  WHEN("null_ctx") shmem_ctx_create(0, NULL);
  WHEN("null_team") shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, n, NULL, 0, NULL);
  WHEN("null_indices") shmem_int_test_some(&word, 1, NULL, NULL, SHMEM_CMP_EQ, 0);
  WHEN("null_fetch") shmem_int_atomic_fetch_nbi(NULL, &word, 0);
  WHEN("null_level") shmem_query_thread(NULL);
  WHEN("null_name") shmem_info_get_name(NULL);
  WHEN("ctx_team") {
    shmem_team_split_strided(SHMEM_TEAM_WORLD, 0, 1, 1, NULL, 0, &team);
    if (me == 0) {
      shmem_team_create_ctx(team, 0, &ctx);
      shmem_ctx_int_p(ctx, &word, 1, 1);
    }
    shmem_barrier_all();
  }
  WHEN("root") shmem_int_broadcast(SHMEM_TEAM_WORLD, block, &word, 1, n);
  WHEN("overlap") shmem_int_fcollect(SHMEM_TEAM_WORLD, block, block + 1, 1);
  WHEN("collect_overlap") shmem_int_collect(SHMEM_TEAM_WORLD, block, block + 1, 1);
  WHEN("scan_overlap") shmem_int_sum_inscan(SHMEM_TEAM_WORLD, block, block + 1, 2);
  enum { SHORT = 2, LONG = 1 << 18 };
  int* const many = shmem_malloc(2 * LONG * sizeof *many);
  WHEN("broadcast_lengths") shmem_int_broadcast(SHMEM_TEAM_WORLD, many, many, SHORT + me, 0);
  WHEN("broadcast_roots") {
    shmem_int_broadcast(SHMEM_TEAM_WORLD, many, many, SHORT, me);
    shmem_barrier_all();
  }
  WHEN("long_broadcast_lengths") shmem_int_broadcast(SHMEM_TEAM_WORLD, many, many, LONG + me, 0);
  WHEN("long_broadcast_roots") shmem_int_broadcast(SHMEM_TEAM_WORLD, many, many, LONG, me);
  WHEN("active_sets") {
    for (int start = 0; start < n; ++start)
      for (int size = 1; start + size <= n; ++size)
        if (me >= start && me < start + size) shmem_barrier(start, 0, size, &lock);
  }
  WHEN("late_pe") {
    if (me == 0) sleep(2);
    shmem_barrier_all();
  }
  WHEN("mismatch") shmem_int_sum_reduce(SHMEM_TEAM_WORLD, block, block, me == 0 ? 1 : 2);
  WHEN("heap_mismatch") shmem_malloc(me == 0 ? 100 : 2000);
  WHEN("active_set") shmem_barrier(0, 1, n, &lock);
  WHEN("lock") shmem_clear_lock(&lock);
  WHEN("exit_alone") {
    if (me == 0) exit(5);
    shmem_barrier_all();
  }
  WHEN("exit_after_death") {
    if (me == 0) _exit(6);
    exit(0);
  }
  WHEN("peer_died") {
    if (me == 0) _exit(6);
    shmem_int_wait_until(&word, SHMEM_CMP_NE, 0);
  }
  shmem_finalize();
  WHEN("late") shmem_barrier_all();
  WHEN("again") {
    shmem_init();
    shmem_int_p(&word, 1, n);
  }
  return 0;
}
