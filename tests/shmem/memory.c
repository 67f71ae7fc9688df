// SPDX-License-Identifier: Apache-2.0
// The symmetric heap.
#include <shmem.h>

#include "check.h"

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n;

  CHECK(shmem_malloc(0) == NULL && shmem_calloc(0, 8) == NULL && shmem_calloc(8, 0) == NULL);
  CHECK(shmem_align(64, 0) == NULL && shmem_realloc(NULL, 0) == NULL);
  shmem_free(NULL);
  CHECK(shmem_malloc((size_t)1 << 60) == NULL);
  CHECK(shmem_calloc((size_t)1 << 40, (size_t)1 << 40) == NULL);

  long* block = shmem_malloc(1000 * sizeof(long));
  CHECK(block != NULL);
  memset(block, 0xff, 1000 * sizeof(long));
  shmem_free(block);
  long* zeros = shmem_calloc(1000, sizeof(long));  // most likely the same place
  for (int i = 0; i < 1000; ++i) CHECK(zeros[i] == 0);
  for (size_t alignment = 1; alignment <= (size_t)1 << 21; alignment *= 2) {
    char* aligned = shmem_align(alignment, 3);
    CHECK(aligned != NULL && (uintptr_t)aligned % alignment == 0);
    shmem_free(aligned);
  }
  CHECK(shmem_align(63, 8) == NULL && shmem_align((size_t)1 << 22, 8) == NULL);
  shmem_free(shmem_malloc_with_hints(8, 1 << 20));
  long* hinted =
      shmem_malloc_with_hints(8, SHMEM_MALLOC_ATOMICS_REMOTE | SHMEM_MALLOC_SIGNAL_REMOTE);
  CHECK(hinted != NULL && shmem_malloc_with_hints(0, 0) == NULL);

  // realloc keeps the contents, also those that another PE has put just before.
  long* grown = shmem_realloc(NULL, 10 * sizeof(long));
  for (int i = 0; i < 10; ++i) shmem_p(&grown[i], me * 100L + i, next);
  grown = shmem_realloc(grown, 100000 * sizeof(long));
  const int before = (me + n - 1) % n;
  for (int i = 0; i < 10; ++i) CHECK(grown[i] == before * 100 + i);
  CHECK(shmem_realloc(grown, (size_t)1 << 60) == NULL);
  for (int i = 0; i < 10; ++i) CHECK(grown[i] == before * 100 + i);
  grown = shmem_realloc(grown, 5 * sizeof(long));
  for (int i = 0; i < 5; ++i) CHECK(grown[i] == before * 100 + i);
  shmem_barrier_all();
  shmem_p(&grown[0], 1L, next);  // the block is symmetric
  shmem_barrier_all();
  CHECK(grown[0] == 1);
  CHECK(shmem_realloc(grown, 0) == NULL);
  shmem_free(zeros);
  shmem_free(hinted);

  long* old = shmalloc(8);
  old = shrealloc(old, 16);
  CHECK(old != NULL);
  shfree(old);
  old = shmemalign(256, 8);
  CHECK((uintptr_t)old % 256 == 0);
  shfree(old);
  shmem_finalize();
  return 0;
}
