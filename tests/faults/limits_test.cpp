// SPDX-License-Identifier: Apache-2.0
// A world that cannot start since file descriptors run out says so and names the limit.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

/// PE 1 may open `pe.argument` more files than it has.
SHOAL_PE_BODY(few_descriptors) {
  if (pe.settings.pe == 1) {
    const int next = dup(STDIN_FILENO);
    close(next);
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = static_cast<rlim_t>(next + std::stoi(pe.argument));
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  try {
    const World world = World::open({pe.settings, nullptr});
    barrier(world.team());
    std::cout << "opened" << std::endl;
  } catch (const Error& error) {
    std::cout << error.what() << std::endl;
  }
}

TEST(Limits, OpenFilesAreNamedWhereverTheyRunOut) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "the sanitizer opens a pipe to look at an object, and reports a fault without one";
#endif
  bool opened = false;
  int failures = 0;
  for (int files = 0; !opened && files < 64; ++files) {
    const auto results =
        run_pes(3, "few_descriptors",
                {.env = {{"SHOAL_SYMMETRIC_SIZE", "4M"}, {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "5000"}},
                 .argument = std::to_string(files)});
    expect_success(results);
    const std::string& out = results[1].out;
    opened = out.find("opened") != std::string::npos;
    if (opened) break;
    ++failures;
    EXPECT_NE(out.find("`ulimit -n`"), std::string::npos) << files << " files: " << out;
    // The other PEs receive the cause once PE 1 has joined them.
    if (results[0].out.find("did not connect") == std::string::npos)
      EXPECT_NE(results[0].out.find("`ulimit -n`"), std::string::npos)
          << files << " files: " << results[0].out;
  }
  EXPECT_TRUE(opened);
  EXPECT_GT(failures, 1);
}

}  // namespace
}  // namespace shoal::test
