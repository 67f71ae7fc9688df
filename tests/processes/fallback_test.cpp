// SPDX-License-Identifier: Apache-2.0
// Transports that fail between processes: a network at start or in its first operations, on one PE
// or in one direction only, and shared memory, in whose place a network carries the pair.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "checks/world/operations.hpp"
#include "support/built.hpp"
#include "support/expect_error.hpp"
#include "support/process/process.hpp"
#include "support/world/ofi.hpp"
#include "support/world/step_bootstrap.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

using When = StepBootstrap::When;

/// Prints "0: ofi", and so on for the other PEs.
void print_transports(const World& world) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const std::string text = world.describe_transport(pe);
    std::cout << pe << ": " << text.substr(0, text.find(':')) << std::endl;
  }
}

void check_operations(World& world) {
  check_rma(world);
  check_atomics(world);
  check_signals(world);
  check_put_signal_add(world);
  check_exchange(world);
  check_teams(world);
}

SHOAL_PE_BODY(fall_back) {
  World world = World::open({pe.settings, nullptr});
  print_transports(world);
  check_operations(world);
  world.close();
}

/// From now on the process can open no file.
void forbid_files() {
  const int next = dup(STDERR_FILENO);
  close(next);
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next);
  setrlimit(RLIMIT_NOFILE, &limit);
}
void allow_files() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

// PE 1 can open no file after the all-gather of the step that the argument names, until the
// following one. The other two share memory.
SHOAL_PE_BODY(fall_back_without_files) {
  std::shared_ptr<Bootstrap> bootstrap = make_bootstrap(pe.settings);
  if (pe.settings.pe == 1) {
    const std::string end = pe.argument == "heap" ? "transports" : "connectivity";
    bootstrap = std::make_shared<StepBootstrap>(bootstrap, pe.argument, When::after, forbid_files);
    bootstrap = std::make_shared<StepBootstrap>(bootstrap, end, When::before, allow_files);
  }
  World world = World::open({pe.settings, bootstrap});
  print_transports(world);
  check_operations(world);
  world.close();
}

Environment environment() {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_MAX_TEAMS", "40"},
          {"SHOAL_TIMEOUT_MS", "60000"},
          {"SHOAL_OFI_PROVIDER", "tcp;ofi_rxm"}};
}

class FallbackOf : public testing::TestWithParam<std::pair<std::string, std::string>> {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_OFI(); }
};
using Network = FallbackOf;
using SharedMemory = FallbackOf;

TEST_P(Network, FallsBackOnAllProcesses) {
  const auto [fault, reason] = GetParam();
  Environment chosen = environment();
  chosen["SHOAL_TRANSPORT_INSIDE"] = chosen["SHOAL_TRANSPORT_BETWEEN"] = "ucx,ofi";
  chosen["SHOAL_PLUGIN_DIR"] = kFaultyTransports;
  chosen["SHOAL_TEST_FAULT"] = fault;
  const auto results = run_pes(3, "fall_back", {.env = chosen});
  expect_success(results);
  expect_parts(results[0].out, {"0: self\n1: ofi\n2: ofi\n"});
  expect_parts(results[1].out, {"0: ofi\n1: self\n2: ofi\n"});
  expect_parts(results[2].out, {"0: ofi\n1: ofi\n2: self\n"});
  expect_parts(results[0].err,
               {"transport ucx is not used (dropped for all", reason, "ofi takes its place"});
  EXPECT_EQ(results[1].err, "");
  EXPECT_EQ(results[2].err, "");
}

const auto name_of_fault = [](const auto& info) {
  std::string name = info.param.first;
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0) letter = '_';
  return name;
};
INSTANTIATE_TEST_SUITE_P(
    Faults, Network,
    testing::Values(std::pair{"start 2 0", "PE 2 to PE 0: a made-up fault of the start"},
                    std::pair{"unreached 2 1", "PE 2 to PE 1: a made-up fault of the connection"},
                    std::pair{"put 1 2", "PE 1 to PE 2: its first operations failed"},
                    std::pair{"atomic 2 1", "PE 2 to PE 1: its first operations failed"},
                    std::pair{"lose-signal 0 2", "PE 0 to PE 2: its first operations failed"}),
    name_of_fault);

/// Over the emulated NIC.
Environment verbs_then_ofi() {
  Environment chosen = verbs_environment("60000");
  chosen["SHOAL_TRANSPORT_INSIDE"] = chosen["SHOAL_TRANSPORT_BETWEEN"] = "verbs,ofi";
  chosen["SHOAL_OFI_PROVIDER"] = "tcp;ofi_rxm";
  return chosen;
}

void expect_ofi(const Environment& chosen, const char* reason) {
  SHOAL_SKIP_WITHOUT_OFI();
  const auto results = run_pes(3, "fall_back", {.env = chosen});
  expect_success(results);
  expect_parts(results[0].out, {"0: self\n1: ofi\n2: ofi\n"});
  expect_parts(results[0].err,
               {"transport verbs is not used (dropped for all", reason, "ofi takes its place"});
}

TEST_F(WithVerbs, AQuotaOfTheDevice) {
  Environment chosen = verbs_then_ofi();
  chosen["SHOAL_EMULATOR_MAX_QP"] = "1";
  expect_ofi(chosen, "SHOAL_VERBS_QUEUE_PAIRS");
}

// Queue pairs connect, but no packet arrives.
TEST_F(WithVerbs, ALinkThatLosesAllPackets) {
  Environment chosen = verbs_then_ofi();
  chosen["SHOAL_EMULATOR_LOSS"] = "0.999999";
  chosen["SHOAL_VERBS_TIMEOUT"] = "10";  // 4 ms a retry
  expect_ofi(chosen, "transport retry count");
}

// Only the pairs of the PE that cannot share its memory use a network.
TEST_P(SharedMemory, FallsBackToANetwork) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP()
      << "the sanitizer opens a pipe to look at an object, and reports a fault without one";
#endif
  const auto [step, reason] = GetParam();
  const auto results =
      run_pes(3, "fall_back_without_files", {.env = environment(), .argument = step});
  expect_success(results);
  expect_parts(results[0].out, {"0: self\n1: ofi\n2: shm\n"});
  expect_parts(results[1].out, {"0: ofi\n1: self\n2: ofi\n"});
  expect_parts(results[2].out, {"0: shm\n1: ofi\n2: self\n"});
  for (const char* peer : {"0", "2"})
    expect_parts(results[1].err,
                 {std::string("transport shm does not reach PE ") + peer + ": " + reason,
                  "Too many open files", "SHOAL_TRANSPORT_INSIDE"});
}

INSTANTIATE_TEST_SUITE_P(WithoutFiles, SharedMemory,
                         testing::Values(std::pair{"heap", "cannot open a local socket"},
                                         std::pair{"transports",
                                                   "cannot receive its symmetric memory"}),
                         name_of_fault);

}  // namespace
}  // namespace shoal::test
