// SPDX-License-Identifier: Apache-2.0
// gpu_heap.hpp: checks of heaps of GPUs that a network reaches by RDMA. PEs are threads, each a
// node; a fake CUDA driver counts copies.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {

inline constexpr std::size_t kHeapStep = std::size_t{64} << 20;  ///< of the heap's growth

/// `settings` with a heap of GPUs between nodes. `transports`: "verbs,staged".
inline Settings with_gpu_heap(Settings settings, const std::string& transports) {
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  settings.transport_between = transports;
  settings.staged_chunk = 8192;
  return settings;
}

/// Expects how data travel to every other PE: "by RDMA (dma-buf)". `network`: "verbs".
inline void expect_data(World& world, const std::string& how, const std::string& network) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const std::string found = world.describe_transport(pe);
    if (pe != world.my_pe()) expect_parts(found, {"; data " + how + "; control " + network});
  }
}

inline std::vector<std::uint32_t> ascending(std::size_t count, std::uint32_t first) {
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Puts to the right neighbour and gets from it, with buffers on the host and in the heap.
inline void exchange(World& world, std::size_t count) {
  const auto array = world.heap().allocate<std::uint32_t>(count);
  const auto other = world.heap().allocate<std::uint32_t>(count);
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  const Pe left = (world.my_pe() + world.n_pes() - 1) % world.n_pes();
  const auto of = [&](Pe pe) {
    return ascending(count, 1000U * static_cast<std::uint32_t>(pe + 1));
  };
  world.put(array.on(right), std::span<const std::uint32_t>(of(world.my_pe())));
  barrier(world.team());
  EXPECT_EQ(local(world, array), of(left));
  world.put(other.on(right), std::span<const std::uint32_t>(array.data(), count));
  barrier(world.team());
  EXPECT_EQ(local(world, other), of((left + world.n_pes() - 1) % world.n_pes()));
  std::vector<std::uint32_t> seen(count);
  world.get(std::span(seen), array.on(right));
  EXPECT_EQ(seen, of(world.my_pe()));
  barrier(world.team());
}

/// Two PEs. Nothing passes through chunks in host memory.
inline void check_copies_nothing(World& world) {
  const auto array = world.heap().allocate<std::byte>(1'000'000);
  const std::vector<std::byte> data(1'000'000, std::byte{7});
  barrier(world.team());
  const int copies = FakeCuda::calls("copy") + FakeCuda::calls("copy_2d");
  world.put(array.on(1 - world.my_pe()), std::span(data));
  world.quiet();
  barrier(world.team());
  EXPECT_EQ(FakeCuda::calls("copy") + FakeCuda::calls("copy_2d"), copies);
  barrier(world.team());
  EXPECT_EQ(local(world, array), data);
}

/// Two PEs. Signals are applied by the GPU of the target, after the data that its NIC has written.
inline void check_data_before_signal(World& world) {
  constexpr std::size_t kCount = 20'000;
  const auto array = world.heap().allocate<std::uint32_t>(kCount);
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  const Pe peer = 1 - world.my_pe();
  for (std::uint32_t round = 1; round <= 20; ++round) {
    const auto sent = ascending(kCount, round * 1000);
    world.put_nbi(array.on(peer), std::span<const std::uint32_t>(sent));
    world.signal(flag.on(peer), SignalOp::set, round);
    world.signal_wait_until(flag.data(), Compare::greater_equal, round);
    EXPECT_EQ(local(world, array), sent) << round;
    barrier(world.team());
  }
}

}  // namespace shoal::test
