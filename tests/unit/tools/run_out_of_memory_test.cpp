// SPDX-License-Identifier: Apache-2.0
// shoal-run finds the kernel's counter of processes killed because memory ran out. Folders with
// files stand for systems.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "run/out_of_memory.hpp"

namespace shoal::run {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_NE(text.find("has killed 1 process of this job's cgroup"), std::string::npos) << text;
  EXPECT_NE(text.find("its limit is 4096 bytes"), std::string::npos) << text;
}

TEST_F(OutOfMemoryTest, Cgroup2OfAContainer) {
  write("proc/self/cgroup", "0::/../../docker/abc\n");
  write("sys/fs/cgroup/memory.events", "oom_kill 0\n");
  const OutOfMemory watch(root);
  write("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  EXPECT_NE(watch.describe().find("has killed 2 processes"), std::string::npos);
}

TEST_F(OutOfMemoryTest, Cgroup1) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/a\n4:memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 0\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "8192\n");
  const OutOfMemory watch(root);
  write("sys/fs/cgroup/memory/job/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n");
  EXPECT_NE(watch.describe().find("its limit is 8192 bytes"), std::string::npos);
}

TEST_F(OutOfMemoryTest, MachineWithoutCgroups) {
  write("proc/vmstat", "pgfault 7\noom_kill 5\n");
  const OutOfMemory watch(root);
  write("proc/vmstat", "pgfault 9\noom_kill 6\n");
  EXPECT_NE(watch.describe().find("has killed 1 process of this machine"), std::string::npos);
}

TEST_F(OutOfMemoryTest, NothingToRead) {
  EXPECT_EQ(OutOfMemory(root).describe(), "");
}

}  // namespace
}  // namespace shoal::run
