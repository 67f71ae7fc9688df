// SPDX-License-Identifier: Apache-2.0
// Operations on streams without a GPU: the work that they start, and the arguments that they
// reject. The device side of these tests runs the work at once on the CPU. Also the texts of
// failure reports.
#include <gtest/gtest.h>

#include "checks/world/host_device_side.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"
#include "support/expect_error.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

using cuda::Stream;
using cuda::StreamOperations;

TEST(StreamOperations, GoToTheRightAddresses) {
  run_threads(2, world_settings(), [](World& world) {
    const auto words = world.heap().allocate<std::uint32_t>(64);
    const auto flags = world.heap().allocate<std::uint64_t>(4);
    const auto side = std::make_shared<HostDeviceSide>(world, 1);
    state_of(world).set_device_side(side);
    if (world.my_pe() == 0) {
      const StreamOperations on(world, kStream);
      const std::vector<std::uint32_t> values{1, 2, 3, 4, 5, 6, 7, 8};
      on.put(words.on(1).subspan(3, 8), values);
      on.put_value(words.on(1)[20], 77);
      on.put_strided(words.on(1).subspan(24, 10), 3, values.data(), 2, 4);
      on.put_signal(words.on(1).subspan(40, 8), values, flags.on(1)[2], SignalOp::add, 5);
      on.signal(flags.on(1)[1], SignalOp::set, 9);
      std::vector<std::uint32_t> got(4), strided(7, 99);
      on.get(std::span(got), words.on(1).subspan(4, 4));
      EXPECT_EQ(got, (std::vector<std::uint32_t>{2, 3, 4, 5}));
      on.get_strided(strided.data(), 3, words.on(1).subspan(3, 8), 2, 3);
      EXPECT_EQ(strided, (std::vector<std::uint32_t>{1, 99, 99, 3, 99, 99, 5}));
      std::uint32_t before = 0;
      on.atomic(AtomicOp::compare_swap, words.on(1)[20], 5, &before, 77);
      EXPECT_EQ(before, 77u);
      EXPECT_EQ(side->last.operand, 5u);
      EXPECT_EQ(side->last.compare, 77u);
      EXPECT_EQ(side->last.width, 4u);
      const int done = side->calls;
      on.put(words.on(1).subspan(64, 0), {});  // nothing to do, nothing started
      on.fence();
      on.quiet();
      cuda::order(world, kStream, kStream);
      EXPECT_EQ(side->calls, done);
    }
    barrier(world.team());
    if (world.my_pe() == 1) {
      std::vector<std::uint32_t> expected(64);
      for (std::uint32_t i = 0; i < 8; ++i) expected[3 + i] = expected[40 + i] = i + 1;
      expected[20] = 77;
      for (std::uint32_t i = 0; i < 4; ++i) expected[24 + 3 * i] = 2 * i + 1;
      EXPECT_EQ(std::vector<std::uint32_t>(words.data(), words.data() + 64), expected);
      EXPECT_EQ(std::vector<std::uint64_t>(flags.data(), flags.data() + 4),
                (std::vector<std::uint64_t>{0, 9, 5, 0}));
    }
    barrier(world.team());
  });
}

TEST(StreamOperations, KeepTheSignOfWhatIsWaitedFor) {
  run_with_host_side([](World& world, HostDeviceSide& side, const StreamOperations& on) {
    const auto* const word = reinterpret_cast<const std::int32_t*>(world.heap().base() + 8);
    on.wait_until(word, Compare::less, -5);
    EXPECT_EQ(side.waited.variable, word);
    EXPECT_EQ(side.waited.compare, Compare::less);
    EXPECT_EQ(static_cast<std::int32_t>(side.waited.value), -5);
    EXPECT_EQ(side.waited.width, 4u);
    EXPECT_TRUE(side.waited.is_signed);
    int result = 0;
    on.test(reinterpret_cast<const std::uint64_t*>(word), Compare::equal, ~std::uint64_t{0},
            &result);
    EXPECT_EQ(side.waited.value, ~std::uint64_t{0});
    EXPECT_EQ(side.waited.width, 8u);
    EXPECT_FALSE(side.waited.is_signed);
    EXPECT_EQ(result, 7);
  });
}

TEST(StreamOperations, RefuseBadArguments) {
  run_with_host_side([](World& world, HostDeviceSide& side, const StreamOperations& on) {
    const std::size_t size = world.heap().size();
    std::byte two[2] = {};
    const RemoteAddress outside[] = {{0, size}, {0, size - 1}, {0, SIZE_MAX}, {-1, 0}, {2, 0}};
    for (const RemoteAddress address : outside) {
      const char* const text =
          address.pe == 0 ? "leave the symmetric heap" : "the world has PEs 0 to 1";
      const auto refused = [&](auto call) { expect_error(Code::invalid_argument, text, call); };
      refused([&] { on.put_bytes(address, two, 2); });
      refused([&] { on.get_bytes(two, address, 2); });
      refused([&] { on.put_strided_bytes(address, 1, two, 1, 1, 2); });
      refused([&] { on.get_strided_bytes(two, 1, address, 1, 1, 2); });
      refused([&] { on.put_signal_bytes(address, two, 2, {{0, 0}, 1}, SignalOp::set, 1); });
    }
    const auto refused = [&](const char* text, auto call) {
      expect_error(Code::invalid_argument, text, call);
    };
    const RemoteSpan<int> span{{1, 0}, 4};
    refused("is null", [&] { on.put_bytes({0, 0}, nullptr, 1); });
    refused("they must be equal", [&] { on.put(span, std::vector<int>{1, 2, 3}); });
    refused("put: not of the GPU", [&] { on.put(span, forbidden); });
    refused("get: not of the GPU", [&] { on.get(std::span<int>(forbidden), span); });
    refused("put_strided: not of the GPU", [&] { on.put_strided(span, 1, forbidden, 1, 2); });
    refused("get_strided: not of the GPU", [&] { on.get_strided(forbidden, 1, span, 1, 2); });
    refused("put_signal: not of the GPU",
            [&] { on.put_signal(span, forbidden, {{1, 0}, 1}, SignalOp::set, 1); });
    refused("atomic: not of the GPU", [&] { on.atomic(AtomicOp::add, span, 1, forbidden); });
    refused("must be at least 1", [&] { on.put_strided(span, 0, forbidden, 1, 2); });
    refused("leave the remote span", [&] { on.put_strided(span, 2, forbidden, 1, 3); });
    refused("an empty span", [&] { on.put_value(RemoteSpan<int>{{0, 0}, 0}, 1); });
    refused("atomic: an empty span as target",
            [&] { on.atomic(AtomicOp::add, RemoteSpan<int>{{0, 0}, 0}, 1, nullptr); });
    refused("not a multiple", [&] { on.put_value(RemoteSpan<int>{{0, 2}, 1}, 1); });
    refused("not a multiple", [&] { on.signal({{0, 4}, 1}, SignalOp::set, 1); });
    refused("an empty span", [&] { on.signal({{0, 0}, 0}, SignalOp::set, 1); });
    refused("not a multiple", [&] { on.atomic_word(AtomicOp::add, {0, 2}, 1, 0, 4, nullptr); });
    refused("allowed: 4 or 8", [&] { on.atomic_word(AtomicOp::add, {0, 0}, 1, 0, 2, nullptr); });
    refused("they must be one PE",
            [&] { on.put_signal_bytes({0, 0}, two, 2, {{1, 8}, 1}, SignalOp::set, 1); });
    const std::int64_t elsewhere = 0;
    refused("no aligned word", [&] { on.wait_until(&elsewhere, Compare::equal, 0); });
    const auto* const crooked = reinterpret_cast<const std::int64_t*>(world.heap().base() + 4);
    refused("no aligned word", [&] { on.wait_until(crooked, Compare::equal, 0); });
    const auto* const word = reinterpret_cast<const int*>(world.heap().base());
    refused("test: not of the GPU", [&] { on.test(word, Compare::equal, 0, forbidden); });
    refused("test: the local buffer", [&] { on.test(word, Compare::equal, 0, nullptr); });
    refused("legacy default stream", [&] { StreamOperations(world, nullptr); });
    refused("legacy default stream",
            [&] { StreamOperations(world, reinterpret_cast<Stream>(std::uintptr_t{1})); });
    EXPECT_EQ(side.calls, 0) << "nothing is started by a call that throws";
  });
}

TEST(StreamOperations, NeedAHeapInGpuMemory) {
  run_threads(1, world_settings(), [](World& world) {
    const auto unsupported = [](auto call) {
      expect_error(Code::unsupported, "SHOAL_HEAP=cuda", call);
    };
    unsupported([&] { StreamOperations(world, kStream); });
    unsupported([&] { cuda::device_world(world); });
    unsupported([&] { cuda::device_team(world.team()); });
    unsupported([&] { cuda::check_failures(world); });
    unsupported([&] { cuda::take_failure(world); });
    unsupported([&] { cuda::launch_context(world); });
    unsupported([&] { cuda::order(world, kStream, nullptr); });
  });
  expect_error(Code::closed, "closed", [] { cuda::device_world(World()); });
}

TEST(StreamOperations, DescribeTeamsByTheirMembers) {
  run_threads(3, world_settings(), [](World& world) {
    const auto side = std::make_shared<HostDeviceSide>(world, 1);
    state_of(world).set_device_side(side);
    Team outer = world.team().split_strided(0, 2, 2);
    if (outer.valid()) {
      StreamOperations(world, kStream).barrier(outer);
      EXPECT_EQ(side->joined.members[0], 0b101u);
      EXPECT_EQ(side->joined.members[1], 0u);
      EXPECT_EQ(side->joined.epoch - side->joined.arrived, 3);
      EXPECT_EQ(side->joined.arrived, side->team_words(outer.index()));
      EXPECT_EQ(side->joined.generation, state_of(outer).generation);
      outer.free();
    }
    EXPECT_EQ(cuda::device_team(world.team()).members[0], 0b111u);
    EXPECT_NE(cuda::device_team(world.team()).arrived, side->joined.arrived);
    barrier(world.team());
  });
}

TEST(DeviceFailures, AreTakenOnceAndSayWhatHappened) {
  run_with_host_side([](World& world, HostDeviceSide& side, const StreamOperations&) {
    EXPECT_FALSE(cuda::take_failure(world).has_value());
    device::FailureReport& report = side.report;
    report.state = device::FailureReport::filling;  // a kernel is writing
    EXPECT_FALSE(cuda::take_failure(world).has_value());

    report = {};
    report.kind = device::FailureKind::wait_until;
    report.awaited = -1;
    report.compare = Compare::greater_equal;
    report.width = 4;
    report.is_signed = 1;
    report.offset = 4096;
    report.expected = 7;
    report.seen = 0xfffffffdU;
    report.waited_ns = 5'000'400'000;
    report.block[0] = 3;
    report.thread[1] = 2;
    const auto expect = [&](Code code, const std::string& text) {
      report.state = device::FailureReport::complete;
      expect_error(code, text, [&] { cuda::check_failures(world); });
      EXPECT_EQ(report.state, device::FailureReport::empty) << "the next one can be written";
      cuda::check_failures(world);
    };
    expect(
        Code::timeout,
        "wait_until on the GPU timed out after 5000 ms on PE 0 of 2: waiting for the 4-byte variable at heap offset "
        "4096 to be >= 7, seen -3 (block (3, 0, 0), thread (0, 2, 0)); Setting: SHOAL_TIMEOUT_MS.");
    report.is_signed = 0;
    expect(Code::timeout, "seen 4294967293");
    report.kind = device::FailureKind::wait_until_any;
    report.width = 8;
    expect(Code::timeout, "wait_until_any on the GPU timed out");
    report.kind = device::FailureKind::wait_until_all;
    expect(Code::timeout, "variable at heap offset 4096 to be >= 7");
    report.awaited = 1;
    expect(Code::timeout, "variable at heap offset 4096, which PE 1 sets, to be >= 7");
    report.kind = device::FailureKind::barrier;
    report.awaited = 1;
    report.expected = (std::uint64_t{5} << device::Team::kEpochBits) + 12;
    report.seen = (std::uint64_t{5} << device::Team::kEpochBits) + 11;
    expect(Code::timeout, "waiting for PE 1, expected barrier 12, seen 11");
    report.kind = device::FailureKind::bad_address;
    report.offset = static_cast<std::uint64_t>(-8);
    report.bytes = 16;
    report.awaited = 9;
    expect(Code::invalid_argument, "names 16 bytes at heap offset -8 of PE 9");
    report.kind = device::FailureKind::bad_index;
    report.offset = 3;
    report.expected = 40;
    report.seen = static_cast<std::uint64_t>(-2);
    expect(Code::invalid_argument, "index 3 is -2; the table has entries 0 to 39");
    report.kind = device::FailureKind::unreachable;
    expect(Code::unsupported, "names PE 9, whose heap its GPU does not reach");
  });
}

}  // namespace
}  // namespace shoal::test
