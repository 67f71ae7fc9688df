// SPDX-License-Identifier: Apache-2.0
// The staged transport in worlds of threads, on a fake CUDA driver: operations on device heaps pass
// through host memory.
// @traits polls
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <algorithm>
#include <numeric>

#include "checks/world/operations.hpp"
#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/ofi.hpp"
#include "support/world/world_local.hpp"
#include "team/team_state.hpp"
#include "transport/staged/layout.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

/// Nodes of `node_size` PEs; the network between them does not reach GPU memory.
Settings staged_settings(std::int64_t node_size) {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.max_teams = 40;
  settings.node_size = node_size;
  settings.transport_between = "staged";
  settings.staged_chunk = 8192;
  return settings;
}

void expect_staged(World& world, bool inside_too = false) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    if (pe == world.my_pe()) continue;
    const bool other_node = pe / world.pes_per_node() != world.my_pe() / world.pes_per_node();
    const std::string how = world.describe_transport(pe);
    EXPECT_TRUE(how.starts_with(other_node || inside_too ? "staged: " : "cuda_p2p: ")) << how;
  }
}

TEST(Staged, DoesEveryOperation) {
  {
    const FakeCuda fake({.gpus = 4});
    run_threads(4, staged_settings(2), [](World& world) {
      expect_staged(world);
      check_everything(world);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(Staged, WorksAtAnyDepth) {
  for (const std::int64_t depth : {1, 2, 33}) {
    const FakeCuda fake({.gpus = 2});
    Settings settings = staged_settings(1);
    settings.staged_depth = depth;
    run_threads(2, settings, check_everything);
  }
}

TEST(Staged, DoesEveryOperationOverANetwork) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  Settings settings = staged_settings(1);
  settings.transport_between = "ofi,staged";
  run_threads(3, settings, [](World& world) {
    EXPECT_TRUE(world.describe_transport((world.my_pe() + 1) % 3).ends_with("control ofi"));
    expect_staged(world);
    check_everything(world);
  });
}

TEST(Staged, ReplacesMissingPeerAccess) {
  const FakeCuda fake({.gpus = 2, .peer_access = [](int, int) { return false; }});
  Settings settings = staged_settings(0);
  settings.transport_between = "automatic";
  run_threads(2, settings, [](World& world) {
    expect_staged(world, true);
    check_everything(world);
  });
}

TEST(Staged, ReplacesNvlinkWhereTheSettingAsksForIt) {
  const FakeCuda fake({.gpus = 2});
  Settings settings = staged_settings(0);
  settings.transport_inside = "staged";
  run_threads(2, settings, [](World& world) {
    expect_staged(world, true);
    EXPECT_EQ(world.shared_team().size(), 1);
    check_everything(world);
  });
}

TEST(Staged, MovesMoreThanItsChunksHold) {
  const FakeCuda fake({.gpus = 2});
  const Settings settings = staged_settings(1);
  run_threads(2, settings, [&](World& world) {
    const std::size_t chunks =
        2 * static_cast<std::size_t>(settings.staged_depth) * settings.staged_chunk;
    const std::size_t count = 3 * chunks / sizeof(std::uint32_t) + 5;
    const auto array = world.heap().allocate<std::uint32_t>(count);
    const Pe peer = 1 - world.my_pe();
    std::vector<std::uint32_t> sent(count), seen(count);
    std::iota(sent.begin(), sent.end(), 1000U * static_cast<std::uint32_t>(world.my_pe()));
    world.put(array.on(peer), std::span<const std::uint32_t>(sent));
    barrier(world.team());
    const std::vector<std::uint32_t> here = local(world, array);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(here[i], 1000U * static_cast<std::uint32_t>(peer) + i);
    world.get(std::span(seen), array.on(peer));
    EXPECT_EQ(seen, sent);
    std::fill(seen.begin(), seen.end(), 0U);
    world.get_nbi(std::span(seen),
                  array.on(peer));  // complete with quiet, also with a get in between
    EXPECT_EQ(world.get_value(array.on(peer)[1]), sent[1]);
    world.quiet();
    EXPECT_EQ(seen, sent);
    barrier(world.team());
  });
}

TEST(Staged, BoundsRequestsInFlight) {
  for (const std::int64_t depth : {1, 2, 33}) {
    const FakeCuda fake({.gpus = 2});
    Settings settings = staged_settings(1);
    settings.staged_depth = depth;
    run_threads(2, settings, [&](World& world) {
      constexpr std::size_t kCount = 500;
      const auto words = world.heap().allocate<std::uint64_t>(kCount);
      const auto blocks = world.heap().allocate<std::byte>(kCount * 64);
      const std::vector<std::byte> block(64, std::byte{7});
      const Pe peer = 1 - world.my_pe();
      for (std::size_t i = 0; i < kCount; ++i) {
        world.put_nbi(blocks.on(peer).subspan(i * 64, 64), std::span(block));
        world.put_value(words.on(peer)[i], std::uint64_t{i + 1});
      }
      world.quiet();
      barrier(world.team());
      const std::vector<std::uint64_t> here = local(world, words);
      for (std::size_t i = 0; i < kCount; ++i) ASSERT_EQ(here[i], i + 1);
      const std::size_t most = state_of(world)
                                   .fabric()
                                   .heap_route(peer, transport::capability::all_operations)
                                   .transport.most_in_flight();
      EXPECT_LE(most, static_cast<std::size_t>(depth));
      EXPECT_GE(most, 1u);
      barrier(world.team());
    });
  }
}

TEST(Staged, ReportsAFailureAtTheOtherPe) {
  int copies = 0;
  const auto put = [&](World& world) {
    const auto array = world.heap().allocate<std::uint32_t>(1000);
    barrier(world.team());
    if (world.my_pe() == 0) copies = FakeCuda::calls("copy");
    barrier(world.team());
    const std::vector<std::uint32_t> values(1000, 7);
    if (world.my_pe() == 0) world.put(array.on(1), std::span<const std::uint32_t>(values));
    world.quiet();
  };
  {
    const FakeCuda fake({.gpus = 2});
    run_threads(2, staged_settings(1), put);
    ASSERT_GT(FakeCuda::calls("copy"), copies) << "the other PE copies what was put";
  }
  const FakeCuda fake({.gpus = 2, .failing_function = "copy", .failing_call = copies});
  expect_error(
      Code::system,
      "operation of PE 0 on the heap of PE 1 in GPU memory failed there: put of 4000 bytes",
      [&] { run_threads(2, staged_settings(1), put); });
}

TEST(StagedLayout, PartsDoNotOverlap) {
  using transport::staged::Layout;
  Settings settings;
  settings.staged_chunk = 10'000;
  settings.staged_depth = 3;
  const Layout layout(5, settings);
  EXPECT_EQ(layout.depth(), 3u);
  EXPECT_EQ(layout.chunk_bytes() % 4096, 0u);
  EXPECT_GE(layout.chunk_bytes(), 10'000u);
  std::vector<std::pair<std::size_t, std::size_t>> parts;
  for (Pe pe = 0; pe < 5; ++pe) {
    for (std::uint64_t i = 1; i <= layout.depth(); ++i)
      parts.emplace_back(layout.request(pe, i), sizeof(transport::staged::Request));
    parts.emplace_back(layout.reply(pe), sizeof(transport::staged::Reply));
  }
  for (std::size_t i = 0; i < layout.depth(); ++i) {
    parts.emplace_back(layout.own_chunk(i), layout.chunk_bytes());
    parts.emplace_back(layout.served_chunk(i), layout.chunk_bytes());
  }
  std::sort(parts.begin(), parts.end());
  for (std::size_t i = 1; i < parts.size(); ++i)
    EXPECT_LE(parts[i - 1].first + parts[i - 1].second, parts[i].first);
  EXPECT_LE(parts.back().first + parts.back().second, layout.bytes());
}

}  // namespace
}  // namespace shoal::test

#endif
