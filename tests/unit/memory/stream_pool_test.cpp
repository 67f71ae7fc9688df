// SPDX-License-Identifier: Apache-2.0
// The streams of a process (memory/cuda/stream_pool.hpp), on a driver without a GPU. PEs that share
// a GPU could wait for each other forever if their streams were destroyed and created.
#include <gtest/gtest.h>

#ifdef SHOAL_WITH_CUDA

#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "checks/world/operations.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

using memory::cuda::StreamPriority;
using memory::cuda::take_stream;
using Stream = std::shared_ptr<CUstream_st>;

constexpr auto kHighest = StreamPriority::highest;

const FakeStream* made_with(CUstream stream) {
  return reinterpret_cast<const FakeStream*>(stream);
}

TEST(StreamPool, ReusesReturnedStreams) {
  const FakeCuda fake({.gpus = 1});
  const auto device = memory::open_device({});
  Stream one = take_stream(*device, kHighest), two = take_stream(*device, kHighest);
  CUstream const first = one.get(), second = two.get();
  EXPECT_EQ((std::set<CUstream>{device->stream, first, second}).size(), 3u)
      << "a stream was handed out twice";
  two.reset();
  one.reset();
  EXPECT_EQ(take_stream(*device, kHighest).get(), first) << "the oldest one";
  EXPECT_EQ(take_stream(*device, kHighest).get(), first);
  one = take_stream(*device, kHighest);
  EXPECT_EQ(take_stream(*device, kHighest).get(), second);
  const Stream copy = one;
  one.reset();
  EXPECT_EQ(take_stream(*device, kHighest).get(), second) << "the other one is still in use";
  EXPECT_EQ(FakeCuda::calls("stream_create"), 3);
  EXPECT_EQ(FakeCuda::calls("stream_destroy"), 0);
}

TEST(StreamPool, GetsTheStreamOfADeviceBack) {
  const FakeCuda fake({.gpus = 1});
  CUstream stream = nullptr;
  {
    const auto device = memory::open_device({});
    stream = device->stream;
    EXPECT_EQ(FakeCuda::leaks(), "1 mappings, 1 streams");
  }
  EXPECT_EQ(memory::open_device({})->stream, stream);
  EXPECT_EQ(FakeCuda::calls("stream_destroy"), 0);
  EXPECT_EQ(FakeCuda::leaks(), "");
  EXPECT_EQ(FakeCuda::calls("stream_destroy"), 1) << "the pool had it";
}

TEST(StreamPool, KeepsPrioritiesApart) {
  const FakeCuda fake({.gpus = 1});
  const auto device = memory::open_device({});
  CUstream const high = take_stream(*device, kHighest).get();
  CUstream const low = take_stream(*device, StreamPriority::lowest).get();
  EXPECT_NE(high, low);
  EXPECT_EQ(made_with(high)->priority, -5);
  EXPECT_EQ(made_with(low)->priority, 0);
  EXPECT_EQ(take_stream(*device, StreamPriority::lowest).get(), low);
  EXPECT_EQ(take_stream(*device, kHighest).get(), high);
}

TEST(StreamPool, KeepsDevicesApart) {
  const FakeCuda fake({.gpus = 2});
  const auto zero = memory::open_device({.ordinal = 0}), one = memory::open_device({.ordinal = 1});
  // While the context of GPU 1 is current.
  CUstream const on_zero = take_stream(*zero, kHighest).get();
  CUstream const on_one = take_stream(*one, kHighest).get();
  EXPECT_EQ(made_with(on_zero)->device, 0);
  EXPECT_EQ(made_with(on_one)->device, 1);
  EXPECT_EQ(take_stream(*zero, kHighest).get(), on_zero);
  EXPECT_EQ(take_stream(*one, kHighest).get(), on_one);
}

// A stream with unfinished work of a group that timed out, and a stream in an error state.
TEST(StreamPool, PassesOverStreamsThatAreNotReady) {
  for (const CUresult status : {CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN}) {
    // Calls 0 and 1 are for the new streams.
    const FakeCuda fake(
        {.gpus = 1, .failing_function = "stream_query", .failing_call = 2, .failure = status});
    const auto device = memory::open_device({});
    CUstream const first = take_stream(*device, kHighest).get();
    EXPECT_NE(take_stream(*device, kHighest).get(), first);
    EXPECT_EQ(take_stream(*device, kHighest).get(), first) << "its work is complete";
    EXPECT_EQ(FakeCuda::calls("stream_create"), 3) << "including the device's own";
  }
}

TEST(StreamPool, SaysWhyThereIsNoStream) {
  for (const auto& [function, why] : {std::pair{"stream_create", "cannot create a stream on GPU 0"},
                                      {"mem_alloc", "cannot allocate a byte for a new stream"},
                                      {"set_bytes", "cannot use a new stream"}}) {
    const FakeCuda fake({.gpus = 1,
                         .failing_function = function,
                         .failing_call = 1,
                         .failure = CUDA_ERROR_OUT_OF_MEMORY});
    {
      const auto device = memory::open_device({});
      expect_error(Code::exhausted, why, [&] { take_stream(*device, kHighest); });
      EXPECT_NE(take_stream(*device, kHighest), nullptr);
    }
    EXPECT_EQ(FakeCuda::leaks(), "") << function;
  }
}

TEST(StreamPool, GivesAStreamToOneThreadAtATime) {
  const FakeCuda fake({.gpus = 2});
  std::mutex mutex;
  std::set<CUstream> used;
  std::vector<std::thread> threads;
  constexpr int kThreads = 6, kTurns = 200;
  for (int index = 0; index < kThreads; ++index)
    threads.emplace_back([&, index] {
      const auto device = memory::open_device({.ordinal = index % 2});
      for (int turn = 0; turn < kTurns; ++turn) {
        Stream stream = take_stream(*device, kHighest);
        {
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(used.insert(stream.get()).second) << "a stream was handed out twice";
        }
        {
          const std::lock_guard lock(mutex);
          used.erase(stream.get());
        }
        stream.reset();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(FakeCuda::calls("stream_create"), 2 * kThreads);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

constexpr int kWorlds = 20;

TEST(StreamPool, MakesNoStreamsForLaterWorlds) {
  const FakeCuda fake({.gpus = 2});
  std::mutex mutex;
  std::set<CUstream> seen;
  for (int number = 0; number < kWorlds; ++number)
    run_threads(4, gpu_world_settings(), [&](World& world) {
      const std::lock_guard lock(mutex);
      seen.insert(state_of(world).memory().cuda()->stream);
      seen.insert(cuda::launch_context(world).priority);
    });
  EXPECT_EQ(seen.size(), 8u) << "two for each PE";
  EXPECT_EQ(FakeCuda::calls("stream_create"), 8);
  EXPECT_EQ(FakeCuda::calls("stream_destroy"), 0);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(StreamPool, MakesNoStreamsForLaterStagedWorlds) {
  const FakeCuda fake({.gpus = 1});
  Settings settings = gpu_world_settings();
  settings.transport_inside = "staged";
  int most = 0;
  for (int number = 0; number < kWorlds; ++number)
    run_threads(2, settings, [&](World& world) {
      const auto box = world.heap().allocate<int>(1);
      world.atomic_fetch_add(box.on(1 - world.my_pe())[0],
                             1);  // by the other PE's agent, on its own stream
      barrier(world.team());
      const int made = FakeCuda::calls("stream_create");
      if (number == 0 && world.my_pe() == 0) most = made;
      barrier(world.team());
    });
  EXPECT_EQ(most, 6) << "three for each PE";
  EXPECT_EQ(FakeCuda::calls("stream_create"), most);
  EXPECT_EQ(FakeCuda::calls("stream_destroy"), 0);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

// The streams of PEs whose world failed to open are reused by the next world.
TEST(StreamPool, GetsStreamsBackFromWorldsThatFail) {
  const FakeCuda fake({.gpus = 1, .failing_function = "host_alloc", .failures = 1000});
  for (int number = 0; number < 5; ++number)
    expect_error(Code::system, "cannot pin host memory",
                 [] { run_threads(2, gpu_world_settings(), [](World&) {}); });
  EXPECT_LE(FakeCuda::calls("stream_create"), 4);
  EXPECT_EQ(FakeCuda::leaks(), "");
}

}  // namespace
}  // namespace shoal::test

#endif
