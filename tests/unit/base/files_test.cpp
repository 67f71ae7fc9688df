// SPDX-License-Identifier: Apache-2.0
// Files that other users may have made, files at predictable names, and `ulimit -f`.
#include "base/files.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "support/temporary_folder.hpp"

namespace shoal {
namespace {

class Files : public ::testing::Test {
 protected:
  Files() { std::ofstream(victim()) << "precious"; }

  std::string at(const char* name) const { return folder_.at(name); }
  std::string victim() const { return at("victim"); }
  std::string text_of_victim() const {
    std::ifstream file(victim());
    return {std::istreambuf_iterator<char>(file), {}};
  }
  /// The reason for which a file is refused; "" if it is opened.
  static std::string refusal(const std::string& path) {
    const OwnFile file = open_own_file(path, O_WRONLY);
    if (file.fd >= 0) close(file.fd);
    EXPECT_EQ(file.fd >= 0, file.reason.empty()) << path;
    return file.reason;
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(Files, ForeignFilesAreRegularFilesOnly) {
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  std::filesystem::create_symlink(victim(), at("link"));
  for (const std::string& path : {at("fifo"), at("link"), at(""), std::string("/dev/zero")})
    EXPECT_EQ(open_foreign_file(path.c_str(), ForeignFile::disk), -1) << path;
  EXPECT_EQ(open_foreign_file(at("fifo").c_str(), ForeignFile::memory), -1);
  const int fd = open_foreign_file(victim().c_str(), ForeignFile::disk);
  EXPECT_GE(fd, 0);
  close(fd);
}

TEST_F(Files, ForeignMemoryIsInSmallPages) {
  const int small = memfd_create("small", MFD_CLOEXEC);
  ASSERT_GE(small, 0);
  const auto link_of = [](int fd) { return "/proc/self/fd/" + std::to_string(fd); };
  const int read = open_foreign_file(link_of(small).c_str(), ForeignFile::memory);
  EXPECT_GE(read, 0);
  close(read);
  close(small);
  const int disk = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  struct statfs system{};
  ASSERT_EQ(fstatfs(disk, &system), 0);
  if (system.f_type != TMPFS_MAGIC)
    EXPECT_EQ(open_foreign_file(link_of(disk).c_str(), ForeignFile::memory), -1);
  close(disk);
  const int huge = memfd_create("huge", MFD_CLOEXEC | MFD_HUGETLB);
  if (huge < 0) GTEST_SKIP() << "this kernel has no huge pages";
  EXPECT_EQ(open_foreign_file(link_of(huge).c_str(), ForeignFile::memory), -1);
  close(huge);
}

TEST_F(Files, ANewFileReplacesALinkAndLeavesItsTarget) {
  std::filesystem::create_symlink(victim(), at("new"));
  const int fd = create_file(at("new").c_str());
  ASSERT_GE(fd, 0);
  EXPECT_EQ(write(fd, "text", 4), 4);
  close(fd);
  EXPECT_EQ(text_of_victim(), "precious");
  EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(at("new"))));
}

TEST_F(Files, OwnFilesAreThisUsersAlone) {
  EXPECT_EQ(refusal(at("new")), "");
  EXPECT_EQ(refusal(at("new")), "") << "it exists now";
  std::filesystem::create_symlink(victim(), at("link"));
  EXPECT_EQ(refusal(at("link")), "it is a symbolic link");
  ASSERT_EQ(chmod(at("new").c_str(), 0666), 0);
  EXPECT_EQ(refusal(at("new")), "all users may write it");
  EXPECT_EQ(refusal("/dev/null"), "");
  EXPECT_EQ(refusal("/dev/stderr"), "");
  EXPECT_EQ(refusal(at("")), "Is a directory");
  ASSERT_EQ(link(victim().c_str(), at("second").c_str()), 0);
  EXPECT_EQ(refusal(at("second")), "it has a second name (hard link)");
  EXPECT_EQ(text_of_victim(), "precious");
}

TEST_F(Files, AnotherUsersFileIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to give a file to another user";
  ASSERT_EQ(chown(victim().c_str(), 65534, 65534), 0);
  EXPECT_EQ(refusal(victim()), "another user owns it");
  EXPECT_EQ(text_of_victim(), "precious");
}

TEST_F(Files, WritesBeyondTheLimitReturnAnError) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit limit{.rlim_cur = 2, .rlim_max = 2};
    const int fd = create_file(at("new").c_str());
    bool good = setrlimit(RLIMIT_FSIZE, &limit) == 0;
    {
      const FileSizeSignalBlocked guard;
      good = good && ftruncate(fd, 3) == -1 && errno == EFBIG;
      good = good && write(fd, "ab", 2) == 2 && write(fd, "c", 1) == -1 && errno == EFBIG;
    }
    if (!good) _exit(1);
    // The default handler is in place again.
    if (ftruncate(fd, 3) == 0) _exit(2);
    _exit(3);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ) << status;
}

}  // namespace
}  // namespace shoal
