// SPDX-License-Identifier: Apache-2.0
// Heaps in GPU memory over the verbs transport, with a fake CUDA driver and the emulated NIC: data
// travel by RDMA, without copies through host memory. The fake driver's memory is a memfd, whose
// descriptor takes the place of a dma-buf.
// @traits polls
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include "checks/world/gpu_heap.hpp"
#include "checks/world/operations.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/verbs.hpp"

namespace shoal::test {
namespace {

using VerbsGpu = WithVerbs;

Settings gpu_settings() {
  return with_gpu_heap(verbs_settings(), "verbs,staged");
}

Settings with_setting(const std::string& gpu_memory) {
  Settings settings = gpu_settings();
  settings.verbs_gpu_memory = gpu_memory;
  return settings;
}

void expect_data(World& world, const std::string& how) {
  test::expect_data(world, how, "verbs");
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

TEST_F(VerbsGpu, CopiesNothing) {
  const FakeCuda fake({.gpus = 2});
  run_threads(2, gpu_settings(), check_copies_nothing);
}

class VerbsGpuTier : public VerbsGpu, public testing::WithParamInterface<const char*> {};

TEST_P(VerbsGpuTier, ShowsDataBeforeItsSignal) {
  emulate("ORDERING", GetParam());
  if (GetParam() != std::string("strict")) emulate("REORDERING", "0.3");
  const FakeCuda fake({.gpus = 2});
  Settings settings = gpu_settings();
  settings.verbs_queue_pairs = 2;
  run_threads(2, settings, check_data_before_signal);
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
    settings.symmetric_size = 3 * kHeapStep;
    run_threads(2, settings, [](World& world) {
      EXPECT_EQ(FakeCuda::calls("range_handle"), 2);
      const auto low = world.heap().allocate<std::byte>(kHeapStep - 300'000);
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
            EXPECT_TRUE(without_ids(verdict.why).ends_with("; data through host memory: " + why))
                << verdict.why;
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

// A step that cannot be registered is not added on any PE, and the world stays usable.
TEST_F(VerbsGpu, AddsNoStepThatCannotBeRegistered) {
  {
    const FakeCuda fake({.gpus = 2, .failing_function = "range_handle", .failing_call = 2});
    Settings settings = with_setting("dmabuf");
    settings.symmetric_size = 2 * kHeapStep;
    run_threads(2, settings, [](World& world) {
      expect_error(Code::unsupported, "SHOAL_VERBS_GPU_MEMORY is dmabuf, but GPU",
                   [&] { world.heap().malloc(kHeapStep + 1'000'000); });
      exchange(world, 100'000);
      void* const memory = world.heap().malloc(kHeapStep + 1'000'000);  // now it can be registered
      exchange(world, 100'000);
      world.heap().free(memory);
    });
  }
  EXPECT_EQ(FakeCuda::leaks(), "");
}

}  // namespace
}  // namespace shoal::test

#endif
