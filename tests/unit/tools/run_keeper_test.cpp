// SPDX-License-Identifier: Apache-2.0
// shoal-run's keeper process holds no file of shoal-run, so whoever reads from shoal-run sees its
// end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <thread>

#include "run/keeper.hpp"

namespace shoal::run {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

enum Outcome { holds_none = 0, holds_some = 1, cannot_test = 2 };

/// From here on, close_range fails in this process as on Linux before 5.9.
bool forbid_close_range() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(filter)), filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// Starts a keeper while a file is open, and counts the keeper's files until only the standard ones
/// are left.
Outcome start_keeper() {
  if (open("/dev/null", O_RDONLY) < 0) return cannot_test;
  const Keeper keeper;
  const fs::path files = fs::path("/proc") / std::to_string(keeper.pid()) / "fd";
  for (const auto end = Clock::now() + std::chrono::seconds(5); Clock::now() < end;) {
    std::error_code error;
    const auto count = std::distance(fs::directory_iterator(files, error), {});
    if (error) return cannot_test;
    if (count == STDERR_FILENO + 1) return holds_none;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return holds_some;
}

/// The same in a process of its own.
Outcome outcome_of(bool with_close_range) {
  const pid_t pid = fork();
  if (pid == 0) _exit(with_close_range || forbid_close_range() ? start_keeper() : cannot_test);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status));
  return static_cast<Outcome>(WEXITSTATUS(status));
}

TEST(RunKeeper, HoldsNoFileOfShoalRun) {
  const Outcome outcome = outcome_of(true);
  if (outcome == cannot_test) GTEST_SKIP() << "needs /proc";
  EXPECT_EQ(outcome, holds_none);
}

TEST(RunKeeper, HoldsNoFileWhereTheKernelLacksCloseRange) {
  const Outcome outcome = outcome_of(false);
  if (outcome == cannot_test) GTEST_SKIP() << "needs /proc and filters of system calls";
  EXPECT_EQ(outcome, holds_none);
}

}  // namespace
}  // namespace shoal::run
