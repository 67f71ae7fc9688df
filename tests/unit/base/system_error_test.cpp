// SPDX-License-Identifier: Apache-2.0
// Errors of the operating system name the limit behind them.
// @traits one_thread
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/check.hpp"
#include "base/system_error.hpp"

namespace shoal {
namespace {

TEST(SystemError, NamesTheLimitOfOpenFiles) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string text = errno_text(EMFILE);
  EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
  EXPECT_NE(text.find("`ulimit -n`"), std::string::npos) << text;
  if (limit.rlim_cur != RLIM_INFINITY)
    EXPECT_NE(text.find(std::to_string(limit.rlim_cur)), std::string::npos) << text;
  EXPECT_NE(errno_text(ENFILE).find("fs.file-max"), std::string::npos);
}

TEST(SystemError, NamesMemoryProcessesAndDisk) {
  EXPECT_NE(errno_text(ENOMEM).find("out of memory"), std::string::npos);
  EXPECT_NE(errno_text(EAGAIN).find("`ulimit -u`"), std::string::npos);
  EXPECT_NE(errno_text(ENOSPC).find("/dev/shm"), std::string::npos);
}

TEST(SystemError, NamesTheLimitOfFileSizes) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = std::min<rlim_t>(before.rlim_max, std::uint64_t{1} << 40);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string text = errno_text(EFBIG);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_NE(text.find("File too large"), std::string::npos) << text;
  EXPECT_NE(text.find("`ulimit -f`"), std::string::npos) << text;
  EXPECT_NE(text.find(std::to_string(limit.rlim_cur)), std::string::npos) << text;
}

TEST(SystemError, OtherErrorsHaveTheTextOfTheSystem) {
  EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused");
  EXPECT_EQ(errno_text(99999), "Unknown error 99999");
}

TEST(SystemError, KeepsErrno) {
  errno = EIO;
  errno_text(EMFILE);
  EXPECT_EQ(errno, EIO);
}

TEST(SystemError, FailErrnoUsesIt) {
  try {
    errno = EMFILE;
    fail_errno("cannot open a file");
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cannot open a file: Too many open files (this"),
              std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace shoal
