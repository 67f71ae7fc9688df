// SPDX-License-Identifier: Apache-2.0
// verbs.hpp: settings of worlds whose PEs reach each other by RDMA verbs on an emulated NIC, also
// inside a host.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/plugin.hpp"
#include "checks/world/operations.hpp"
#include "support/built.hpp"
#include "support/process/process.hpp"
#include "transport/module.hpp"

namespace shoal::test {

/// Library of this build or, in a bundle, of the folder that the program is in; empty without one.
inline const std::string kEmulatedIbverbs = [] {
  const std::filesystem::path built = kBuiltIbverbs;
  if (built.empty() || std::filesystem::exists(built)) return built.string();
  const auto here = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const auto moved = here.parent_path() / "lib" / "emulator" / built.filename();
  if (std::filesystem::exists(moved)) return moved.string();
  return std::string();
}();

/// SHOAL_VERBS_INTERFACE of all worlds of this program: CMake runs each program once for each.
inline std::string verbs_interface() {
  const char* const chosen = std::getenv("SHOAL_TEST_VERBS_INTERFACE");
  return chosen != nullptr ? chosen : "verbs";
}

/// Skips its tests, with the reason, without the module or the emulated NIC. The NIC's settings are
/// environment variables, which it reads when the first world of the process opens it.
class WithVerbs : public testing::Test {
 protected:
  void SetUp() override {
    if (kEmulatedIbverbs.empty()) GTEST_SKIP() << "this build has no emulated libibverbs";
    const Plugin plugin = load_plugin(Settings(), "transport_verbs", transport::kModuleSymbol);
    if (plugin.symbol == nullptr) GTEST_SKIP() << "no verbs here: " << plugin.reason;
    emulate("JOB", "test-" + std::to_string(getpid()));
    for (const char* name : {"ORDERING", "LOSS", "DUPLICATION", "REORDERING", "MAX_QP", "SEED",
                             "ATOMICS", "WORDS", "WIRE", "UDP_INTERFACE"})
      unsetenv((kPrefix + name).c_str());
  }
  /// The next world's NIC has the wire between hosts: a RoCE port, here on the loopback interface.
  static void use_udp() {
    emulate("WIRE", "udp");
    emulate("UDP_INTERFACE", "lo");
  }
  /// Sets SHOAL_EMULATOR_<name> for the next world.
  static void emulate(const std::string& name, const std::string& value) {
    setenv((kPrefix + name).c_str(), value.c_str(), 1);
  }

 private:
  static inline const std::string kPrefix = "SHOAL_EMULATOR_";
};

/// The same for PEs that are processes.
inline Environment verbs_environment(const std::string& timeout_ms) {
  return {{"SHOAL_SYMMETRIC_SIZE", "4M"},
          {"SHOAL_MAX_TEAMS", "40"},
          {"SHOAL_TIMEOUT_MS", timeout_ms},
          {"SHOAL_BOOTSTRAP_TIMEOUT_MS", "20000"},
          {"SHOAL_TRANSPORT_INSIDE", "verbs"},
          {"SHOAL_TRANSPORT_BETWEEN", "verbs"},
          {"SHOAL_VERBS_LIBRARY", kEmulatedIbverbs},
          {"SHOAL_VERBS_INTERFACE", verbs_interface()},
          {"SHOAL_EMULATOR_JOB", "test-" + std::to_string(getpid())}};
}

/// Gives the kernels of each PE queue pairs of its emulated NIC to other nodes. The NIC serves
/// queues in host memory, and heaps that it can access.
inline void add_kernel_queues(Settings& settings) {
  settings.transport_between = "verbs,staged";
  settings.verbs_library = kEmulatedIbverbs;
  settings.verbs_interface = "devx";
  settings.verbs_depth = 64;
  settings.gda = "on";
  settings.gda_queue_pairs = 2;
}

/// The same for PEs that are processes, each a node of its own.
inline Environment kernel_queues_environment() {
  return {{"SHOAL_EMULATOR_JOB", "test-" + std::to_string(getpid())},
          {"SHOAL_GDA", "on"},
          {"SHOAL_GDA_QUEUE_PAIRS", "2"},
          {"SHOAL_HEAP", "cuda"},
          {"SHOAL_NODE_SIZE", "1"},
          {"SHOAL_TRANSPORT_BETWEEN", "verbs,staged"},
          {"SHOAL_VERBS_DEPTH", "64"},
          {"SHOAL_VERBS_INTERFACE", "devx"},
          {"SHOAL_VERBS_LIBRARY", kEmulatedIbverbs}};
}

inline Settings verbs_settings() {
  Settings settings = world_settings();
  settings.transport_inside = "verbs";
  settings.transport_between = "verbs";
  settings.verbs_library = kEmulatedIbverbs;
  settings.verbs_interface = verbs_interface();
  settings.max_teams = 40;
  return settings;
}

}  // namespace shoal::test
