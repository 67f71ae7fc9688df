// SPDX-License-Identifier: Apache-2.0
// The heap in GPU memory: growth, zeroed memory, one address per byte in a process, successive
// worlds.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;

class HeapOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_gpu(); !why.empty()) GTEST_SKIP() << why;
  }
};

// Memory is mapped in steps: the heaps of 8 PEs together may be larger than the GPU's memory.
TEST_F(HeapOnGpu, GrowsWhenItIsNeeded) {
  run_threads(8, gpu_world_settings(32768 * kMiB), [](World& world) {
    const Pe right = (world.my_pe() + 1) % world.n_pes();
    const Pe left = (world.my_pe() + world.n_pes() - 1) % world.n_pes();
    std::vector<SymmetricArray<std::uint64_t>> held;
    for (std::uint64_t round = 0; round < 4; ++round) {
      held.push_back(world.heap().allocate<std::uint64_t>(6 * kMiB));  // 48 MiB
      const auto& box = held.back();
      EXPECT_EQ(world.get_value(box.on(right)[box.size() - 1]), 0U);
      barrier(world.team());
      // A copy across the boundary between two steps.
      std::vector<std::uint64_t> out(6 * kMiB), in(6 * kMiB);
      std::iota(out.begin(), out.end(), round + 1000 * static_cast<std::uint64_t>(world.my_pe()));
      world.put(box.on(right), out);
      barrier(world.team());
      std::iota(out.begin(), out.end(), round + 1000 * static_cast<std::uint64_t>(left));
      world.get(std::span(in), box.on(world.my_pe()));
      EXPECT_EQ(in, out);
      barrier(world.team());
    }
    expect_error(Code::invalid_argument, "has memory up to",
                 [&] { world.get_bytes(&held, {0, world.heap().size() - 8}, 8); });
  });
}

TEST_F(HeapOnGpu, IsZeroWhereAskedFor) {
  run_threads(4, gpu_world_settings(256 * kMiB), [](World& world) {
    constexpr std::size_t kBytes = 20 * kMiB;
    for (int round = 0; round < 3; ++round) {
      void* const memory = world.heap().calloc(kBytes, 1);
      std::vector<unsigned char> seen(kBytes);
      const RemoteAddress here{world.my_pe(), world.heap().offset_of(memory)};
      world.get_bytes(seen.data(), here, kBytes);
      EXPECT_EQ(std::count(seen.begin(), seen.end(), 0), static_cast<std::ptrdiff_t>(kBytes));
      std::fill(seen.begin(), seen.end(), static_cast<unsigned char>(0xee));
      world.put_bytes(here, seen.data(), kBytes);
      world.heap().free(memory);
    }
  });
}

TEST_F(HeapOnGpu, SaysThatTheGpuIsFull) {
  Settings settings = gpu_world_settings(std::size_t{1} << 42);
  settings.device = 0;
  run_threads(2, settings, [](World& world) {
    const std::size_t used = world.heap().used();
    expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE",
                 [&] { world.heap().malloc(std::size_t{1} << 41); });
    EXPECT_EQ(world.heap().used(), used);
    EXPECT_NE(world.heap().malloc(kMiB), nullptr);
  });
}

TEST_F(HeapOnGpu, GivesAByteOneAddressInAProcess) {
  std::atomic<std::byte*> window{nullptr};
  run_threads(4, gpu_world_settings(), [&](World& world) {
    std::byte* expected = nullptr;
    std::byte* const seen = state_of(world).fabric().peer_base(0);
    if (!window.compare_exchange_strong(expected, seen)) {
      EXPECT_EQ(expected, seen);
    }
    for (Pe pe = 0; pe < 4; ++pe)
      if (state_of(world).fabric().peer_base(pe) != nullptr) {
        EXPECT_EQ(state_of(world).fabric().peer_base(pe),
                  seen + static_cast<std::size_t>(pe) * world.heap().size());
      }
  });
}

TEST_F(HeapOnGpu, OpensAgainAndAgain) {
  for (int round = 0; round < 5; ++round)
    run_threads(8, gpu_world_settings(64 * kMiB), [](World& world) {
      const auto box = world.heap().allocate<int>(1);
      world.atomic_fetch_add(box.on(0)[0], 1);
      barrier(world.team());
      EXPECT_EQ(world.get_value(box.on(0)[0]), world.n_pes());
      barrier(world.team());
    });
}

TEST_F(HeapOnGpu, NamesDevicesThatAreNotThere) {
  Settings settings = gpu_world_settings();
  settings.device = 1000;
  expect_error(Code::invalid_argument, "SHOAL_DEVICE is 1000",
               [&] { run_threads(2, settings, [](World&) {}); });
}

}  // namespace
}  // namespace shoal::test
