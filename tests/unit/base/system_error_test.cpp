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
#include "support/expect_error.hpp"

namespace shoal {
namespace {

TEST(SystemError, NamesTheLimitOfOpenFiles) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const std::string text = errno_text(EMFILE);
  test::expect_parts(text, {"Too many open files", "`ulimit -n`"});
  if (limit.rlim_cur != RLIM_INFINITY) test::expect_parts(text, {std::to_string(limit.rlim_cur)});
  test::expect_parts(errno_text(ENFILE), {"fs.file-max"});
}

TEST(SystemError, NamesMemoryProcessesAndDisk) {
  test::expect_parts(errno_text(ENOMEM), {"out of memory"});
  test::expect_parts(errno_text(EAGAIN), {"`ulimit -u`"});
  test::expect_parts(errno_text(ENOSPC), {"/dev/shm"});
}

TEST(SystemError, NamesTheLimitOfFileSizes) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = std::min<rlim_t>(before.rlim_max, std::uint64_t{1} << 40);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const std::string text = errno_text(EFBIG);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  test::expect_parts(text, {"File too large", "`ulimit -f`", std::to_string(limit.rlim_cur)});
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
    test::expect_parts(error.what(), {"cannot open a file: Too many open files (this"});
  }
}

}  // namespace
}  // namespace shoal
