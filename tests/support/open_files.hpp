// SPDX-License-Identifier: Apache-2.0
// open_files.hpp: for tests that need more open files than a shell may allow.
#pragma once

#include <sys/resource.h>

namespace shoal::test {

/// Raises the limit of open files of this process to `count`; false if the system refuses.
inline bool allow_files(rlim_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
  if (limit.rlim_cur >= count) return true;
  limit.rlim_cur = count;
  if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < count) limit.rlim_max = count;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace shoal::test

/// Skips the test if this process may not have `count` open files.
#define SHOAL_SKIP_WITHOUT_FILES(count) \
  if (!shoal::test::allow_files(count)) GTEST_SKIP() << "needs " << (count) << " open files"
