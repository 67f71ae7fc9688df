// SPDX-License-Identifier: Apache-2.0
// Collectives on streams without a GPU: the arguments that they reject, and those that they would
// start a kernel for, which fails for want of a GPU. Also how a team and its limits reach kernels,
// and the texts of failure reports.
#include <gtest/gtest.h>

#include <thread>

#include "checks/world/host_device_side.hpp"
#include "shoal/bootstrap.hpp"
#include "shoal/cuda_collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using cuda::ElementType;
using cuda::StreamCollectives;
using device::FailureKind;

/// Runs `body` on PE 0 of two PEs. Offsets count from the start of the heap.
void run_with_collectives(
    const std::function<void(const StreamCollectives&,
                             const std::function<std::byte*(std::size_t)>&)>& body) {
  run_with_host_side([&](World& world, HostDeviceSide&, const cuda::StreamOperations&) {
    std::byte* const base = world.heap().base();
    body(StreamCollectives(world.team(), kStream),
         [base](std::size_t offset) { return base + offset; });
  });
}

TEST(StreamCollectives, RefuseBadArguments) {
  run_with_collectives([](const StreamCollectives& on, const auto& at) {
    const auto refused = [](const char* text, const std::function<void()>& call) {
      expect_error(Code::invalid_argument, text, call);
    };
    int local[8] = {};
    const std::size_t size = on.team().world().heap().size();
    refused("it must lie in this PE's symmetric heap",
            [&] { on.broadcast_bytes(at(0), local, 8, 0); });
    refused("it must lie in this PE's symmetric heap",
            [&] { on.all_gather_bytes(local, at(0), 8); });
    refused("it must lie in this PE's symmetric heap",
            [&] { on.all_gather_bytes(at(64), at(0), size - 64); });
    refused("it must lie in this PE's symmetric heap",
            [&] { on.all_to_all_bytes(at(0), nullptr, 8); });
    refused("root is 2; allowed: 0 to 1", [&] { on.broadcast_bytes(at(0), at(64), 8, 2); });
    refused("root is -1", [&] { on.broadcast_bytes(at(0), at(64), 8, -1); });
    refused("overlap", [&] { on.broadcast_bytes(at(0), at(4), 8, 0); });
    refused("overlap", [&] { on.all_gather_bytes(at(0), at(8), 8); });  // block 1 is not this PE's
    refused("overlap", [&] { on.all_to_all_bytes(at(0), at(0), 8); });
    refused("overlap", [&] { on.reduce(ElementType::float32, ReduceOp::sum, at(0), at(8), 8); });
    refused("overlap",
            [&] { on.reduce_scatter(ElementType::float32, ReduceOp::sum, at(32), at(0), 8); });
    refused("a multiple of the element size, 4 bytes",
            [&] { on.reduce(ElementType::float32, ReduceOp::sum, at(2), at(64), 1); });
    refused("operation bit_and",
            [&] { on.reduce(ElementType::bfloat16, ReduceOp::bit_and, at(0), at(64), 1); });
    refused("element type 12; allowed: 0 to 11",
            [&] { on.reduce(static_cast<ElementType>(12), ReduceOp::sum, at(0), at(64), 1); });
    refused("count is",
            [&] { on.reduce(ElementType::int64, ReduceOp::sum, at(0), at(0), SIZE_MAX / 2); });
    refused("count is",
            [&] { on.reduce_scatter(ElementType::int8, ReduceOp::sum, at(0), at(0), size); });
    device::AllToAllV v;
    v.target = at(0);
    v.source = at(4096);
    refused("send_bytes is", [&] { on.all_to_all_v_bytes(v); });
    v.send_bytes = reinterpret_cast<std::uint64_t*>(at(8192));
    v.send_offsets = reinterpret_cast<std::uint64_t*>(at(8196));
    refused("send_offsets is", [&] { on.all_to_all_v_bytes(v); });
    std::uint64_t words[2] = {};
    v.send_offsets = words;
    refused("it must lie in this PE's symmetric heap", [&] { on.all_to_all_v_bytes(v); });
    v.send_offsets = v.send_bytes;
    v.receive_offsets = reinterpret_cast<std::uint64_t*>(forbidden);
    refused("", [&] { on.all_to_all_v_bytes(v); });
  });
}

TEST(StreamCollectives, AcceptGoodArguments) {
  run_with_collectives([](const StreamCollectives& on, const auto& at) {
    const auto accepted = [](const std::function<void()>& call) {
      expect_error(Code::unsupported, "has no GPU", call);
    };
    int local = 0;
    accepted([&] { on.broadcast_bytes(at(0), at(0), 8, 1); });
    accepted([&] { on.all_gather_bytes(at(0), at(0), 8); });  // block 0 is this PE's
    accepted([&] { on.all_gather_bytes(&local, nullptr, 0); });
    accepted([&] { on.all_to_all_bytes(at(0), at(16), 8); });
    accepted([&] { on.reduce(ElementType::float64, ReduceOp::max, at(0), at(0), 8); });
    accepted([&] { on.reduce_scatter(ElementType::int16, ReduceOp::bit_xor, at(0), at(0), 8); });
    on.sync();
  });
}

TEST(StreamCollectives, NeedAHeapInGpuMemory) {
  run_threads(1, world_settings(), [](World& world) {
    expect_error(Code::unsupported, "SHOAL_HEAP=cuda",
                 [&] { const StreamCollectives on(world.team(), kStream); });
  });
}

TEST(StreamCollectives, DescribeTeamsInTheirOrder) {
  run_threads(4, world_settings(), [](World& world) {
    state_of(world).set_device_side(std::make_shared<HostDeviceSide>(world, 4));
    Team backwards = world.team().split_strided(3, -2, 2);
    if (backwards.valid()) {
      const device::Team view = cuda::device_team(backwards);
      EXPECT_EQ(view.size, 2);
      EXPECT_EQ(view.my_pe, backwards.my_pe());
      EXPECT_EQ(view.pes[0], 3);
      EXPECT_EQ(view.pes[1], 1);
      EXPECT_EQ(view.finished, view.epoch + 1);
      EXPECT_EQ(view.packets, nullptr);  // this device side has no memory for them
      EXPECT_EQ(view.packet_limit, 0u);
    }
    barrier(world.team());
    if (backwards.valid()) backwards.free();
    barrier(world.team());
  });
}

TEST(CollectiveLimits, FollowTheSettings) {
  Settings settings;
  EXPECT_EQ(detail::collective_limits(settings).packet_limit, std::uint64_t{256} << 10);
  EXPECT_EQ(detail::collective_limits(settings).one_shot_limit, std::uint64_t{256} << 10);
  settings.collective_algorithm = "packets";
  EXPECT_EQ(detail::collective_limits(settings).packet_limit, ~std::uint64_t{0});
  settings.collective_algorithm = "one_shot";
  EXPECT_EQ(detail::collective_limits(settings).packet_limit, 0u);
  EXPECT_EQ(detail::collective_limits(settings).one_shot_limit, ~std::uint64_t{0});
  settings.collective_algorithm = "two_shot";
  EXPECT_EQ(detail::collective_limits(settings).packet_limit, 0u);
  EXPECT_EQ(detail::collective_limits(settings).one_shot_limit, 0u);
}

TEST(CollectiveLimits, PacketsTakeASmallPartOfTheHeap) {
  EXPECT_EQ(detail::packet_part(2 << 20, 64 << 20), std::size_t{512} << 10);
  EXPECT_EQ(detail::packet_part(2 << 20, 8 << 20), std::size_t{95'232});
  EXPECT_EQ(detail::packet_part(4000, 64 << 20), 768u);
  EXPECT_EQ(detail::packet_part(0, 64 << 20), 0u);
  EXPECT_EQ(detail::packet_part(2 << 20, 1 << 14), 0u);
}

TEST(StreamCollectives, SettingsAreTheSameOnAllPes) {
  auto bootstraps = thread_bootstraps(2, world_settings());
  std::vector<std::thread> pes;
  for (Pe pe = 0; pe < 2; ++pe)
    pes.emplace_back([&, pe] {
      Settings settings = world_settings();
      settings.collective_packet_limit = 1024 + static_cast<std::size_t>(pe);
      expect_error(Code::mismatch, "SHOAL_COLLECTIVE_PACKET_LIMIT", [&] {
        World::open({settings, std::shared_ptr<Bootstrap>(
                                   std::move(bootstraps[static_cast<std::size_t>(pe)]))});
      });
    });
  for (std::thread& pe : pes) pe.join();
}

TEST(StreamCollectives, ReportsNameThePe) {
  device::FailureReport report{};
  report.kind = FailureKind::collective;
  report.awaited = 3;
  report.expected = (std::uint64_t{5} << device::Team::kEpochBits) + 42;
  report.seen = (std::uint64_t{5} << device::Team::kEpochBits) + 41;
  report.waited_ns = 5'000'000'000;
  const Error late = detail::describe_report(report, 1, 8);
  EXPECT_EQ(late.code(), Code::timeout);
  expect_parts(late.what(),
               {"collective on the GPU timed out after 5000 ms on PE 1 of 8: waiting for PE 3 to "
                "enter operation 42 of the team, seen 41"});
  report.kind = FailureKind::block_too_large;
  report.bytes = 100;
  report.expected = 64;
  const Error large = detail::describe_report(report, 1, 8);
  EXPECT_EQ(large.code(), Code::invalid_argument);
  expect_parts(large.what(), {"PE 3 sent 100 bytes; there was room for 64"});
}

}  // namespace
}  // namespace shoal::test
