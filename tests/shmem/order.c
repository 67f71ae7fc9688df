// SPDX-License-Identifier: Apache-2.0
// fence orders puts to one PE, per context; quiet completes them.
#include <shmem.h>

#include "check.h"

enum { kRounds = 300, kWords = 64 };

static uint64_t flag, ready;
static uint64_t data[kWords];

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, last = (me + n - 1) % n;
  shmem_ctx_t contexts[4] = {SHMEM_CTX_DEFAULT};
  CHECK(shmem_ctx_create(0, &contexts[1]) == 0);
  CHECK(shmem_ctx_create(SHMEM_CTX_PRIVATE, &contexts[2]) == 0);
  CHECK(shmem_ctx_create(SHMEM_CTX_SERIALIZED, &contexts[3]) == 0);
  uint64_t own[kWords];
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const shmem_ctx_t ctx = contexts[round % 4];
    for (int i = 0; i < kWords; ++i) own[i] = round * 1000 + (uint64_t)i;
    for (int i = 0; i < kWords; i += 8) shmem_ctx_uint64_put_nbi(ctx, &data[i], &own[i], 8, next);
    if (ctx == SHMEM_CTX_DEFAULT && round % 8 == 0)
      shmem_fence();
    else
      shmem_ctx_fence(ctx);
    shmem_ctx_uint64_p(ctx, &flag, round, next);  // a put, not a signal
    shmem_uint64_wait_until(&flag, SHMEM_CMP_GE, round);
    for (int i = 0; i < kWords; ++i) CHECK(data[i] == round * 1000 + (uint64_t)i);
    shmem_ctx_quiet(ctx);
    shmem_uint64_atomic_set(&ready, round, last);
    shmem_uint64_wait_until(&ready, SHMEM_CMP_GE, round);
  }
  // quiet: the data are at their place without a further operation.
  shmem_barrier_all();
  const int both[2] = {next, last};
  enum { kForms = 7 };
  const int context_of[kForms] = {0, 1, 0, 1, 2, 3, 2};
  for (int form = 0; form < kForms; ++form) {
    const uint64_t value = 7000 + (uint64_t)form;
    shmem_ctx_uint64_put_nbi(contexts[context_of[form]], &data[0], &value, 1, next);
    if (form == 0) shmem_quiet();
    if (form == 1) shmem_ctx_quiet(contexts[1]);
    if (form == 2) shmem_pe_quiet(both, 2);
    if (form == 3) shmem_ctx_pe_quiet(contexts[1], both, 1);
    if (form == 4) shmem_ctx_quiet(contexts[2]);
    if (form == 5) shmem_ctx_pe_quiet(contexts[3], both, 1);
    if (form == 6) shmem_ctx_pe_quiet(contexts[2], both, 1);
    shmem_sync_all();  // completes nothing
    CHECK(data[0] == value);
    shmem_sync_all();
  }
  shmem_pe_quiet(NULL, 0);
  // After quiet the source may change, and what a get has fetched is there: by each form of quiet,
  // with a local buffer that the network copies and with one in the heap, which it may not.
  enum { kBig = 1 << 20 };
  unsigned char* dest = shmem_malloc(kBig);
  unsigned char* const buffers[2] = {malloc(kBig), shmem_malloc(kBig)};
  for (int step = 0; step < 2 * kForms; ++step) {
    const int form = step / 2;
    unsigned char* const source = buffers[step % 2];
    memset(source, form * 16 + me + 1, kBig);
    shmem_ctx_putmem_nbi(contexts[context_of[form]], dest, source, kBig, next);
    for (int get = 0; get < 2; ++get) {
      if (form == 0) shmem_quiet();
      if (form == 1) shmem_ctx_quiet(contexts[1]);
      if (form == 2) shmem_pe_quiet(both, 2);
      if (form == 3) shmem_ctx_pe_quiet(contexts[1], both, 2);
      if (form == 4) shmem_ctx_pe_quiet(contexts[2], both, 2);
      if (form == 5) shmem_ctx_quiet(contexts[3]);
      if (form == 6) shmem_ctx_quiet(contexts[2]);
      if (get == 0) {
        memset(source, 0, kBig);
        shmem_barrier_all();
        for (int i = 0; i < kBig; ++i) CHECK(dest[i] == form * 16 + last + 1);
        shmem_ctx_getmem_nbi(contexts[context_of[form]], source, dest, kBig, next);
      }
    }
    for (int i = 0; i < kBig; ++i) CHECK(source[i] == form * 16 + me + 1);
    shmem_barrier_all();
  }
  // Only a late get shows whether quiet of a private context waits for gets.
  for (int round = 0; round < 30; ++round) {
    unsigned char* const target = buffers[round % 2];
    memset(target, 0, kBig);
    shmem_ctx_getmem_nbi(contexts[2], target, dest, kBig, next);
    shmem_ctx_quiet(contexts[2]);
    for (int i = kBig - 1; i >= 0; i -= 1021) CHECK(target[i] == (kForms - 1) * 16 + me + 1);
  }
  shmem_barrier_all();
  free(buffers[0]);
  for (int i = 1; i < 4; ++i) shmem_ctx_destroy(contexts[i]);
  shmem_finalize();
  return 0;
}
