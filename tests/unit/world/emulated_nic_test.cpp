// SPDX-License-Identifier: Apache-2.0
// SHOAL_GDA=emulated on a machine without a GPU: what is wrong with settings, variables and the
// module is said before CUDA is asked for anything.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <cstdlib>

#include "checks/world/operations.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

Settings emulated(std::int64_t node_size) {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = node_size;
  settings.transport_between = "cuda_p2p";
  settings.gda = "emulated";
  return settings;
}

void open(std::int32_t pes, const Settings& settings) {
  run_threads(pes, settings, [](World&) {});
}

TEST(EmulatedNic, NeedsKernelsThatAreLoaded) {
  const FakeCuda fake({.gpus = 2, .lazy_loading = true});
  expect_error(Code::unsupported, "set CUDA_MODULE_LOADING=EAGER", [] { open(2, emulated(1)); });
}

TEST(EmulatedNic, NeedsTheProxy) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = emulated(1);
  settings.proxy_slots = 0;
  expect_error(Code::invalid_argument, "SHOAL_GDA is emulated, but SHOAL_PROXY_SLOTS is 0",
               [&] { open(2, settings); });
}

TEST(EmulatedNic, NeedsItsModule) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = emulated(1);
  settings.plugin_dir = "/nonexistent";
  expect_error(Code::unsupported, "SHOAL_GDA is emulated, but /nonexistent/libshoal_gpu_nic.so",
               [&] { open(2, settings); });
}

TEST(EmulatedNic, HasSoManyQueuePairs) {
  const FakeCuda fake({.gpus = 4});
  Settings settings = emulated(1);
  settings.gda_queue_pairs = 32;
  expect_error(Code::invalid_argument,
               "SHOAL_GDA_QUEUE_PAIRS is 32 for 3 PEs on other nodes; the NIC of "
               "SHOAL_GDA=emulated has 64 queue pairs; allowed: 0 to 21",
               [&] { open(4, settings); });
}

TEST(EmulatedNic, VariablesAreChecked) {
  const FakeCuda fake({.gpus = 2});
  const struct {
    const char *name, *value, *allowed;
  } cases[] = {{"SHOAL_EMULATOR_ORDERING", "odd", "strict, adaptive, unordered"},
               {"SHOAL_EMULATOR_RATE_GB_S", "-1", "0 to 10000"},
               {"SHOAL_EMULATOR_RATE_GB_S", "50GB", "0 to 10000"},
               {"SHOAL_EMULATOR_SMS", "5", "1 to 4"},
               {"SHOAL_EMULATOR_SMS", "1.5", "1 to 4"},
               {"SHOAL_EMULATOR_DELAY_US", "2000000", "0 to 1000000"},
               {"SHOAL_EMULATOR_REORDER_US", "nan", "0 to 1000000"}};
  for (const auto& [name, value, allowed] : cases) {
    setenv(name, value, 1);
    expect_error(Code::invalid_argument,
                 std::string("SHOAL_GDA is emulated, but ") + name + " is \"" + value +
                     "\"; allowed: " + allowed,
                 [] { open(2, emulated(1)); });
    unsetenv(name);
  }
}

// Kernels reach all PEs: there is nothing for a NIC to do.
TEST(EmulatedNic, IsNotMadeOnOneNode) {
  {
    const FakeCuda fake({.gpus = 2, .lazy_loading = true});
    open(2, emulated(2));
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

}  // namespace
}  // namespace shoal::test

#endif
