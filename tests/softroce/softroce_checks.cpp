// SPDX-License-Identifier: Apache-2.0
// softroce_checks: one PE of a world in the guest, for the tests in this folder. The environment
// says which PE it is, as for any program; the arguments name the checks, which run in order:
//
//   operations, collectives, order, fence, long, words, ep
//                the checks in tests/checks, fewer of them where they take long by emulation
//   loss         puts until an error occurs; prints that it is running, then the error and when
//   die          the same, but the last PE ends without notice
//
// Prints the time of each check in seconds. Exits with 0 if all checks succeeded.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "checks/collective/reference.hpp"
#include "checks/ep/normal.hpp"
#include "checks/transport/worlds.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"

namespace shoal::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// Like check_everything, but without a check of a thousand round trips.
void check_operations(World& world) {
  for (const auto check :
       {check_identity, check_rma, check_strided, check_atomics, check_signals, check_waits,
        check_bounds, check_exchange, check_teams, check_put_signal_add, check_unsigned_atomics,
        check_wait_index, check_peer_pointer, check_registered_buffers})
    check(world);
}

void check_ep(World& world) {
  EpCase c{.ranks = world.n_pes(),
           .experts = 4 * world.n_pes(),
           .top_k = 4,
           .hidden = 96,
           .max_tokens = 24,
           .nodes = world.n_pes() / world.pes_per_node()};
  ep::Group group(world.team(), options_for(c));
  for (c.seed = 1; c.seed <= 3; ++c.seed) {
    check_normal(group, c);
    check_low_latency(group, c, ep::Reduction::per_rank, c.seed % 2 == 0);
    check_low_latency_quantized(group, c, ep::Quantize::fp8_ue8m0);
  }
  group.close();
}

/// Returns when every PE has seen its error, at the latest after 20 s. A PE that left earlier would
/// be the cause that the others report. The network is cut, so files say it.
void wait_until_all_have_seen(const World& world) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / "softroce-seen";
  fs::create_directories(folder);
  std::ofstream(folder / std::to_string(world.my_pe())).close();
  const auto all_seen = [&] {
    for (int pe = 0; pe < world.n_pes(); ++pe)
      if (!fs::exists(folder / std::to_string(pe))) return false;
    return true;
  };
  for (const auto start = Clock::now(); !all_seen() && seconds_since(start) < 20;)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

/// Puts 4 KiB to the next PE until an error occurs. `dies`: the last PE ends after some rounds.
void fail_eventually(World& world, bool dies) {
  const auto box = world.heap().allocate<std::byte>(4096);
  const std::vector<std::byte> out(4096);
  auto last = Clock::now();
  try {
    for (int i = 0;; ++i) {
      last = Clock::now();
      world.put(box.on((world.my_pe() + 1) % world.n_pes()), out);
      world.quiet();
      if (i == 10) {
        barrier(world.team());
        fmt::print("PE {} is running\n", world.my_pe());
        std::fflush(stdout);
      }
      if (i == 20 && dies && world.my_pe() == world.n_pes() - 1) _exit(0);
    }
  } catch (const Error& error) {
    fmt::print("PE {} has seen code {} after {:.1f} s: {}\n", world.my_pe(), name_of(error.code()),
               seconds_since(last), error.what());
    std::fflush(stdout);
    if (!dies) wait_until_all_have_seen(world);
  }
}

const std::map<std::string, void (*)(World&)> kChecks = {
    {"operations", check_operations},
    {"collectives", [](World& world) { run_random_collectives(world, 20, 11); }},
    {"order", [](World& world) { check_data_before_signals_for(world, 150); }},
    {"fence", [](World& world) { check_fence_for(world, 100); }},
    {"long", check_long_transfers},
    {"words", [](World& world) { check_words_are_whole_for(world, 4000); }},
    {"ep", check_ep},
    {"loss", [](World& world) { fail_eventually(world, false); }},
    {"die", [](World& world) { fail_eventually(world, true); }},
};

void run(const std::vector<std::string>& names) {
  World world = World::open();
  const auto* const failed = ::testing::UnitTest::GetInstance();
  for (const std::string& name : names) {
    const auto start = Clock::now();
    kChecks.at(name)(world);
    fmt::print("PE {}: {} {} in {:.1f} s\n", world.my_pe(), name,
               failed->Failed() ? "FAILED" : "ok", seconds_since(start));
    std::fflush(stdout);
  }
  world.close();
}

}  // namespace
}  // namespace shoal::test

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    shoal::test::run({argv + 1, argv + argc});
  } catch (const std::exception& error) {
    fmt::print("failed: {}\n", error.what());
    return 1;
  }
  return ::testing::UnitTest::GetInstance()->Failed() ? 1 : 0;
}
