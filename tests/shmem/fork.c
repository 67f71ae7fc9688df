// SPDX-License-Identifier: Apache-2.0
// Children that a PE forks: exit() with any status ends the child alone, and calls are errors.
#include <shmem.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static int word = 5;

static int status_of(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

int main(void) {
  shmem_init();
  const int me = shmem_my_pe(), n = shmem_n_pes();
  shmem_barrier_all();
  for (int status = 0; status < 10; status += 9) {
    const pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      word = -1;  // the child's own copy
      exit(status);
    }
    CHECK(status_of(child) == status);
    shmem_barrier_all();
  }

  int messages[2];
  CHECK(pipe(messages) == 0);
  fflush(stderr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(messages[1], STDERR_FILENO);
    shmem_int_p(&word, 9, (me + 1) % n);
    _exit(0);  // not reached: the call ends the child with status 1
  }
  close(messages[1]);
  char text[1024] = "";
  size_t length = 0;
  for (ssize_t got; (got = read(messages[0], text + length, sizeof text - 1 - length)) > 0;)
    length += (size_t)got;
  CHECK(status_of(child) == 1);
  CHECK(strstr(text, "shmem_int_p: SHOAL-N841: this process is a fork of PE ") != NULL);

  CHECK(word == 5);
  shmem_barrier_all();
  shmem_int_p(&word, 6, (me + 1) % n);
  shmem_barrier_all();
  CHECK(word == 6);
  shmem_finalize();
  return 0;
}
