// SPDX-License-Identifier: Apache-2.0
// Errors of the other PEs when a PE of a world is killed, is stopped, or cannot start.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

Environment environment() {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_TIMEOUT_MS", "30000"},
          {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "10000"}};
}

/// Runs `call`, which must throw, and prints the error for the test to read.
template <typename Call>
void print_error(Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    std::cout << name_of(error.code()) << ": " << error.what() << std::endl;
  }
}

// PE 1 makes no further call. The other PEs wait for it in the call that the argument names.
SHOAL_PE_BODY(wait_for_pe_1) {
  World world = World::open({pe.settings, nullptr});
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  std::cout << "ready" << std::endl;
  if (world.my_pe() == 1) {
    for (;;) pause();
  }
  print_error([&] {
    if (pe.argument == "sync") world.state().sync(world.team().state(), "barrier");
    if (pe.argument == "wait") world.wait_until(flag.data(), Compare::equal, 1);
    if (pe.argument == "malloc") world.heap().malloc(100);
    if (pe.argument == "close") world.close();
  });
}

// A limit keeps PE 2 from creating a file as large as a heap.
SHOAL_PE_BODY(fail_in_heap) {
  if (pe.settings.pe == 2) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  print_error([&] { World::open({pe.settings, nullptr}); });
}

/// Prints "blocked" once a wait of this PE has blocked.
std::thread report_block(const World& world) {
  return std::thread([&point = world.state().wait_point()] {
    while (point.blocks() == 0) std::this_thread::yield();
    std::cout << "blocked" << std::endl;
  });
}

// PE 0 blocks in a wait for PE 1, which makes no further call.
SHOAL_PE_BODY(block_on_pe_1) {
  World world = World::open({pe.settings, nullptr});
  if (world.my_pe() == 1) {
    std::cout << "blocked" << std::endl;
    for (;;) pause();
  }
  std::thread report = report_block(world);
  print_error([&] { barrier(world.team()); });
  report.join();
}

// A PE that blocks looks for the end of the others at intervals.
TEST(KilledPeOfABlockedOne, IsReported) {
  PeGroup group = start_pes(3, "block_on_pe_1", {.env = environment()});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("blocked"));
  const auto start = Clock::now();
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  for (const std::size_t pe : {0u, 2u})
    expect_parts(results[pe].out, {"peer_failed: ", "PE 1", "ended"});
}

class KilledPe : public testing::TestWithParam<std::string> {};

// A killed PE is reported at once, not after the timeout.
TEST_P(KilledPe, IsReportedByAll) {
  PeGroup group = start_pes(3, "wait_for_pe_1", {.env = environment(), .argument = GetParam()});
  for (const Process& process : group.pes)
    ASSERT_TRUE(const_cast<Process&>(process).wait_for_output("ready"));
  const auto start = Clock::now();
  group.pes[1].send(SIGKILL);
  const pid_t pid = group.pes[1].pid();
  const auto results = wait_all(group.pes);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(5));
  for (const std::size_t pe : {0u, 2u}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    EXPECT_NE(results[pe].out.find("peer_failed: "), std::string::npos) << results[pe].out;
    EXPECT_NE(results[pe].out.find("PE 1"), std::string::npos) << results[pe].out;
    EXPECT_NE(results[pe].out.find("ended"), std::string::npos)
        << results[pe].out << " (pid " << pid << ")";
  }
}

INSTANTIATE_TEST_SUITE_P(InEveryWait, KilledPe, testing::Values("sync", "wait", "malloc", "close"),
                         [](const auto& instance) { return instance.param; });

// A PE that cannot create its heap fails the start of all PEs, with its message.
TEST(WorldOpenFault, OneWithoutHeapFailsAll) {
  const auto results = run_pes(3, "fail_in_heap", {.env = environment()});
  expect_success(results);
  for (std::size_t pe = 0; pe < results.size(); ++pe) {
    expect_parts(
        results[pe].out,
        {pe == 2 ? "system: " : "peer_failed: ", "PE 2 failed in phase heap: ", "File too large"});
  }
}

constexpr std::size_t kTouchedBytes = std::size_t{32} << 20;

SHOAL_PE_BODY(touch_memory) {
  World world = World::open({pe.settings, nullptr});
  std::memset(world.heap().malloc(kTouchedBytes), 1, kTouchedBytes);
  std::cout << "ready" << std::endl;
  if (world.my_pe() == 1) {
    for (;;) pause();
  }
  print_error([&] { barrier(world.team()); });
}

std::int64_t shared_memory_bytes() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("Shmem:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

/// Growth of the machine's shared memory while a job ran, and after one of its PEs was killed.
struct Growth {
  std::int64_t during = 0, after = 0;
};

constexpr std::size_t kMemoryPes = 3;
constexpr std::int64_t kTolerance = 16 << 20;

Growth kill_one_that_touched_memory() {
  Environment env = environment();
  env["SHOAL_SYMMETRIC_SIZE"] = "64M";
  Growth growth;
  const std::int64_t before = shared_memory_bytes();
  {
    PeGroup group = start_pes(kMemoryPes, "touch_memory", {.env = env});
    for (Process& process : group.pes)
      EXPECT_TRUE(process.wait_for_output("ready")) << process.err();
    growth.during = shared_memory_bytes() - before;
    group.pes[1].send(SIGKILL);
    const auto results = wait_all(group.pes);
    EXPECT_EQ(results[1].signal, SIGKILL);
    for (const std::size_t pe : {0u, 2u}) EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
  }
  const auto deadline = Clock::now() + std::chrono::seconds(5);
  while ((growth.after = shared_memory_bytes() - before) > kTolerance && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return growth;
}

// Heaps have no names, so they disappear with a killed process. The kernel counts shared memory for
// the whole machine, including other programs, hence the tolerance and several attempts. A leak
// shows in all of them.
TEST(WorldFault, AKilledPeLeavesNoSharedMemory) {
  constexpr std::int64_t kTouchedByAll = kMemoryPes * kTouchedBytes;
  Growth growth;
  for (int look = 0; look < 5; ++look) {
    growth = kill_one_that_touched_memory();
    if (growth.during > kTouchedByAll - kTolerance && growth.after <= kTolerance) break;
  }
  EXPECT_GT(growth.during, kTouchedByAll - kTolerance)
      << "/proc/meminfo does not show symmetric memory";
  EXPECT_LE(growth.after, kTolerance);
}

}  // namespace
}  // namespace shoal::test
