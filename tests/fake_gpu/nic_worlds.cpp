// SPDX-License-Identifier: Apache-2.0
// A file of its own: what it includes cannot follow fake_gpu.hpp.
#include "fake_gpu/nic_worlds.hpp"

#include <gtest/gtest.h>

#include <chrono>

#include "checks/world/operations.hpp"
#include "device/device_side.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "shoal/device/detail/gda/path.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/gda/host_platform.hpp"
#include "support/world/verbs.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::test::fake_gpu {
namespace {

namespace gda = device::gda;

/// Sets the environment of the emulated NIC as WithVerbs does for its tests.
struct Nic : WithVerbs {
  explicit Nic(const NicCase& c) {
    SetUp();
    emulate("ORDERING", c.ordering);
    if (!c.loss.empty()) emulate("LOSS", c.loss);
    if (c.ordering != "strict") emulate("REORDERING", "0.2");
  }
  void TestBody() override {}
};

}  // namespace

std::string with_nic_worlds(const NicCase& c,
                            const std::function<void(const std::vector<NicWorld>&)>& body) {
  if (kEmulatedIbverbs.empty()) return "this build has no emulated libibverbs";
  const Nic nic(c);
  if (testing::Test::IsSkipped()) return "no verbs here";
  Settings settings = verbs_settings();
  settings.heap = "cuda";
  settings.cuda_handle = "automatic";
  settings.symmetric_size = c.bytes + (std::size_t{8} << 20);
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  add_kernel_queues(settings);
  settings.gda_queue_pairs = c.queue_pairs;
  settings.timeout = std::chrono::seconds(60);
  if (c.gives_up_soon) {
    settings.verbs_timeout = 11;  // 8 ms
    settings.verbs_retries = 1;
  }
  const FakeCuda cuda({.gpus = c.pes});
  std::vector<NicWorld> worlds(static_cast<std::size_t>(c.pes));
  run_threads(c.pes, settings, [&](World& world) {
    auto memory = world.heap().allocate<std::byte>(c.bytes);
    NicWorld& mine = worlds[static_cast<std::size_t>(world.my_pe())];
    mine = {cuda::device_world(world), memory.data(), [&world](Pe pe) {
              return state_of(world).device_side()->nic_failure(
                  pe, cuda::launch_context(world).priority);
            }};
    ASSERT_NE(mine.world.gda, nullptr) << world.describe_transport(1 - world.my_pe());
    barrier(world.team());
    if (world.my_pe() == 0) body(worlds);
    barrier(world.team());
    if (c.fails) return;
    gda::HostPlatform platform;
    EXPECT_EQ(gda::drain_all(*mine.world.gda, platform).outcome, gda::Outcome::ok);
    EXPECT_EQ(mine.world.failure->state, device::FailureReport::empty);
    barrier(world.team());
  });
  return "";
}

}  // namespace shoal::test::fake_gpu
