// SPDX-License-Identifier: Apache-2.0
// Worlds with their heap in GPU memory, on a driver without a GPU: failures, growth of the heap,
// and reachability.
// @traits slow
// @soak Handles/CudaHeap.*/ipc
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <mutex>
#include <set>

#include "base/align.hpp"
#include "checks/world/operations.hpp"
#include "checks/world/share.hpp"
#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/expect_error.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

Settings cuda_settings(std::size_t size = std::size_t{8} << 20) {
  Settings settings = world_settings();
  settings.heap = "cuda";
  settings.symmetric_size = size;
  settings.max_teams = 40;
  return settings;
}

constexpr std::size_t kMiB = std::size_t{1} << 20;

class CudaHeap : public testing::TestWithParam<const char*> {
 protected:
  Settings settings(std::size_t size = 8 * kMiB) const {
    Settings result = cuda_settings(size);
    result.cuda_handle = GetParam();
    return result;
  }
};

TEST_P(CudaHeap, DoesEverything) {
  const FakeCuda fake({.gpus = 4});
  run_threads(4, settings(), check_everything);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// Several PEs share one GPU.
TEST_P(CudaHeap, DoesEverythingOnOneGpu) {
  const FakeCuda fake({.gpus = 1});
  run_threads(8, settings(), check_everything);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST_P(CudaHeap, DoesEverythingBetweenEmulatedNodes) {
  const FakeCuda fake({.gpus = 2});
  Settings with_nodes = settings();
  with_nodes.node_size = 2;
  run_threads(4, with_nodes, check_everything);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// PEs are distributed over the GPUs of their host, independent of its number of emulated nodes.
TEST(CudaWorld, EmulatedNodesShareTheGpusOfTheirHost) {
  const FakeCuda fake({.gpus = 4});
  Settings settings = cuda_settings();
  settings.node_size = 1;
  run_threads(4, settings, [](World& world) {
    EXPECT_EQ(state_of(world).memory().cuda()->device, world.my_pe());
    EXPECT_EQ(world.my_pe_on_node(), 0);
  });
}

// Host collectives also move and reduce heaps in GPU memory.
TEST_P(CudaHeap, MovesAndReducesCollectively) {
  const FakeCuda fake({.gpus = 4});
  run_threads(4, settings(), [](World& world) {
    constexpr std::size_t kCount = 5000;
    const Team team = world.team();
    const auto source = world.heap().allocate<std::int32_t>(4 * kCount);
    const auto target = world.heap().allocate<std::int32_t>(4 * kCount);
    std::vector<std::int32_t> mine(4 * kCount);
    for (std::size_t i = 0; i < mine.size(); ++i)
      mine[i] = static_cast<std::int32_t>(i) + 1'000'000 * world.my_pe();
    world.put(source.on(world.my_pe()), mine);
    const auto at = [&](std::size_t i) { return local(world, target, i); };
    all_gather_bytes(team, target.data(), source.data(), kCount * sizeof mine[0]);
    EXPECT_EQ(at(3 * kCount + 17), 3'000'017);
    broadcast_bytes(team, target.data(), source.data(), kCount * sizeof mine[0], 2);
    EXPECT_EQ(at(5), 2'000'005);
    all_to_all_bytes(team, target.data(), source.data(), kCount * sizeof mine[0]);
    EXPECT_EQ(at(kCount + 1), 1'000'001 + static_cast<std::int32_t>(kCount) * world.my_pe());
    for (const bool in_place : {false, true}) {
      reduce(team, DataType::int32, ReduceOp::sum, in_place ? source.data() : target.data(),
             source.data(), mine.size());
      EXPECT_EQ(local(world, in_place ? source : target, 7), 6'000'028);
      EXPECT_EQ(local(world, in_place ? source : target, 4 * kCount - 1),
                6'000'000 + 4 * (4 * static_cast<int>(kCount) - 1));
    }
    barrier(team);
  });
}

// Buffers of other allocators.
TEST_P(CudaHeap, SharesBuffersOfAnyAllocator) {
  for (const int gpus : {1, 4}) {
    const FakeCuda fake({.gpus = gpus});
    run_threads(4, settings(), check_sharing);
    EXPECT_EQ(FakeCuda::leaks(), "");
  }
}

// A pair without peer access is known and named, and affects no other pair.
TEST_P(CudaHeap, NamesThePairThatDoesNotReach) {
  const FakeCuda fake({.gpus = 3, .peer_access = [](int a, int b) { return a + b != 3; }});
  run_threads(3, settings(), [](World& world) {
    const auto box = world.heap().allocate<int>(4);
    for (Pe pe = 0; pe < 3; ++pe) {
      const bool reached = pe == world.my_pe() || pe + world.my_pe() != 3;
      EXPECT_EQ(world.heap().peer_pointer(box.data(), pe) != nullptr, reached);
      EXPECT_EQ(world.describe_transport(pe).find("no peer access") == std::string::npos, reached)
          << world.describe_transport(pe);
      world.put_value(box.on(pe)[0],
                      5);  // through host memory if the GPUs do not reach each other
    }
    barrier(world.team());
    EXPECT_EQ(local(world, box, 0), 5);
    EXPECT_EQ(world.shared_team().size(), 1) << "reachability is not transitive here";
    barrier(world.team());
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST_P(CudaHeap, DoesNotOfferAtomicsThatAreNotThere) {
  const FakeCuda fake({.gpus = 2, .native_atomics = false});
  run_threads(2, settings(), [](World& world) {
    const auto box = world.heap().allocate<int>(1);
    const Pe other = 1 - world.my_pe();
    world.put_value(box.on(other)[0], 7);
    EXPECT_NE(world.heap().peer_pointer(box.data(), other), nullptr);
    expect_error(Code::unsupported, "no atomics between these GPUs",
                 [&] { world.atomic_fetch_add(box.on(other)[0], 1); });
    EXPECT_EQ(world.atomic_fetch_add(box.on(world.my_pe())[0], 0) % 7, 0);
    barrier(world.team());
    EXPECT_EQ(local(world, box, 0), 7);
    barrier(world.team());
  });
}

INSTANTIATE_TEST_SUITE_P(Handles, CudaHeap, testing::Values("automatic", "fabric", "ipc"),
                         [](const auto& handle) { return std::string(handle.param); });

TEST(CudaHeapWindow, GivesAByteOneAddressInAProcess) {
  const FakeCuda fake({.gpus = 2});
  std::mutex mutex;
  std::set<std::byte*> starts;
  run_threads(4, cuda_settings(), [&](World& world) {
    for (Pe pe = 0; pe < 4; ++pe) {
      EXPECT_EQ(state_of(world).fabric().peer_base(pe),
                state_of(world).fabric().peer_base(0) +
                    static_cast<std::size_t>(pe) * world.heap().size());
      const std::lock_guard lock(mutex);
      starts.insert(state_of(world).fabric().peer_base(pe));
    }
    EXPECT_EQ(world.heap().base(), state_of(world).fabric().peer_base(world.my_pe()));
  });
  EXPECT_EQ(starts.size(), 4u);
}

TEST(CudaHeapGrowth, TakesMemoryWhenItIsNeeded) {
  const FakeCuda fake({.gpus = 2});
  run_threads(4, cuda_settings(1024 * kMiB), [](World& world) {
    SymmetricHeap& heap = world.heap();
    EXPECT_EQ(heap.size(), 1024 * kMiB);
    // Beyond the mapped memory nothing is readable.
    std::byte byte{};
    expect_error(Code::invalid_argument, "has memory up to 67108864 so far",
                 [&] { world.get_bytes(&byte, {0, 64 * kMiB}, 1); });
    const auto small = heap.allocate<std::uint64_t>(100);
    const auto large = heap.allocate<std::uint64_t>(10 * kMiB);  // 80 MiB
    const Pe right = (world.my_pe() + 1) % world.n_pes();
    const std::size_t last = large.size() - 1;
    EXPECT_EQ(world.get_value(large.on(right)[last]), 0u);
    barrier(world.team());
    world.put_value(large.on(right)[last], 100 + static_cast<std::uint64_t>(world.my_pe()));
    world.put_value(small.on(right)[99], 200 + static_cast<std::uint64_t>(world.my_pe()));
    barrier(world.team());
    const auto left = static_cast<std::uint64_t>((world.my_pe() + 3) % 4);
    EXPECT_EQ(local(world, large, last), 100 + left);
    EXPECT_EQ(local(world, small, 99), 200 + left);
    barrier(world.team());
    // Freed memory is reused before more is mapped.
    void* const first = heap.malloc(40 * kMiB);
    heap.free(first);
    EXPECT_EQ(heap.malloc(40 * kMiB), first);
    heap.free(first);
    // A large block takes what is missing for it, in units of the GPU.
    const auto* const larger = static_cast<const std::byte*>(heap.malloc(200 * kMiB));
    expect_error(Code::invalid_argument,
                 fmt::format("has memory up to {} so far",
                             align_up(heap.offset_of(larger) + 200 * kMiB, 2 * kMiB)),
                 [&] { world.get_bytes(&byte, {0, 512 * kMiB}, 1); });
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
  EXPECT_EQ(FakeCuda::calls("mem_create"), 12)
      << "64 MiB at the start and once more, then the rest, on each of 4 PEs";
}

// A growth that fails on one PE fails on all PEs and leaves the heap unchanged.
TEST(CudaHeapGrowth, FailsOnAllPesAndCanBeRepeated) {
  for (const char* const function : {"mem_create", "mem_map", "mem_set_access"}) {
    // The first calls belong to the start: one of each per PE, and access for all PEs.
    const int call = std::string(function) == "mem_set_access" ? 20 : 5;
    const FakeCuda fake({.gpus = 4,
                         .failing_function = function,
                         .failing_call = call,
                         .failure = CUDA_ERROR_OUT_OF_MEMORY});
    run_threads(4, cuda_settings(512 * kMiB), [&](World& world) {
      SymmetricHeap& heap = world.heap();
      const std::size_t used = heap.used();
      expect_error(call == 5 ? Code::exhausted : Code::system, "out of memory",
                   [&] { heap.malloc(100 * kMiB); });
      EXPECT_EQ(heap.used(), used);
      const auto box = heap.allocate<int>(25 * kMiB);
      const Pe right = (world.my_pe() + 1) % world.n_pes();
      world.put_value(box.on(right)[25 * kMiB - 1], 7 + world.my_pe());
      barrier(world.team());
      EXPECT_EQ(local(world, box, 25 * kMiB - 1), 7 + (world.my_pe() + 3) % 4);
      barrier(world.team());
    });
    EXPECT_EQ(FakeCuda::leaks(), "") << function;
  }
}

// Reproduces a driver that finds no range while PEs map memory at the same time, but finds the
// mapping.
TEST(SharedBuffers, ArePiecesThatTheDriverFindsNoRangeOf) {
  for (const auto kind : {ForeignMemory::Kind::mapped, ForeignMemory::Kind::mapped_in_two_pieces}) {
    const FakeCuda fake(
        {.failing_function = "address_range", .failures = 1000, .failure = CUDA_ERROR_NOT_FOUND});
    run_threads(4, cuda_settings(), [&](World& world) {
      constexpr std::size_t kBytes = 3 * kMiB;
      const ForeignMemory mine(world, kBytes, kind);
      const SharedBuffer shared = world.heap().share_buffer(mine.data(), kBytes);
      for (Pe pe = 0; pe < 4; ++pe) EXPECT_EQ(shared.bytes(pe), kBytes);
      EXPECT_EQ(shared.on(world.my_pe()), mine.data());
      world.heap().unshare_buffer(shared);
      const ForeignMemory plain(world, kMiB, ForeignMemory::Kind::malloc);
      expect_error(Code::invalid_argument, "no allocation contains",
                   [&] { world.heap().share_buffer(plain.data(), kMiB); });
    });
    EXPECT_EQ(FakeCuda::leaks(), "");
  }
}

TEST(SharedBuffers, FailOnAllPesAndCanBeRepeated) {
  const FakeCuda fake({.gpus = 2, .failing_function = "enable_peer_access", .failing_call = 1});
  run_threads(4, cuda_settings(), [](World& world) {
    const ForeignMemory mine(world, kMiB, ForeignMemory::Kind::malloc);
    expect_error(Code::unsupported, "is out of reach",
                 [&] { world.heap().share_buffer(mine.data(), kMiB); });
    const SharedBuffer shared = world.heap().share_buffer(mine.data(), kMiB);
    for (Pe pe = 0; pe < 4; ++pe) EXPECT_NE(shared.on(pe), nullptr);
    world.heap().unshare_buffer(shared);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(SharedBuffers, NeedAHeapInGpuMemory) {
  run_threads(2, world_settings(), [](World& world) {
    int value = 0;
    expect_error(Code::unsupported, "SHOAL_HEAP is cuda",
                 [&] { world.heap().share_buffer(&value, sizeof value); });
  });
}

TEST(CudaHeapGrowth, SaysThatTheGpuIsFull) {
  const FakeCuda fake({.gpus = 2, .memory = 200 * kMiB});
  run_threads(2, cuda_settings(512 * kMiB), [](World& world) {
    expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE", [&] { world.heap().malloc(300 * kMiB); });
    EXPECT_NE(world.heap().malloc(150 * kMiB), nullptr);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// A failure on one PE fails all PEs, with its message and phase; nothing stays allocated.
TEST(CudaWorld, FailsToOpenOnAllPes) {
  const struct {
    const char* function;
    int call;
    const char* text;
  } cases[] = {{"stream_create", 2, "failed in phase device: cannot create a stream"},
               {"device_count", 0, "failed in phase device: cannot count the GPUs"},
               {"address_reserve", 0, "SHOAL_SYMMETRIC_SIZE"},
               {"mem_create", 3, "failed in phase heap: cannot allocate"},
               {"mem_map", 1, "failed in phase heap: cannot map"},
               {"mem_set_access", 0, "SHOAL_SYMMETRIC_SIZE"},
               {"host_alloc", 2, "failed in phase transports: cannot pin host memory"}};
  for (const auto& one : cases) {
    const FakeCuda fake({.gpus = 4,
                         .failing_function = one.function,
                         .failing_call = one.call,
                         .failure = CUDA_ERROR_UNKNOWN});
    expect_error(Code::system, one.text, [] { run_threads(4, cuda_settings(), [](World&) {}); });
    EXPECT_EQ(FakeCuda::leaks(), "") << one.function;
  }
}

TEST(CudaWorld, NeedsMemoryForTheStart) {
  const FakeCuda fake({.gpus = 1, .memory = 20 * kMiB});
  expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE",
               [] { run_threads(4, cuda_settings(), [](World&) {}); });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(CudaWorld, PesMustAgreeWhereTheHeapLies) {
  const FakeCuda fake;
  auto bootstraps = thread_bootstraps(2, cuda_settings());
  std::vector<std::thread> threads;
  for (int pe = 0; pe < 2; ++pe)
    threads.emplace_back([&, pe] {
      Settings settings = cuda_settings();
      if (pe == 1) settings.heap = "host";
      expect_error(Code::mismatch, "SHOAL_HEAP", [&] {
        World::open({settings, std::shared_ptr<Bootstrap>(
                                   std::move(bootstraps[static_cast<std::size_t>(pe)]))});
      });
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(CudaWorld, FallsBackToIpcWithoutVirtualMemory) {
  const FakeCuda fake({.gpus = 2, .vmm = false, .fd = false, .fabric = false});
  run_threads(4, cuda_settings(), check_everything);
  EXPECT_EQ(FakeCuda::calls("mem_create"), 0);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(CudaWorld, SaysWhyThereIsNone) {
  std::string text;
  try {
    run_threads(2, cuda_settings(), [](World&) {});
    GTEST_SKIP() << "this machine has a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::unsupported);
    text = error.what();
  }
  expect_parts(text, {"all PEs failed in phase device: SHOAL_HEAP is cuda, but"});
}

}  // namespace
}  // namespace shoal::test

#else

TEST(CudaHeap, IsNotInThisBuild) {
  GTEST_SKIP() << "this build has no CUDA";
}

#endif
