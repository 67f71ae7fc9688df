// SPDX-License-Identifier: Apache-2.0
// Queries of groups in GPU memory to the world, on a driver without a GPU: addresses of shared
// buffers, the reason why a PE is out of reach, and when a group warns about it.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <algorithm>
#include <string>
#include <vector>

#include "base/plugin.hpp"
#include "checks/world/operations.hpp"
#include "checks/world/share.hpp"
#include "ep/cuda/internode/report.hpp"
#include "fabric/connectivity.hpp"
#include "fabric/fabric.hpp"
#include "memory/cuda/driver.hpp"
#include "pe/memory.hpp"
#include "pe/shared_ranges.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"
#include "support/world/ofi.hpp"
#include "support/world/world_errors.hpp"
#include "support/world/world_local.hpp"
#include "transport/module.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Id of the range of `pe` around its buffer, and its address on this PE.
void expect_range(const detail::SharedRanges& ranges, Pe pe, std::uint64_t id,
                  const std::byte* base) {
  const auto found = ranges.of(pe);
  ASSERT_EQ(found.size(), 1u) << "PE " << pe;
  EXPECT_EQ(found[0].id, id);
  EXPECT_EQ(found[0].base, base);
}

TEST(SharedRanges, AreFoundByAddressWhileTheyAreShared) {
  const FakeCuda fake({.gpus = 2});
  run_threads(3, gpu_world_settings(), [](World& world) {
    const auto& ranges = state_of(world).memory().shared_ranges();
    const std::uint64_t before = ranges.version();
    const ForeignMemory mine(world, kMiB, ForeignMemory::Kind::malloc);
    EXPECT_EQ(ranges.find(mine.data(), 16).id, 0u);
    const SharedBuffer shared = world.heap().share_buffer(mine.data(), kMiB);
    EXPECT_NE(ranges.version(), before);
    const auto place = ranges.find(mine.data() + 64, kMiB - 64);
    EXPECT_NE(place.id, 0u);
    EXPECT_EQ(place.offset, 64u);
    EXPECT_EQ(ranges.find(mine.data() + 64, kMiB).id, 0u) << "extends beyond the buffer";
    for (Pe pe = 0; pe < 3; ++pe) expect_range(ranges, pe, 1, shared.on(pe));

    const std::uint64_t known = ranges.version();
    const SharedBuffer part = world.heap().share_buffer(mine.data() + 4096, 4096);
    EXPECT_EQ(ranges.version(), known) << "nothing new is mapped";
    world.heap().unshare_buffer(shared);
    EXPECT_EQ(ranges.find(mine.data(), 16).id, place.id) << "part of it is still shared";
    world.heap().unshare_buffer(part);
    EXPECT_EQ(ranges.find(mine.data(), 16).id, 0u);
    for (Pe pe = 0; pe < 3; ++pe) EXPECT_TRUE(ranges.of(pe).empty());
    EXPECT_NE(ranges.version(), known);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(SharedRanges, HaveIncreasingNumbersPerOwner) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_world_settings(), [](World& world) {
    const auto& ranges = state_of(world).memory().shared_ranges();
    const ForeignMemory one(world, kMiB, ForeignMemory::Kind::malloc),
        two(world, kMiB, ForeignMemory::Kind::malloc);
    const bool first = world.my_pe() == 0;
    const SharedBuffer early =
        world.heap().share_buffer(first ? one.data() : nullptr, first ? kMiB : 0);
    const SharedBuffer late = world.heap().share_buffer(two.data(), kMiB);
    ASSERT_EQ(ranges.of(0).size(), 2u);
    EXPECT_LT(ranges.of(0)[0].id, ranges.of(0)[1].id);
    EXPECT_EQ(ranges.of(0)[0].base, early.on(0));
    EXPECT_EQ(ranges.of(0)[1].base, late.on(0));
    ASSERT_EQ(ranges.of(1).size(), 1u);
    EXPECT_EQ(ranges.of(1)[0].base, late.on(1));
    EXPECT_EQ(ranges.find(two.data(), kMiB).id, ranges.of(world.my_pe()).back().id);
    world.heap().unshare_buffer(early);
    EXPECT_EQ(ranges.of(0).size(), 1u);
    world.heap().unshare_buffer(late);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(SharedRanges, OfFreedMemoryAreNotFound) {
  const FakeCuda fake({.gpus = 1});
  run_threads(2, gpu_world_settings(), [](World& world) {
    const auto& ranges = state_of(world).memory().shared_ranges();
    SharedBuffer shared;
    const std::byte* was = nullptr;
    {
      const ForeignMemory mine(world, kMiB, ForeignMemory::Kind::malloc);
      was = mine.data();
      shared = world.heap().share_buffer(was, kMiB);
      EXPECT_NE(ranges.find(was, 16).id, 0u);
    }
    EXPECT_EQ(ranges.find(was, 16).id, 0u);
    world.heap().unshare_buffer(shared);
  });
}

// A group of these two PEs passes rows through the host: tests/gpu/ep/nodes_test.cpp.
TEST(WorldOnGpus, SaysWhyAPeIsOutOfReach) {
  const FakeCuda fake({.gpus = 2, .peer_access = [](int, int) { return false; }});
  run_threads(2, gpu_world_settings(), [](World& world) {
    EXPECT_EQ(state_of(world).fabric().heap_domains(), (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(state_of(world).fabric().host_domains(), (std::vector<std::int32_t>{0, 0}));
    const std::string why = state_of(world).fabric().why_out_of_reach(1 - world.my_pe());
    expect_parts(why, {"no peer access to GPU"});
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

/// Reports of the ranks of a group of these PEs, in order.
std::vector<std::string> said(Settings settings, Pe n_pes,
                              const ep::cuda::InternodeWays& ways = {}) {
  std::vector<std::string> all(static_cast<std::size_t>(n_pes));
  run_threads(n_pes, settings, [&](World& world) {
    for (Pe pe = 0; pe < n_pes; ++pe) {
      barrier(world.team());
      if (pe != world.my_pe()) continue;
      testing::internal::CaptureStderr();
      ep::cuda::report_internode(world.team(), ways);
      all[static_cast<std::size_t>(pe)] = testing::internal::GetCapturedStderr();
    }
    barrier(world.team());
  });
  return all;
}
constexpr auto kNic = ep::cuda::NetworkPath::nic, kProxy = ep::cuda::NetworkPath::proxy;
constexpr const char* kThroughTheHost = "rows of this ep::Group go through host memory";

TEST(GroupsOnGpus, WarnOfPairsWithoutPeerAccess) {
  // GPUs 0 and 1 do not reach each other. GPU 2 reaches both and reports nothing.
  const FakeCuda fake({.gpus = 3, .peer_access = [](int a, int b) { return a == 2 || b == 2; }});
  const auto all = said(gpu_world_settings(), 3);
  for (const std::size_t pe : {0U, 1U}) {
    expect_parts(all[pe],
                 {std::string("warning: PE ") + std::to_string(pe) + ": " + kThroughTheHost,
                  "the heap of PE " + std::to_string(1 - pe) + " is out of reach",
                  "has no peer access to GPU"});
    EXPECT_EQ(std::count(all[pe].begin(), all[pe].end(), '\n'), 1) << all[pe];
  }
  EXPECT_EQ(all[2], "");
}

TEST(GroupsOnGpus, DoNotWarnIfNodesOrSettingsAreTheReason) {
  const FakeCuda fake({.gpus = 2});
  Settings nodes = gpu_world_settings(), asked = gpu_world_settings();
  nodes.node_size = 1;
  asked.transport_inside = "staged";
  for (Settings settings : {nodes, asked}) {
    EXPECT_EQ(said(settings, 2), std::vector<std::string>(2));
    settings.log = "info";
    for (const std::string& text : said(settings, 2)) expect_parts(text, {kThroughTheHost});
  }
  EXPECT_EQ(said(gpu_world_settings(), 2), std::vector<std::string>(2))
      << "nothing to say, and the level is back";
}

TEST(GroupsOnGpus, SayThatCallsWaitIfKernelsThatAreLoadedLateCanStopTheProxy) {
  Settings settings = gpu_world_settings();
  settings.node_size = 1;
  settings.log = "info";
  for (const bool lazy : {false, true}) {
    const FakeCuda fake({.gpus = 2, .lazy_loading = lazy});
    const auto expect_mention = [&](const ep::cuda::InternodeWays& ways, bool expected) {
      for (const std::string& text : said(settings, 2, ways))
        EXPECT_EQ(text.find("CUDA_MODULE_LOADING=EAGER") != std::string::npos, expected) << text;
    };
    ep::cuda::InternodeWays ways{kProxy, kProxy, {}, memory::cuda::loads_lazily()};
    expect_mention(ways, lazy);
    ways.normal = ways.low_latency = kNic;
    expect_mention(ways, false);                // the NIC needs no proxy
    expect_mention({{}, {}, {}, lazy}, false);  // the host waits, no kernel
  }
}

TEST(GroupsOnGpus, SayWhichModeKernelsServeAndWhyNotTheOther) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = gpu_world_settings();
  settings.node_size = 1;
  settings.log = "info";
  for (const std::string& text : said(settings, 2, {{}, kProxy, {}}))
    expect_parts(text, {"rows of normal mode of this ep::Group go through host memory"});
  for (const std::string& text : said(settings, 2, {kProxy, {}, "they are few"}))
    expect_parts(text, {"low-latency rows of this ep::Group go through host memory"});
  for (const std::string& text : said(settings, 2, {{}, {}, "no proxy"}))
    expect_parts(text, {"; kernels do not send them: no proxy"});
  for (const std::string& text : said(settings, 2, {kProxy, kProxy, {}})) {
    expect_parts(text, {"kernels of this ep::Group send rows over the network, through the proxy"});
    EXPECT_EQ(text.find("host memory"), std::string::npos) << text;
  }
  for (const std::string& text : said(settings, 2, {kNic, kNic, {}}))
    expect_parts(text, {"send rows over the network, through queues of the NIC"});
  for (const std::string& text : said(settings, 2, {kNic, kProxy, {}}))
    expect_parts(text,
                 {"normal mode through queues of the NIC, low-latency mode through the proxy"});
  for (const std::string& text : said(settings, 2, {{}, kNic, {}}))
    expect_parts(text, {"send low-latency rows over the network, through queues of the NIC"});
}

TEST(WorldOnGpus, HostsOfAnNvlinkDomainAreOne) {
  SHOAL_SKIP_WITHOUT_OFI();  // host memory is reached through a network
  if (const auto module =
          load_plugin(gpu_world_settings(), "transport_ofi", transport::kModuleSymbol);
      module.symbol == nullptr)
    GTEST_SKIP() << module.reason;  // a bundle for GPU machines has no networks
  const FakeCuda fake({.gpus = 2});
  const auto errors = errors_of(2, gpu_world_settings(), [](Pe pe, const auto& bootstrap) {
    Settings settings = gpu_world_settings();
    settings.cuda_handle = "fabric";
    settings.host_id = pe == 0 ? "a" : "b";
    World world = World::open({settings, bootstrap});
    const Pe other = 1 - pe;
    EXPECT_EQ(state_of(world).fabric().heap_domains(), (std::vector<std::int32_t>{0, 0}));
    EXPECT_EQ(state_of(world).fabric().host_domains(), (std::vector<std::int32_t>{0, 1}));
    const std::string how = world.describe_transport(other);
    EXPECT_TRUE(how.starts_with("cuda_p2p: load-store")) << how;
    EXPECT_NE(world.heap().peer_pointer(world.heap().base(), other), nullptr);
    EXPECT_EQ(world.shared_team().size(), 2);
    barrier(world.team());
    world.close();
  });
  EXPECT_EQ(errors, std::vector<std::string>(2));
  EXPECT_EQ(FakeCuda::leaks(), "");
}

}  // namespace
}  // namespace shoal::test

#endif
