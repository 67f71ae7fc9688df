// SPDX-License-Identifier: Apache-2.0
// Heaps of GPUs over libfabric, with a fake CUDA driver: where the provider reaches their memory,
// data travel by RDMA without copies through host memory. Providers over TCP reach pinned host
// memory alone.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <numeric>
#include <vector>

#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/ofi.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kStep = std::size_t{64} << 20;  ///< of the heap's growth

/// Every PE is a node.
Settings gpu_settings(const std::string& handle) {
  Settings settings = ofi_settings();
  settings.heap = "cuda";
  settings.cuda_handle = handle;
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  settings.transport_between = "ofi,staged";
  settings.staged_chunk = 8192;
  return settings;
}

/// How data travel to every other PE.
void expect_data(World& world, const std::string& how) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const std::string found = world.describe_transport(pe);
    if (pe != world.my_pe())
      EXPECT_NE(found.find("; data " + how + "; control ofi"), std::string::npos) << found;
  }
}

/// Puts to the other PE and gets from it, with buffers on the host and in the heap.
void exchange(World& world, std::size_t count) {
  const auto array = world.heap().allocate<std::uint32_t>(count);
  const auto other = world.heap().allocate<std::uint32_t>(count);
  const Pe peer = 1 - world.my_pe();
  const auto numbers = [&](Pe pe) {
    std::vector<std::uint32_t> values(count);
    std::iota(values.begin(), values.end(), 1000U * static_cast<std::uint32_t>(pe + 1));
    return values;
  };
  const auto mine = numbers(world.my_pe()), theirs = numbers(peer);
  world.put(array.on(peer), std::span<const std::uint32_t>(mine));
  barrier(world.team());
  EXPECT_EQ(local(world, array), theirs);
  world.put(other.on(peer), std::span<const std::uint32_t>(array.data(), count));
  barrier(world.team());
  EXPECT_EQ(local(world, other), mine);
  std::vector<std::uint32_t> seen(count);
  world.get(std::span(seen), array.on(peer));
  EXPECT_EQ(seen, mine);
  barrier(world.team());
}

TEST(OfiGpu, DoesEveryOperation) {
  SHOAL_SKIP_WITHOUT_OFI();
  for (const char* const provider : {"tcp;ofi_rxm", "automatic"}) {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_settings("pinned");
    settings.ofi_provider = provider;
    run_threads(2, settings, [](World& world) {
      expect_data(world, "by RDMA (host memory)");
      check_everything(world);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(OfiGpu, CopiesNothing) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("pinned"), [](World& world) {
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
  });
}

// A signal is applied by the GPU of the target, after the data that the network has written.
TEST(OfiGpu, ShowsDataBeforeItsSignal) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("pinned"), [](World& world) {
    constexpr std::size_t kCount = 20'000;
    const auto array = world.heap().allocate<std::uint32_t>(kCount);
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    const Pe peer = 1 - world.my_pe();
    for (std::uint32_t round = 1; round <= 20; ++round) {
      const std::vector<std::uint32_t> sent(kCount, round);
      world.put_nbi(array.on(peer), std::span<const std::uint32_t>(sent));
      world.signal(flag.on(peer), SignalOp::set, round);
      world.signal_wait_until(flag.data(), Compare::greater_equal, round);
      EXPECT_EQ(local(world, array), sent) << round;
      barrier(world.team());
    }
  });
}

TEST(OfiGpu, RegistersTheStepsOfAGrowingHeap) {
  SHOAL_SKIP_WITHOUT_OFI();
  {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_settings("pinned");
    settings.symmetric_size = 3 * kStep;
    run_threads(2, settings, [](World& world) {
      const auto low = world.heap().allocate<std::byte>(kStep - 300'000);
      exchange(world, 250'000);  // across the end of the first step
      expect_data(world, "by RDMA (host memory)");
      barrier(world.team());
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(OfiGpu, PassesThroughHostMemoryWhereTheProviderHasNoAccess) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings("automatic"), [](World& world) {
    const std::string found = world.describe_transport(1 - world.my_pe());
    EXPECT_NE(found.find("; data through host memory: provider tcp;ofi_rxm does not access GPU "
                         "memory on "),
              std::string::npos)
        << found;
    EXPECT_NE(found.find("(FI_HMEM); control ofi"), std::string::npos) << found;
    exchange(world, 100'000);
  });
  Settings off = gpu_settings("pinned");
  off.ofi_gpu_memory = "off";
  run_threads(2, off, [](World& world) {
    expect_data(world, "through host memory: SHOAL_OFI_GPU_MEMORY is off");
    exchange(world, 100'000);
  });
}

TEST(OfiGpu, NamesTheReasonWhereTheSettingAsksForAccess) {
  SHOAL_SKIP_WITHOUT_OFI();
  const FakeCuda fake({.gpus = 2});
  Settings settings = gpu_settings("automatic");
  settings.ofi_gpu_memory = "hmem";
  expect_error(Code::unsupported,
               "SHOAL_OFI_GPU_MEMORY is hmem, but provider tcp;ofi_rxm does not access GPU memory",
               [&] { run_threads(2, settings, [](World&) {}); });
}

}  // namespace
}  // namespace shoal::test

#endif
