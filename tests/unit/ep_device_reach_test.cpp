// What groups in GPU memory ask the world, on a driver without a GPU: where buffers lie that are shared (requirement
// D2), and why a member is out of reach (D12).
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <string>
#include <vector>

#include "shoal/collective.hpp"
#include "support/fake_cuda.hpp"
#include "support/ofi.hpp"
#include "support/world_errors.hpp"
#include "support/world_gpu.hpp"
#include "support/world_local.hpp"
#include "support/world_share.hpp"
#include "support/worlds.hpp"
#include "world/connectivity.hpp"
#include "world/shared_buffers.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

/// Id and start here of the range of `pe` around its buffer.
void expect_range(const detail::SharedRanges& ranges, Pe pe, std::uint64_t id, const std::byte* base) {
  const auto found = ranges.of(pe);
  ASSERT_EQ(found.size(), 1u) << "PE " << pe;
  EXPECT_EQ(found[0].id, id);
  EXPECT_EQ(found[0].base, base);
}

TEST(SharedRanges, AreFoundByAddressWhileTheyAreShared) {
  const FakeCuda fake({.gpus = 2});
  run_threads(3, gpu_world_settings(), [](World& world) {
    const auto& ranges = detail::shared_ranges(world.state());
    const std::uint64_t before = ranges.version();
    const ForeignMemory mine(world, kMiB, ForeignMemory::Kind::malloc);
    EXPECT_EQ(ranges.find(mine.data(), 16).id, 0u);
    const SharedBuffer shared = world.heap().share_buffer(mine.data(), kMiB);
    EXPECT_NE(ranges.version(), before);
    const auto place = ranges.find(mine.data() + 64, kMiB - 64);
    EXPECT_NE(place.id, 0u);
    EXPECT_EQ(place.offset, 64u);
    EXPECT_EQ(ranges.find(mine.data() + 64, kMiB).id, 0u) << "leaves the buffer";
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

TEST(SharedRanges, HaveNumbersThatGrowForEachOwner) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_world_settings(), [](World& world) {
    const auto& ranges = detail::shared_ranges(world.state());
    const ForeignMemory one(world, kMiB, ForeignMemory::Kind::malloc), two(world, kMiB, ForeignMemory::Kind::malloc);
    const bool first = world.my_pe() == 0;
    const SharedBuffer early = world.heap().share_buffer(first ? one.data() : nullptr, first ? kMiB : 0);
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

TEST(SharedRanges, OfMemoryThatHasGoneIsNotFound) {
  const FakeCuda fake({.gpus = 1});
  run_threads(2, gpu_world_settings(), [](World& world) {
    const auto& ranges = detail::shared_ranges(world.state());
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

TEST(WorldOnGpus, SaysWhyAPeIsOutOfReach) {  // a group of the two passes rows through the host: tests/gpu/ep_nodes_test
  const FakeCuda fake({.gpus = 2, .peer_access = [](int, int) { return false; }});
  run_threads(2, gpu_world_settings(), [](World& world) {
    EXPECT_EQ(world.state().load_store_domains(), (std::vector<std::int32_t>{0, 1}));
    EXPECT_EQ(world.state().host_domains(), (std::vector<std::int32_t>{0, 0}));
    const std::string why = detail::why_out_of_reach(world.state(), 1 - world.my_pe());
    EXPECT_NE(why.find("no peer access to GPU"), std::string::npos) << why;
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(WorldOnGpus, HostsOfAnNvlinkDomainAreOne) {  // B3
  SHOAL_SKIP_WITHOUT_OFI();                       // what is in host memory goes by a network
  const FakeCuda fake({.gpus = 2});
  const auto errors = errors_of(2, gpu_world_settings(), [](Pe pe, const auto& bootstrap) {
    Settings settings = gpu_world_settings();
    settings.cuda_handle = "fabric";
    settings.host_id = pe == 0 ? "a" : "b";
    World world = World::open({settings, bootstrap});
    const Pe other = 1 - pe;
    EXPECT_EQ(world.state().load_store_domains(), (std::vector<std::int32_t>{0, 0}));
    EXPECT_EQ(world.state().host_domains(), (std::vector<std::int32_t>{0, 1}));
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
