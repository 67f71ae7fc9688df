// SPDX-License-Identifier: Apache-2.0
// Parts of shoal-run: the cores that --bind core gives to each PE; the keeper process, which holds
// no file of shoal-run, so that a reader sees its end; the kernel's counter of processes killed
// because memory ran out, where folders with files stand for systems.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <thread>

#include "run/cores.hpp"
#include "run/keeper.hpp"
#include "run/out_of_memory.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal::run {
namespace {

using Shares = std::vector<std::vector<int>>;

/// `cores` per package with two processors each, numbered as on most machines: first all first
/// processors, then all second ones.
std::vector<Processor> machine(int packages, int cores) {
  std::vector<Processor> found;
  for (int thread = 0; thread < 2; ++thread)
    for (int package = 0; package < packages; ++package)
      for (int core = 0; core < cores; ++core)
        found.push_back({package, core, static_cast<int>(found.size())});
  return found;
}

TEST(ShareCores, KeepsTheProcessorsOfACoreTogether) {
  EXPECT_EQ(share_cores(machine(1, 2), 2), (Shares{{0, 2}, {1, 3}}));
}

TEST(ShareCores, PesStayInAPackage) {
  EXPECT_EQ(share_cores(machine(2, 2), 2), (Shares{{0, 4, 1, 5}, {2, 6, 3, 7}}));
}

TEST(ShareCores, UsesEveryCoreOnce) {
  for (int n_pes = 1; n_pes <= 10; ++n_pes) {
    std::set<int> seen;
    std::size_t smallest = 100, largest = 0;
    for (const auto& share : share_cores(machine(2, 5), n_pes)) {
      for (const int processor : share) EXPECT_TRUE(seen.insert(processor).second) << processor;
      smallest = std::min(smallest, share.size());
      largest = std::max(largest, share.size());
    }
    EXPECT_EQ(seen.size(), 20u) << n_pes;
    EXPECT_LE(largest - smallest, 2u) << n_pes << ": at most one core more than others";
  }
}

TEST(ShareCores, RefusesMorePesThanCores) {
  test::expect_error(Code::invalid_argument, "--bind core: 5 PEs, but shoal-run may use 4 cores",
                     [] { share_cores(machine(2, 2), 5); });
}

// A program under taskset or in a container has some of the machine's processors.
TEST(ShareCores, AvailableAreThoseOfThisProcess) {
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  const auto all = available_processors();
  EXPECT_EQ(all.size(), static_cast<std::size_t>(CPU_COUNT(&before)));
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(all.back().number), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const auto few = available_processors();
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(few, std::vector<Processor>{all.back()});
}

namespace fs = std::filesystem;

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
  std::error_code error;
  const bool closed = test::wait_for([&] {
    const auto count = std::distance(fs::directory_iterator(files, error), {});
    return error || count == STDERR_FILENO + 1;
  });
  return error ? cannot_test : closed ? holds_none : holds_some;
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

struct OutOfMemoryTest : ::testing::Test {
  OutOfMemoryTest() { fs::create_directories(root); }
  ~OutOfMemoryTest() override { fs::remove_all(root); }
  void write(const std::string& file, const std::string& text) const {
    fs::create_directories((root / file).parent_path());
    std::ofstream(root / file) << text;
  }
  const fs::path root =
      fs::temp_directory_path() / ("shoal-out-of-memory-" + std::to_string(getpid()));
};

TEST_F(OutOfMemoryTest, Cgroup2) {
  write("proc/self/cgroup", "0::/job/step\n");
  write("sys/fs/cgroup/job/step/memory.events", "low 0\noom 3\noom_kill 2\n");
  write("sys/fs/cgroup/job/step/memory.max", "4096\n");
  const OutOfMemory watch(root);
  EXPECT_EQ(watch.describe(), "") << "earlier kills do not count";
  write("sys/fs/cgroup/job/step/memory.events", "low 0\noom 4\noom_kill 3\n");
  const std::string text = watch.describe();
  test::expect_parts(text,
                     {"has killed 1 process of this job's cgroup", "its limit is 4096 bytes"});
}

TEST_F(OutOfMemoryTest, Cgroup2OfAContainer) {
  write("proc/self/cgroup", "0::/../../docker/abc\n");
  write("sys/fs/cgroup/memory.events", "oom_kill 0\n");
  const OutOfMemory watch(root);
  write("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  test::expect_parts(watch.describe(), {"has killed 2 processes"});
}

TEST_F(OutOfMemoryTest, Cgroup1) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8192\n");
  const OutOfMemory watch(root);
  write("sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  test::expect_parts(watch.describe(), {"its limit is 8192 bytes"});
}

TEST_F(OutOfMemoryTest, MachineWithoutCgroups) {
  write("proc/vmstat", "pgfault 7\noom_kill 5\n");
  const OutOfMemory watch(root);
  write("proc/vmstat", "pgfault 9\noom_kill 6\n");
  test::expect_parts(watch.describe(), {"has killed 1 process of this machine"});
}

TEST_F(OutOfMemoryTest, NothingToRead) {
  EXPECT_EQ(OutOfMemory(root).describe(), "");
}

}  // namespace
}  // namespace shoal::run
