// SPDX-License-Identifier: Apache-2.0
// Transfers on streams without a GPU: puts and takes that wait, puts to all PEs, fetches of
// entries. The device side of these tests runs the work at once on the CPU.
#include <gtest/gtest.h>

#include "checks/world/host_device_side.hpp"
#include "shoal/detail/stream_steps.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using detail::EntryFetch;
using detail::StreamBlock;
using detail::StreamSteps;

TEST(StreamTransfers, GoToTheRightAddresses) {
  run_threads(2, world_settings(), [](World& world) {
    const auto words = world.heap().allocate<std::uint32_t>(64);
    const auto flags = world.heap().allocate<std::uint64_t>(6);
    const auto side = std::make_shared<HostDeviceSide>(world, 1);
    state_of(world).set_device_side(side);
    EXPECT_TRUE(cuda::reaches(world.team()));
    barrier(world.team());
    if (world.my_pe() == 0) {
      const StreamSteps on(world, kStream);
      const std::vector<std::uint32_t> values{1, 2, 3, 4};
      on.put_when(nullptr, 5, words.on(1)[8].address, values.data(), 16, flags.on(1)[2], 7);
      EXPECT_EQ(side->awaited, 1);
      flags.data()[3] = 4;
      on.put_when(flags.data() + 3, 4, words.on(1)[16].address, values.data(), 8, flags.on(1)[3],
                  8);
      expect_error(Code::timeout, "would wait", [&] {
        on.put_when(flags.data() + 3, 5, words.on(1)[16].address, values.data(), 8, flags.on(1)[3],
                    9);
      });
      words.data()[30] = 11;
      std::uint32_t taken = 0;
      on.take_when(flags.data() + 3, 1, &taken, words.data() + 30, 4, flags.on(1)[4], 3);
      EXPECT_EQ(taken, 11u);
      words.data()[40] = 12;
      const detail::StreamBlock blocks[] = {{words.data() + 32, values.data(), 8},
                                            {words.data() + 40, words.data() + 40, 4},
                                            {words.data() + 44, values.data(), 4, true}};
      on.put_to_all(world.team(), blocks, flags.data(), 6);
      EXPECT_EQ(side->joined.members[0], 0b11u);
      EXPECT_EQ(words.data()[33], 2u);
      EXPECT_EQ(words.data()[44], 0u) << "only the others get it";
      on.wait_for_all(world.team(), flags.data(), 6);
      EXPECT_EQ(side->waited.variable, flags.data());
      EXPECT_EQ(side->waited.value, 6u);
    }
    barrier(world.team());
    if (world.my_pe() == 1) {
      std::vector<std::uint32_t> expected(64);
      for (std::uint32_t i = 0; i < 4; ++i) expected[8 + i] = i + 1;
      expected[16] = expected[32] = 1;
      expected[17] = expected[33] = 2;
      expected[40] = 12;
      expected[44] = 1;
      EXPECT_EQ(std::vector<std::uint32_t>(words.data(), words.data() + 64), expected);
      EXPECT_EQ(std::vector<std::uint64_t>(flags.data(), flags.data() + 6),
                (std::vector<std::uint64_t>{6, 0, 7, 8, 3, 0}));
    }
    barrier(world.team());
  });
}

TEST(StreamTransfers, RefuseBadArguments) {
  run_with_host_side([](World& world, HostDeviceSide& side,
                        const cuda::StreamOperations& operations) {
    const detail::StreamSteps on(world, operations.stream());
    const auto refused = [](const char* text, auto call) {
      expect_error(Code::invalid_argument, text, call);
    };
    auto* const heap = world.heap().base();
    auto* const word = reinterpret_cast<std::uint64_t*>(heap);
    const std::size_t size = world.heap().size();
    std::uint64_t outside[4] = {};
    const RemoteSpan<std::uint64_t> flag{{1, 0}, 1};

    refused("leave the symmetric heap",
            [&] { on.put_when(nullptr, 0, {1, size}, outside, 8, flag, 1); });
    refused("they must be one PE", [&] { on.put_when(nullptr, 0, {0, 0}, outside, 8, flag, 1); });
    refused("put_when: not of the GPU",
            [&] { on.put_when(nullptr, 0, {1, 0}, forbidden, 8, flag, 1); });
    refused("put_when: ", [&] { on.put_when(outside, 0, {1, 0}, word, 8, flag, 1); });
    refused("not a multiple", [&] { on.put_when(nullptr, 0, {1, 0}, word, 8, {{1, 4}, 1}, 1); });
    refused("take_when: not of the GPU",
            [&] { on.take_when(word, 0, forbidden, heap, 8, flag, 1); });
    refused("does not lie in this PE's symmetric heap",
            [&] { on.take_when(word, 0, heap, outside, 8, flag, 1); });
    refused("no aligned word", [&] { on.take_when(outside, 0, heap, heap, 8, flag, 1); });

    const detail::StreamBlock away[] = {{outside, heap, 8}};
    refused("does not lie in this PE's symmetric heap",
            [&] { on.put_to_all(world.team(), away, word, 1); });
    const detail::StreamBlock unusable[] = {{heap, forbidden, 8}};
    refused("put_to_all: not of the GPU", [&] { on.put_to_all(world.team(), unusable, word, 1); });
    refused("no aligned word", [&] { on.put_to_all(world.team(), {}, outside, 1); });
    auto* const last = reinterpret_cast<std::uint64_t*>(heap + size - 8);
    refused("with 16 bytes", [&] { on.wait_for_all(world.team(), last, 1); });

    EntryFetch fetch;
    fetch.part = heap;
    fetch.entry_bytes = 64;
    fetch.entries_per_pe = 4;
    fetch.indices = reinterpret_cast<const std::int32_t*>(heap);
    fetch.count = 3;
    fetch.target = heap + 1024;
    const auto refused_fetch = [&](const char* text, auto change) {
      EntryFetch wrong = fetch;
      change(wrong);
      refused(text, [&] { on.fetch_entries(wrong); });
    };
    refused_fetch("4 entries of 0 bytes", [](auto& f) { f.entry_bytes = 0; });
    refused_fetch("0 entries of 64 bytes", [](auto& f) { f.entries_per_pe = 0; });
    refused_fetch("-1 indices", [](auto& f) { f.count = -1; });
    refused_fetch("0 to a row", [](auto& f) { f.per_row = 0; });
    refused_fetch("-1 words", [](auto& f) { f.words = -1; });
    refused_fetch("can be counted", [](auto& f) { f.entry_bytes = SIZE_MAX; });
    refused_fetch("does not lie in this PE's symmetric heap", [&](auto& f) { f.part = outside; });
    refused_fetch("does not lie in this PE's symmetric heap",
                  [&](auto& f) { f.entries_per_pe = static_cast<std::int64_t>(size); });
    refused_fetch("not of the GPU", [](auto& f) { f.indices = forbidden; });
    refused_fetch("not of the GPU", [](auto& f) { f.target = forbidden; });
    refused_fetch("is null", [](auto& f) { f.words = 2; });
    EXPECT_EQ(side.calls, 0) << "nothing is started by a call that throws";
    on.fetch_entries(fetch);
    EXPECT_EQ(side.calls, 1);
    EXPECT_EQ(side.fetched.target, fetch.target);
    fetch.count = 0;
    fetch.target = nullptr;
    on.fetch_entries(fetch);
    EXPECT_EQ(side.calls, 1) << "no indices, nothing to start";
  });
}

TEST(StreamTransfers, ReachNothingWithoutADeviceSide) {
  run_threads(1, world_settings(), [](World& world) { EXPECT_FALSE(cuda::reaches(world.team())); });
}

}  // namespace
}  // namespace shoal::test
