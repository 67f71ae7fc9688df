// SPDX-License-Identifier: Apache-2.0
// Children that a PE forks: exit() with any status ends the child alone, and calls are errors.
#include <nvshmem.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "check.h"

namespace {

int status_of(pid_t child) {
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  return WEXITSTATUS(status);
}

/// Runs `body` in a child, which must exit with `status`. Returns what it has written to stderr.
template <typename Body>
std::string text_of_child(int status, const Body& body) {
  int messages[2];
  CHECK(pipe(messages) == 0);
  std::fflush(stdout);
  std::fflush(stderr);
  const pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    dup2(messages[1], STDERR_FILENO);
    close(messages[0]);
    close(messages[1]);
    body();
  }
  close(messages[1]);
  std::string text;
  char part[256];
  for (ssize_t got; (got = read(messages[0], part, sizeof part)) > 0;)
    text.append(part, static_cast<std::size_t>(got));
  close(messages[0]);
  CHECK(status_of(child) == status);
  return text;
}

}  // namespace

int main() {
  nvshmem_init();
  const int right = (nvshmem_my_pe() + 1) % nvshmem_n_pes();
  int* const word = static_cast<int*>(nvshmem_calloc(1, sizeof(int)));
  for (const int status : {0, 9}) {
    CHECK(text_of_child(status, [&] { std::exit(status); }).empty());
    nvshmem_barrier_all();
  }
  const std::string fork_of = ": SHOAL-N868: this process is a fork of PE ";
  const auto refused = [&](const char* call, void (*body)(int*, int)) {
    const std::string text = text_of_child(1, [&] {
      body(word, right);
      std::_Exit(0);  // not reached: the call ends the child with status 1
    });
    CHECK(text.find(call + fork_of) != std::string::npos);
  };
  refused("nvshmem_int_p", [](int* to, int pe) { nvshmem_int_p(to, 9, pe); });
  refused("nvshmem_barrier_all", [](int*, int) { nvshmem_barrier_all(); });
  refused("nvshmem_init", [](int*, int) { nvshmem_init(); });
  refused("nvshmem_finalize", [](int*, int) { nvshmem_finalize(); });
  nvshmem_barrier_all();
  CHECK(*word == 0);
  nvshmem_barrier_all();
  nvshmem_int_p(word, 6, right);
  nvshmem_barrier_all();
  CHECK(*word == 6);
  nvshmem_free(word);
  nvshmem_finalize();
  return 0;
}
