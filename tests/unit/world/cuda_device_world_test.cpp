// SPDX-License-Identifier: Apache-2.0
// The world that kernels receive, on a driver without a GPU: the address of each heap, the PEs that
// share a GPU, and kernels that cannot be loaded, which fail only the calls that start one.
#include <gtest/gtest.h>

#include <fstream>

#ifdef SHOAL_WITH_CUDA

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "support/cuda/fake_cuda.hpp"
#include "support/cuda/world_gpu.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

/// Like device::detail::base_of in kernels; the fake GPU's memory is the host's.
std::byte* base_of(const device::World& world, Pe pe) {
  return world.bases != nullptr ? world.bases[pe]
                                : world.window + static_cast<std::size_t>(pe) * world.stride;
}

void check_bases(World& world) {
  const device::World view = cuda::device_world(world);
  EXPECT_EQ(view.my_pe, world.my_pe());
  EXPECT_EQ(view.n_pes, world.n_pes());
  EXPECT_EQ(view.heap, world.heap().base());
  EXPECT_EQ(view.heap_bytes, world.heap().size());
  EXPECT_EQ(view.timeout_ns,
            static_cast<std::uint64_t>(std::chrono::nanoseconds(world.settings().timeout).count()));
  for (Pe pe = 0; pe < world.n_pes(); ++pe)
    EXPECT_EQ(base_of(view, pe), world.heap().peer_pointer(world.heap().base(), pe)) << "PE " << pe;
  EXPECT_EQ(view.failure->state, device::FailureReport::empty);
  EXPECT_FALSE(cuda::take_failure(world).has_value());
  // Shoal owns the words of teams: no allocation overlaps them, and they start at zero.
  const device::Team team = cuda::device_team(world.team());
  const auto array = world.heap().allocate<std::uint64_t>(1000);
  EXPECT_GE(array.data(), team.epoch + 1);
  for (Pe pe = 0; pe <= world.n_pes(); ++pe) EXPECT_EQ(team.arrived[pe], 0u);
  EXPECT_EQ(team.epoch, team.arrived + world.n_pes());
  EXPECT_EQ(*team.finished, 0u);
  // Packets: two halves of a slot per PE, apart from the words and from allocations, zero.
  ASSERT_NE(team.packets, nullptr);
  const std::size_t bytes = 2 * static_cast<std::size_t>(team.size) * team.slot_bytes;
  EXPECT_GE(team.packets, reinterpret_cast<std::byte*>(team.finished + 1));
  EXPECT_GE(reinterpret_cast<std::byte*>(array.data()), team.packets + bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(team.packets) % 128, 0u);
  EXPECT_EQ(team.packet_limit, team.slot_bytes / 2);
  for (std::size_t i = 0; i < bytes; ++i) ASSERT_EQ(team.packets[i], std::byte{0});
}

TEST(DeviceWorld, HasNoPacketsWhereTheSettingSaysSo) {
  const FakeCuda fake({.gpus = 1});
  Settings settings = gpu_world_settings();
  settings.collective_scratch = 0;
  run_threads(2, settings, [](World& world) {
    const device::Team team = cuda::device_team(world.team());
    EXPECT_EQ(team.packets, nullptr);
    EXPECT_EQ(team.packet_limit, 0u);
    EXPECT_EQ(team.size, 2);
  });
}

TEST(DeviceWorld, IsAWindowWhereAllHeapsAreMapped) {
  const FakeCuda fake({.gpus = 2});
  run_threads(4, gpu_world_settings(), [](World& world) {
    check_bases(world);
    EXPECT_EQ(cuda::device_world(world).bases, nullptr);
    EXPECT_EQ(cuda::launch_context(world).pes_on_device, 2);
    EXPECT_EQ(cuda::launch_context(world).device, world.my_pe() % 2);
    EXPECT_NE(cuda::launch_context(world).priority, nullptr);
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(DeviceWorld, IsATableWhereSomeHeapIsOutOfReach) {
  const FakeCuda fake({.gpus = 4});
  Settings settings = gpu_world_settings();
  settings.node_size = 2;  // loads and stores do not cross emulated nodes
  settings.proxy_slots = 0;
  run_threads(4, settings, [](World& world) {
    check_bases(world);
    const device::World view = cuda::device_world(world);
    ASSERT_NE(view.bases, nullptr);
    for (Pe pe = 0; pe < 4; ++pe)
      EXPECT_EQ(view.bases[pe] != nullptr, pe / 2 == world.my_pe() / 2) << "PE " << pe;
    const cuda::StreamOperations on(world, cuda::launch_context(world).priority);
    const Pe far = (world.my_pe() + 2) % 4;
    expect_error(Code::unsupported, "SHOAL_PROXY_SLOTS",
                 [&] { on.put_value(RemoteSpan<int>{{far, 8192}, 1}, 1); });
    expect_error(Code::unsupported, "SHOAL_PROXY_SLOTS", [&] { on.barrier(world.team()); });
  });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(DeviceWorld, OfOnePeIsItself) {
  const FakeCuda fake({.gpus = 1});
  run_threads(1, gpu_world_settings(), check_bases);
}

TEST(DeviceWorld, RefusesUnallocatedMemory) {
  const FakeCuda fake({.gpus = 1});
  Settings settings = gpu_world_settings();
  settings.symmetric_size = std::size_t{1} << 30;
  run_threads(2, settings, [](World& world) {
    const cuda::StreamOperations on(world, cuda::launch_context(world).priority);
    expect_error(Code::invalid_argument, "allocate it first",
                 [&] { on.put_value(RemoteSpan<int>{{1, std::size_t{1} << 29}, 1}, 1); });
  });
}

TEST(DeviceWorld, CannotHoldMoreTeamsThanItsFirstMemory) {
  const FakeCuda fake({.gpus = 1});
  Settings settings = gpu_world_settings();
  settings.symmetric_size = std::size_t{1} << 20;
  settings.max_teams = 60'000;
  expect_error(Code::exhausted, "SHOAL_MAX_TEAMS",
               [&] { run_threads(8, settings, [](World&) {}); });
  EXPECT_EQ(FakeCuda::leaks(), "");
}

TEST(DeviceWorld, GivesEverythingBackWhenItsStartFails) {
  // The device side takes the last stream and the last pinned memory of a world.
  for (const char* const function : {"stream_create", "host_alloc"}) {
    int calls = 0;
    {
      const FakeCuda fake({.gpus = 1});
      run_threads(1, gpu_world_settings(), [&](World&) { calls = FakeCuda::calls(function); });
    }
    const FakeCuda fake({.gpus = 1, .failing_function = function, .failing_call = calls - 1});
    expect_error(Code::system, "", [&] { run_threads(1, gpu_world_settings(), [](World&) {}); });
    EXPECT_EQ(FakeCuda::leaks(), "") << function;
  }
}

TEST(DeviceWorld, SaysWhyAKernelDoesNotStart) {
  if (std::ifstream("/dev/nvidiactl").is_open()) GTEST_SKIP() << "a GPU is there: kernels do start";
  const FakeCuda fake({.gpus = 1});
  run_threads(1, gpu_world_settings(), [](World& world) {
    const auto word = world.heap().allocate<std::uint64_t>(1);
    const cuda::StreamOperations on(world, cuda::launch_context(world).priority);
    expect_error(Code::system, "signal did not start on GPU 0: ", [&] {
      on.signal(word.on(0), SignalOp::set, 1);
    });
  });
}

}  // namespace
}  // namespace shoal::test

#endif
