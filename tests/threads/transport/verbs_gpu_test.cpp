// SPDX-License-Identifier: Apache-2.0
// Heaps in GPU memory over the verbs transport, with a fake CUDA driver and the emulated NIC: data
// travel by RDMA, without copies through host memory. The fake driver's memory is a memfd, whose
// descriptor takes the place of a dma-buf.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <numeric>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/verbs.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

using VerbsGpu = WithVerbs;
using Values = std::vector<std::uint32_t>;

constexpr std::size_t kStep = std::size_t{64} << 20;  ///< of the heap's growth

/// Every PE is a node.
Settings gpu_settings() {
  Settings settings = verbs_settings();
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{8} << 20;
  settings.node_size = 1;
  settings.transport_inside = "automatic";
  settings.transport_between = "verbs,staged";
  settings.staged_chunk = 8192;
  return settings;
}

Settings with_setting(const std::string& gpu_memory) {
  Settings settings = gpu_settings();
  settings.verbs_gpu_memory = gpu_memory;
  return settings;
}

/// How data travel to every other PE: "by RDMA (dma-buf)".
void expect_data(World& world, const std::string& how) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const std::string found = world.describe_transport(pe);
    if (pe != world.my_pe())
      EXPECT_NE(found.find("; data " + how + "; control verbs"), std::string::npos) << found;
  }
}

Values numbers(std::size_t count, std::uint32_t first) {
  Values values(count);
  std::iota(values.begin(), values.end(), first);
  return values;
}

/// Puts to the right neighbour and gets from it, with buffers on the host and in the heap.
void exchange(World& world, std::size_t count) {
  const auto array = world.heap().allocate<std::uint32_t>(count);
  const auto other = world.heap().allocate<std::uint32_t>(count);
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  const Pe left = (world.my_pe() + world.n_pes() - 1) % world.n_pes();
  const auto first = [&](Pe pe) { return 1000U * static_cast<std::uint32_t>(pe + 1); };
  world.put(array.on(right), std::span<const std::uint32_t>(numbers(count, first(world.my_pe()))));
  barrier(world.team());
  EXPECT_EQ(local(world, array), numbers(count, first(left)));
  world.put(other.on(right), std::span<const std::uint32_t>(array.data(), count));
  barrier(world.team());
  const Pe second = (left + world.n_pes() - 1) % world.n_pes();
  EXPECT_EQ(local(world, other), numbers(count, first(second)));
  Values seen(count);
  world.get(std::span(seen), array.on(right));
  EXPECT_EQ(seen, numbers(count, first(world.my_pe())));
  barrier(world.team());
}

TEST_F(VerbsGpu, DoesEveryOperation) {
  {
    const FakeCuda fake({.gpus = 2});
    run_threads(2, gpu_settings(), [](World& world) {
      expect_data(world, "by RDMA (dma-buf)");
      check_everything(world);
      EXPECT_EQ(FakeCuda::calls("range_handle"), 2) << "one step of each heap";
      EXPECT_EQ(FakeCuda::dma_bufs(), 0) << "registered memory needs no descriptor";
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// Nothing passes through chunks in host memory.
TEST_F(VerbsGpu, CopiesNothing) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings(), [](World& world) {
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

class VerbsGpuTier : public VerbsGpu, public testing::WithParamInterface<const char*> {};

// Signals are applied by the GPU of the target, after the data that its NIC has written.
TEST_P(VerbsGpuTier, ShowsDataBeforeItsSignal) {
  emulate("ORDERING", GetParam());
  if (GetParam() != std::string("strict")) emulate("REORDERING", "0.3");
  const FakeCuda fake({.gpus = 2});
  Settings settings = gpu_settings();
  settings.verbs_queue_pairs = 2;
  run_threads(2, settings, [](World& world) {
    constexpr std::size_t kCount = 20'000;
    const auto array = world.heap().allocate<std::uint32_t>(kCount);
    const auto flag = world.heap().allocate<std::uint64_t>(1);
    const Pe peer = 1 - world.my_pe();
    for (std::uint32_t round = 1; round <= 20; ++round) {
      const Values sent = numbers(kCount, round * 1000);
      world.put_nbi(array.on(peer), std::span<const std::uint32_t>(sent));
      world.signal(flag.on(peer), SignalOp::set, round);
      world.signal_wait_until(flag.data(), Compare::greater_equal, round);
      EXPECT_EQ(local(world, array), sent) << round;
      barrier(world.team());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Tiers, VerbsGpuTier, testing::Values("strict", "adaptive", "unordered"),
                         [](const auto& instance) { return std::string(instance.param); });

// A put after a fence arrives after a request before it, and the reverse.
TEST_F(VerbsGpu, KeepsTheOrderOfFences) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings(), [](World& world) {
    const auto words = world.heap().allocate<std::uint64_t>(512);
    const Pe peer = 1 - world.my_pe();
    for (std::uint64_t round = 1; round <= 100; ++round) {
      world.put_nbi(words.on(peer)[3], std::span<const std::uint64_t>(&round, 1));
      world.fence();
      const std::vector<std::uint64_t> many(512, round + 1000);
      world.put(words.on(peer), std::span<const std::uint64_t>(many));
      barrier(world.team());
      EXPECT_EQ(local(world, words), many) << "the put is the newer one";
      barrier(world.team());
      world.put_nbi(words.on(peer), std::span<const std::uint64_t>(many));
      world.fence();
      world.put_value(words.on(peer)[3], round);
      barrier(world.team());
      EXPECT_EQ(local(world, words)[3], round);
      barrier(world.team());
    }
  });
}

TEST_F(VerbsGpu, RegistersEachStepOnce) {
  {
    const FakeCuda fake({.gpus = 2});
    Settings settings = gpu_settings();
    settings.symmetric_size = 3 * kStep;
    run_threads(2, settings, [](World& world) {
      EXPECT_EQ(FakeCuda::calls("range_handle"), 2);
      const auto low = world.heap().allocate<std::byte>(kStep - 300'000);
      exchange(world, 250'000);  // across the end of the first step
      EXPECT_EQ(FakeCuda::calls("range_handle"), 4) << "one more step of each of two heaps";
      exchange(world, 250'000);
      EXPECT_EQ(FakeCuda::calls("range_handle"), 4);
      expect_data(world, "by RDMA (dma-buf)");
      EXPECT_EQ(FakeCuda::dma_bufs(), 0);
      barrier(world.team());
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST_F(VerbsGpu, RegistersByAddressWithoutDmaBufs) {
  {
    const FakeCuda fake({.gpus = 2, .dma_buf = false});
    run_threads(2, gpu_settings(), [](World& world) {
      expect_data(world, "by RDMA (peer memory)");
      exchange(world, 100'000);
      EXPECT_EQ(FakeCuda::calls("range_handle"), 0);
    });
  }
  const FakeCuda fake({.gpus = 2});
  run_threads(2, with_setting("peermem"), [](World& world) {
    expect_data(world, "by RDMA (peer memory)");
    exchange(world, 100'000);
    EXPECT_EQ(FakeCuda::calls("range_handle"), 0);
  });
}

TEST_F(VerbsGpu, PassesThroughHostMemoryWhereNicsHaveNoAccess) {
  const auto run = [](FakeCudaOptions options, const Settings& settings, const std::string& why) {
    options.gpus = 1;
    const FakeCuda fake(options);
    run_threads(2, settings, [&](World& world) {
      expect_data(world, "through host memory: " + why);
      exchange(world, 100'000);
      EXPECT_EQ(FakeCuda::calls("range_handle"), 0);
      const ConnectivityReport report = world.connectivity();
      for (const PairConnectivity& pair : report.heap_pairs)
        for (const TransportVerdict& verdict : pair.transports)
          if (pair.a != pair.b && verdict.chosen)
            EXPECT_TRUE(verdict.why.ends_with("; data through host memory: " + why)) << verdict.why;
    });
  };
  run({.gpu_direct = false}, gpu_settings(), "GPU 0 has no GPUDirect RDMA");
  run({.ordered_writes = false}, gpu_settings(),
      "kernels of GPU 0 may see a signal before the data that a NIC wrote");
  run({}, with_setting("off"), "SHOAL_VERBS_GPU_MEMORY is off");
}

TEST_F(VerbsGpu, NamesTheErrorOfARegistrationThatTheSettingAsksFor) {
  const FakeCuda fake({.gpus = 2, .failing_function = "range_handle", .failures = 10});
  expect_error(Code::unsupported,
               "SHOAL_VERBS_GPU_MEMORY is dmabuf, but GPU 0 exports no dma-buf of 8388608 bytes: "
               "CUDA_ERROR_FAKE: a failure that the test asked for; allowed: automatic, dmabuf, "
               "peermem, off",
               [] { run_threads(2, with_setting("dmabuf"), [](World&) {}); });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// A step that cannot be registered is not added on any PE, and the world goes on.
TEST_F(VerbsGpu, AddsNoStepThatCannotBeRegistered) {
  {
    const FakeCuda fake({.gpus = 2, .failing_function = "range_handle", .failing_call = 2});
    Settings settings = with_setting("dmabuf");
    settings.symmetric_size = 2 * kStep;
    run_threads(2, settings, [](World& world) {
      expect_error(Code::unsupported, "SHOAL_VERBS_GPU_MEMORY is dmabuf, but GPU",
                   [&] { world.heap().malloc(kStep + 1'000'000); });
      exchange(world, 100'000);
      void* const memory = world.heap().malloc(kStep + 1'000'000);  // now it can be registered
      exchange(world, 100'000);
      world.heap().free(memory);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

}  // namespace
}  // namespace shoal::test

#endif
