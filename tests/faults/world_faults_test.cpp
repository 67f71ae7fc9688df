// SPDX-License-Identifier: Apache-2.0
// Errors of the other PEs when a PE of a world is killed, is stopped, or cannot start.

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <iostream>
#include <string>
#include <thread>

#include "base/plugin.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/world/ucx.hpp"
#include "team/exchange.hpp"
#include "transport/module.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

Environment environment() {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_TIMEOUT_MS", kNever},
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
    if (pe.argument == "sync") detail::sync(state_of(world.team()), "barrier");
    if (pe.argument == "wait") world.wait_until(flag.data(), Compare::equal, 1);
    if (pe.argument == "malloc") world.heap().malloc(100);
    if (pe.argument == "close") world.close();
  });
}

// A limit keeps PE 2 from creating a file as large as a heap.
SHOAL_PE_BODY(fail_in_heap) {
  if (pe.settings.pe == 2) {
    const rlimit limit{.rlim_cur = 1 << 20, .rlim_max = 1 << 20};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  print_error([&] { World::open({pe.settings, nullptr}); });
}

/// Prints "blocked" once a wait of this PE has blocked.
std::thread report_block(const World& world) {
  return std::thread([&point = state_of(world).waits().wait_point()] {
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
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  for (const std::size_t pe : {0u, 2u})
    expect_parts(results[pe].out, {"peer_failed: ", "PE 1", "ended"});
}

class KilledPe : public testing::TestWithParam<std::string> {};

// A killed PE is reported at once, not after the timeout.
TEST_P(KilledPe, IsReportedByAll) {
  PeGroup group = start_pes(3, "wait_for_pe_1", {.env = environment(), .argument = GetParam()});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("ready"));
  group.pes[1].send(SIGKILL);
  const auto results = wait_all(group.pes);
  for (const std::size_t pe : {0u, 2u}) {
    EXPECT_TRUE(results[pe].ok()) << results[pe].describe();
    expect_parts(results[pe].out, {"peer_failed: ", "PE 1", "ended"});
  }
}

INSTANTIATE_TEST_SUITE_P(InEveryWait, KilledPe, testing::Values("sync", "wait", "malloc", "close"),
                         [](const auto& instance) { return instance.param; });

/// Expected end of a PE after the death of another one.
struct Neighbour {
  const char* network;
  const char* way;
  int pe;  ///< 1 or 2; the other one is killed
};

// One of PE 1 and PE 2 is killed; the other one notices that, and ends. PE 0 finds both ends at
// once.
SHOAL_PE_BODY(end_after_another) {
  const bool neighbour = pe.argument.back() == '0' + pe.settings.pe;
  const std::string way = pe.argument.substr(0, pe.argument.find(' '));
  World world = World::open({pe.settings, nullptr});
  const auto box = world.heap().allocate<std::uint64_t>(1);
  std::cout << "ready" << std::endl;
  if (!neighbour && pe.settings.pe != 0) {
    for (;;) pause();
  }
  try {
    // This sync has no quiet, unlike a barrier, which would wait for the stopped PE 0.
    detail::sync(state_of(world.team()), "barrier");
  } catch (const Error& error) {
    std::cout << "barrier: " << error.what() << std::endl;
    if (neighbour && way == "exits") _exit(0);
    if (neighbour && way == "throws") throw;
    if (neighbour) return;
  }
  const Pe other = pe.argument.back() - '0';
  try {
    for (;;) world.put(box.on(other), std::span<const std::uint64_t>(box.data(), 1));
  } catch (const Error& error) {
    std::cout << "put: " << error.what() << std::endl;
  }
}

/// True if the message says that `pe` failed: as the cause, or as the peer that a network has lost.
bool names(const std::string& message, std::size_t pe) {
  for (const char* const before : {": ", "has lost "})
    if (message.find(fmt::format("{}PE {}: ", before, pe)) != std::string::npos) return true;
  return false;
}

class EndOfANeighbour : public testing::TestWithParam<Neighbour> {};

// Networks report ends in any order, and what a PE says before it ends may be lost.
TEST_P(EndOfANeighbour, IsNotTakenForTheCause) {
  const auto& [network, way, pe] = GetParam();
  const Plugin plugin =
      load_plugin(Settings(), std::string("transport_") + network, transport::kModuleSymbol);
  if (plugin.symbol == nullptr) GTEST_SKIP() << plugin.reason;
  const std::size_t neighbour = pe, killed = 3 - pe;
  Environment chosen = environment();
  chosen["SHOAL_TRANSPORT_INSIDE"] = chosen["SHOAL_TRANSPORT_BETWEEN"] = network;
  chosen["SHOAL_OFI_PROVIDER"] = "tcp;ofi_rxm";
  chosen["SHOAL_UCX_TLS"] = "tcp,self";
  PeGroup group =
      start_pes(3, "end_after_another", {.env = chosen, .argument = fmt::format("{} {}", way, pe)});
  for (Process& process : group.pes) ASSERT_TRUE(process.wait_for_output("ready")) << process.err();
  group.pes[0].send(SIGSTOP);
  group.pes[killed].send(SIGKILL);
  const ProcessResult ended = group.pes[neighbour].wait();
  EXPECT_TRUE(names(ended.out, killed)) << ended.describe();
  group.pes[0].send(SIGCONT);
  const ProcessResult result = group.pes[0].wait();
  EXPECT_TRUE(result.ok()) << result.describe();
  const std::size_t put = result.out.find("put: ");
  ASSERT_NE(put, std::string::npos) << result.describe();
  EXPECT_TRUE(names(result.out.substr(0, put), killed)) << result.out;
  EXPECT_TRUE(names(result.out.substr(put), killed)) << result.out;
}

INSTANTIATE_TEST_SUITE_P(
    OverNetworks, EndOfANeighbour,
    testing::Values(Neighbour{"ofi", "exits", 1}, Neighbour{"ofi", "exits", 2},
                    Neighbour{"ofi", "leaves", 1}, Neighbour{"ofi", "throws", 2},
                    Neighbour{"ucx", "exits", 1}, Neighbour{"ucx", "exits", 2},
                    Neighbour{"ucx", "leaves", 2}, Neighbour{"ucx", "throws", 1}),
    [](const auto& instance) {
      const Neighbour& neighbour = instance.param;
      return fmt::format("{}_{}_{}", neighbour.network, neighbour.way, neighbour.pe);
    });

// A PE that cannot create its heap fails the start of all PEs, with its message.
TEST(WorldOpenFault, OneWithoutHeapFailsAll) {
  const auto results = run_pes(3, "fail_in_heap", {.env = environment()});
  expect_success(results);
  for (std::size_t pe = 0; pe < results.size(); ++pe) {
    expect_parts(results[pe].out, {pe == 2 ? "system: " : "peer_failed: ",
                                   "PE 2 failed in phase heap: ", "File too large", "`ulimit -f`"});
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
  wait_for([&] { return (growth.after = shared_memory_bytes() - before) <= kTolerance; },
           Milliseconds(5000));
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
