// SPDX-License-Identifier: Apache-2.0
// Worlds whose PEs are processes: the same checks as with threads, over passed file descriptors.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>

#include "checks/world/operations.hpp"
#include "checks/world/waits.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

Environment environment(const std::string& node_size) {
  return {{"SHOAL_SYMMETRIC_SIZE", "8M"},
          {"SHOAL_MAX_TEAMS", "40"},
          {"SHOAL_TIMEOUT_MS", "20000"},
          {"SHOAL_NODE_SIZE", node_size}};
}

SHOAL_PE_BODY(everything) {
  World world = World::open({pe.settings, nullptr});
  check_everything(world);
  world.close();
}

SHOAL_PE_BODY(open_and_close) {
  World world = World::open({pe.settings, nullptr});
  check_identity(world);
  check_exchange(world);
  world.close();
}

// Threads and processes in one world: PEs 0 and 1 share a process, and so do PEs 2 and 3.
SHOAL_PE_BODY(two_threads_each) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&, i] {
      Settings settings = pe.settings;
      settings.pe = 2 * pe.settings.pe + i;
      settings.n_pes = 4;
      World world = World::open({settings, nullptr});
      check_everything(world);
      world.close();
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(WorldOfProcesses, DoesEverything) {
  expect_success(run_pes(3, "everything", {.env = environment("0")}));
}
TEST(WorldOfProcesses, DoesEverythingBetweenEmulatedNodes) {
  expect_success(run_pes(4, "everything", {.env = environment("2")}));
}
TEST(WorldOfProcesses, DoesEverythingWithoutLoadStore) {
  expect_success(run_pes(2, "everything", {.env = environment("1")}));
}

SHOAL_PE_BODY(wake) {
  World world = World::open({pe.settings, nullptr});
  check_writes_wake(world);
  check_stores_are_seen(world);
  world.close();
}

TEST(WorldOfProcesses, WakesPesThatBlock) {
  expect_success(run_pes(2, "wake", {.env = environment("0")}));
}

// More PEs than the number of datagrams in a socket queue.
TEST(WorldOfProcesses, OpensWithMorePesThanASocketQueues) {
  expect_success(run_pes(16, "open_and_close", {.env = environment("0")}));
}

/// Runs `body` in a child that this PE forks, then exits the child by exit(): its destructors and
/// exit handlers run. Returns the child's exit status; -1 where a signal ended it.
template <typename Body>
int exit_status_of_child(const Body& body) {
  const pid_t child = fork();
  if (child == 0) {
    int status = 0;
    try {
      body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "child: %s\n", error.what());
      status = 1;
    }
    std::exit(status);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void require_fork_error(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    if (error.code() == Code::closed &&
        std::string(error.what()).find("is a fork of PE") != std::string::npos)
      return;
    throw;
  }
  throw std::runtime_error("a call in a child returned");
}

SHOAL_PE_BODY(fork_children) {
  World world = World::open({pe.settings, nullptr});
  auto box = world.heap().allocate<std::uint64_t>(4);
  barrier(world.team());
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  const Team team = world.team();
  EXPECT_EQ(0, exit_status_of_child([&] {
              require_fork_error([&] { world.put_value(box.on(right)[0], std::uint64_t{7}); });
              require_fork_error([&] { world.quiet(); });
              require_fork_error([&] { barrier(team); });
              require_fork_error([&] { (void)world.heap().malloc(64); });
              require_fork_error([&] { (void)world.team(); });
              require_fork_error([&] { world.close(); });
              world.abort("a child");
              box = {};
              world = World();  // the last handle of the child but for `team`
            }));
  barrier(world.team());
  EXPECT_EQ(box[0], 0u);
  check_everything(world);
  box = {};
  world.close();
}

TEST(WorldOfProcesses, IsClosedInForkedChildren) {
  for (const char* const node_size : {"0", "1"})
    expect_success(run_pes(3, "fork_children", {.env = environment(node_size)}));
}

/// An independent program: it takes its options from the environment alone.
SHOAL_PE_BODY(open_from_environment) {
  const auto start = std::chrono::steady_clock::now();
  World world = World::open(WorldOptions::from_environment());
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(world.my_pe(), pe.settings.pe);
  EXPECT_EQ(world.n_pes(), 3);
  EXPECT_EQ(world.heap().size(), std::size_t{8} << 20);
  EXPECT_EQ(world.settings().max_teams, 40);
  // The phases account for the time.
  std::chrono::nanoseconds sum{};
  for (const InitPhase& phase : world.init_phases()) sum += phase.duration;
  EXPECT_GT(sum.count(), 0);
  EXPECT_LE(sum, took);
  world.close();
  EXPECT_FALSE(world.is_open());
}

TEST(WorldOfProcesses, TakesItsOptionsFromTheEnvironment) {
  expect_success(run_pes(3, "open_from_environment", {.env = environment("0")}));
}

void expect_ring(World& world, std::uint64_t number) {
  auto box = world.heap().allocate<std::uint64_t>(1);
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  world.put_value(box.on(right)[0], number + static_cast<std::uint64_t>(right));
  barrier(world.team());
  EXPECT_EQ(box[0], number + static_cast<std::uint64_t>(world.my_pe()));
  barrier(world.team());
}

/// Worlds by one unique id: one after another, two at once, and after one that failed to open.
SHOAL_PE_BODY(open_several) {
  World first = World::open({pe.settings, nullptr});
  World second = World::open({pe.settings, nullptr});
  expect_ring(first, 100);
  expect_ring(second, 200);
  expect_ring(first, 300);
  second.close();
  first.close();
  Settings different = pe.settings;
  if (pe.settings.pe == 1) different.symmetric_size *= 2;
  expect_error(Code::mismatch, "SHOAL_SYMMETRIC_SIZE", [&] { World::open({different, nullptr}); });
  Settings invalid = pe.settings;
  if (pe.settings.pe == 0) invalid.max_teams = -1;
  EXPECT_THROW(World::open({invalid, nullptr}), Error);
  World last = World::open({pe.settings, nullptr});
  expect_ring(last, 400);
  last.close();
}

TEST(WorldOfProcesses, OpensAnother) {
  for (const char* const node_size : {"0", "1"})
    expect_success(run_pes(3, "open_several", {.env = environment(node_size)}));
}

// PEs may be processes, threads, or both in one world.
TEST(WorldOfProcesses, MixesThreadsAndProcesses) {
  PeOptions options{.env = environment("0")};
  const UniqueId id = [&] {
    Settings settings;
    settings.socket_interface = "lo";
    return UniqueId::create(settings);
  }();
  std::vector<Process> processes;
  for (int i = 0; i < 2; ++i) {
    Environment env = options.env;
    env["SHOAL_PE"] = std::to_string(i);
    env["SHOAL_N_PES"] = "2";
    env["SHOAL_UNIQUE_ID"] = id.to_string();
    processes.emplace_back(std::vector<std::string>{"/proc/self/exe", "--gtest_brief=1",
                                                    "--shoal-pe-body=two_threads_each"},
                           env);
  }
  expect_success(wait_all(processes));
}

}  // namespace
}  // namespace shoal::test
