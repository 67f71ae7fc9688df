// SPDX-License-Identifier: Apache-2.0
// Global and static variables are symmetric, keep their values, and are private in children.
#include <shmem.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

int initialized = 41;
int uninitialized;
static const char* text = "a pointer to constant data";
static int* self = &uninitialized;
static char large[32 << 20];  // .bss
static int counter = 3;
long aligned[512] __attribute__((aligned(4096)));

static int* in_function(void) {
  static int hidden = 17;
  return &hidden;
}

int main(void) {
  initialized = 42;  // before the library starts
  large[20 << 20] = 7;
  FILE* const out = stdout;
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes(), next = (me + 1) % n, last = (me + n - 1) % n;
  CHECK(initialized == 42 && uninitialized == 0 && counter == 3 && *in_function() == 17);
  CHECK(large[20 << 20] == 7 && large[0] == 0);
  CHECK(strcmp(text, "a pointer to constant data") == 0 && self == &uninitialized && out == stdout);
  shmem_barrier_all();

  shmem_int_p(&initialized, 100 + me, next);
  shmem_int_p(in_function(), 200 + me, next);
  shmem_int_atomic_add(&counter, me + 1, 0);
  shmem_char_p(&large[sizeof large - 1], (char)(me + 1), next);
  shmem_long_p(&aligned[511], me, next);
  shmem_barrier_all();
  CHECK(initialized == 100 + last && *in_function() == 200 + last);
  CHECK(large[sizeof large - 1] == last + 1 && aligned[511] == last);
  if (me == 0) CHECK(counter == 3 + n * (n + 1) / 2);
  shmem_barrier_all();

  // The others get the value that the program stores.
  uninitialized = 500 + me;
  shmem_barrier_all();
  CHECK(shmem_int_g(self, next) == 500 + next);
  shmem_barrier_all();

  // A child has its own variables from the moment that it starts.
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    const int kept = uninitialized;
    uninitialized = -1;
    large[5] = 1;
    _exit(kept == 500 + me ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(uninitialized == 500 + me);
  CHECK(large[5] == 0);
  CHECK(system("true") == 0);
  shmem_barrier_all();
  shmem_int_p(self, 600 + me, next);
  shmem_barrier_all();
  CHECK(uninitialized == 600 + last);
  shmem_finalize();
  // The variables outlive the library, and are symmetric again when it starts again.
  for (int start = 1; start <= 3; ++start) {
    CHECK(uninitialized == 600 * start + last && initialized == 100 + last);
    shmem_init();
    CHECK(shmem_my_pe() == me && shmem_n_pes() == n);
    CHECK(uninitialized == 600 * start + last && initialized == 100 + last);
    shmem_barrier_all();
    shmem_int_p(self, 600 * (start + 1) + me, next);
    shmem_barrier_all();
    shmem_finalize();
  }
  return uninitialized == 2400 + last ? 0 : 1;
}
