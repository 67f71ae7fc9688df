// SPDX-License-Identifier: Apache-2.0
// Arguments that collectives reject, and PEs that disagree or do not call.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"

namespace shoal {
namespace {

using test::error_of;
using test::expect_error;
using test::expect_parts;

constexpr Pe kPes = 3;

void run(const std::function<void(World&)>& body,
         std::chrono::milliseconds timeout = std::chrono::milliseconds(20'000)) {
  Settings settings;
  settings.symmetric_size = 4 << 20;
  settings.timeout = timeout;
  run_threads(kPes, settings, body);
}

TEST(Exchange, GathersAFewBytesInPeOrder) {
  run([](World& world) {
    const Team team = world.team();
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kMaxExchangeBytes}) {
      const std::vector<std::byte> mine(bytes, static_cast<std::byte>(world.my_pe() + 1));
      const std::vector<std::byte> all = exchange_bytes(team, mine);
      ASSERT_EQ(all.size(), kPes * bytes);
      for (std::size_t i = 0; i < all.size(); ++i)
        ASSERT_EQ(all[i], static_cast<std::byte>(i / bytes + 1));
    }
    const std::vector<std::byte> much(kMaxExchangeBytes + 1);
    expect_error(Code::invalid_argument, "exchange_bytes of 513 bytes; allowed: up to 512",
                 [&] { exchange_bytes(team, much); });
    const std::vector<std::byte> different(world.my_pe() == 1 ? 3 : 4);
    expect_error(Code::mismatch, "exchange_bytes", [&] { exchange_bytes(team, different); });
  });
}

TEST(CollectiveErrors, BadArgumentsAreRefusedAndTheTeamStaysUsable) {
  run([](World& world) {
    test::CollectiveCheck check(world, 4096);
    const Team team = world.team();
    void* const target = check.target();
    void* const source = check.source();
    int outside[4] = {};
    const auto refuse = [&](const std::string& text, const std::function<void()>& call) {
      SCOPED_TRACE(text);
      expect_error(Code::invalid_argument, text, call);
      check.all_gather(team, 100, 1);
    };
    refuse("root is 3", [&] { broadcast_bytes(team, target, source, 8, 3); });
    refuse("root is -1", [&] { broadcast_bytes(team, target, source, 8, -1); });
    refuse("broadcast: target is", [&] { broadcast_bytes(team, nullptr, source, 8, 0); });
    refuse("all_gather: source is", [&] { all_gather_bytes(team, target, outside, 8); });
    refuse("all_gather: target is",
           [&] { all_gather_bytes(team, target, source, std::size_t{1} << 62); });
    refuse("SHOAL_SYMMETRIC_SIZE",
           [&] { all_to_all_bytes(team, target, source, world.heap().size() / 2); });
    refuse("overlap", [&] { all_to_all_bytes(team, target, target, 8); });
    refuse("overlap", [&] { broadcast_bytes(team, target, static_cast<char*>(target) + 4, 8, 0); });
    refuse("multiple of the element size", [&] {
      reduce(team, DataType::float32, ReduceOp::sum, target, static_cast<char*>(source) + 2, 8);
    });
    refuse("bit_xor on float32",
           [&] { reduce(team, DataType::float32, ReduceOp::bit_xor, target, source, 8); });
    refuse("sum on int8", [&] { reduce(team, DataType::int8, ReduceOp::sum, target, source, 8); });
    refuse("count is", [&] {
      reduce_scatter(team, DataType::int32, ReduceOp::sum, target, source, std::size_t{1} << 62);
    });
  });
}

TEST(CollectiveErrors, AllToAllVRefusesBadSpans) {
  run([](World& world) {
    test::CollectiveCheck check(world, 4096);
    const std::vector<std::size_t> sizes(kPes, 16), offsets = {0, 16, 32}, same(kPes, 0),
                                                    far(kPes, std::size_t{1} << 62), two(2, 0);
    const auto call = [&](std::span<const std::size_t> receive_offsets,
                          std::span<const std::size_t> send_offsets, const void* source) {
      all_to_all_v_bytes(world.team(), check.target(), sizes, receive_offsets, source, sizes,
                         send_offsets);
    };
    expect_error(Code::invalid_argument, "receive_offsets has 2 elements",
                 [&] { call(two, offsets, check.source()); });
    expect_error(Code::invalid_argument, "target is", [&] { call(far, offsets, check.source()); });
    expect_error(Code::invalid_argument, "source is", [&] { call(offsets, offsets, nullptr); });
    expect_error(Code::invalid_argument, "overlaps", [&] { call(same, offsets, check.source()); });
    expect_error(Code::invalid_argument, "overlaps", [&] { call(offsets, same, check.target()); });
    call(offsets, same, check.source());  // the same block to all PEs
    check.all_to_all_v(world.team(), 100, 1);
  });
}

TEST(CollectiveErrors, EveryPeLearnsOfADisagreement) {
  run([](World& world) {
    test::CollectiveCheck check(world, 4096);
    const Team team = world.team();
    const bool odd = world.my_pe() == 1;
    auto* const target = check.target();
    auto* const source = check.source();
    const auto disagree = [&](const std::string& text, const std::function<void()>& call) {
      SCOPED_TRACE(text);
      expect_error(Code::mismatch, text, call);
      check.all_gather(team, 100, 1);
    };
    disagree("PE 0, 2: all_gather(8 bytes",
             [&] { all_gather_bytes(team, target, source, odd ? 16 : 8); });
    disagree("root 2", [&] { broadcast_bytes(team, target, source, 8, odd ? 2 : 0); });
    disagree("PE 1: broadcast(8 bytes", [&] {
      if (odd)
        broadcast_bytes(team, target, source, 8, 0);
      else
        all_gather_bytes(team, target, source, 8);
    });
    disagree("max of 4 int32", [&] {
      reduce(team, DataType::int32, odd ? ReduceOp::max : ReduceOp::min, target, source, 4);
    });
    disagree("4 float32", [&] {
      reduce(team, odd ? DataType::float32 : DataType::int32, ReduceOp::sum, target, source, 4);
    });
    disagree("source at", [&] { all_gather_bytes(team, target, odd ? source + 64 : source, 8); });
  });
}

// PE 2 refuses a call, drops the exception and makes another one.
TEST(CollectiveErrors, OtherPesLearnWhyACallWasRefused) {
  run([](World& world) {
    test::CollectiveCheck check(world, 4096);
    const Team team = world.team();
    const bool odd = world.my_pe() == 2;
    auto* const target = check.target();
    auto* const source = check.source();
    void* const block = world.heap().malloc(64);
    int outside[4] = {};
    const auto refuse = [&](const std::string& text, const std::function<void(bool)>& call) {
      SCOPED_TRACE(text);
      if (odd) {
        expect_error(Code::invalid_argument, text, [&] { call(true); });
        sync(team);
      } else {
        const std::string message = error_of([&] { call(false); });
        expect_parts(message, {"; PE 2 refused its call: " + text, ": operation ",
                               "PE 2 made a call without data"});
      }
      check.all_gather(team, 100, 1);
    };
    refuse("broadcast: root is 7",
           [&](bool bad) { broadcast_bytes(team, target, source, 4000, bad ? 7 : 0); });
    refuse("all_gather: source is", [&](bool bad) {
      all_gather_bytes(team, target, bad ? outside : static_cast<void*>(source), 8);
    });
    refuse("all_to_all: target",
           [&](bool bad) { all_to_all_bytes(team, target, bad ? target : source, 8); });
    refuse("reduce: operation", [&](bool bad) {
      reduce(team, bad ? DataType::int8 : DataType::int32, ReduceOp::sum, target, source, 8);
    });
    refuse("reduce: source is", [&](bool bad) {
      reduce(team, DataType::int32, ReduceOp::sum, target, source + (bad ? 2 : 0), 8);
    });
    refuse("reduce_scatter: count is", [&](bool bad) {
      reduce_scatter(team, DataType::int32, ReduceOp::sum, target, source,
                     bad ? std::size_t{1} << 62 : 8);
    });
    refuse("all_to_all_v: receive_bytes has 2 elements", [&](bool bad) {
      const std::vector<std::size_t> sizes(kPes, 16), offsets = {0, 16, 32};
      const std::vector<std::size_t> received(bad ? 2 : kPes, 16);
      all_to_all_v_bytes(team, target, received, offsets, source, sizes, offsets);
    });
    refuse("exchange_bytes of 513 bytes", [&](bool bad) {
      exchange_bytes(team, std::vector<std::byte>(bad ? kMaxExchangeBytes + 1 : 4));
    });
    refuse("free of", [&](bool bad) { world.heap().free(bad ? outside : block); });
    refuse("align: an alignment of 3",
           [&](bool bad) { (void)world.heap().align(bad ? 3 : 16, 64); });
    world.heap().free(block);

    // Another collective, whose arguments differ: all PEs learn it.
    if (odd)
      expect_error(Code::invalid_argument, "root is -1",
                   [&] { broadcast_bytes(team, target, source, 8, -1); });
    const std::string message = error_of([&] {
      if (odd)
        all_gather_bytes(team, target, source, 8);
      else
        broadcast_bytes(team, target, source, 8, 0);
    });
    expect_parts(message,
                 {"PE 2 refused its call: broadcast: root is -1", "PE 2: all_gather(8 bytes"});
    // A later disagreement has another cause.
    const std::string later =
        error_of([&] { all_gather_bytes(team, target, source, odd ? 16 : 8); });
    expect_parts(later, {"PE 2: all_gather(16 bytes"});
    EXPECT_EQ(later.find("refused"), std::string::npos) << later;
  });
}

TEST(CollectiveErrors, APeThatRefusedAndDoesNotComeIsNamedWithTheReason) {
  std::atomic<int> waiting{kPes - 1};
  run(
      [&](World& world) {
        test::CollectiveCheck check(world, 4096);
        const Team team = world.team().split_strided(0, 1, kPes);
        barrier(world.team());
        if (world.my_pe() == 2) {
          expect_error(Code::invalid_argument, "root is 3",
                       [&] { broadcast_bytes(team, check.target(), check.source(), 8, 3); });
          EXPECT_TRUE(test::wait_for([&] { return waiting == 0; }));
        } else {
          const std::string message =
              error_of([&] { broadcast_bytes(team, check.target(), check.source(), 8, 0); });
          expect_parts(message, {"waiting for PE 2", "PE 2 refused its call: broadcast: root is 3",
                                 "PE 2 last reported"});
          --waiting;
        }
      },
      std::chrono::milliseconds(250));
}

TEST(CollectiveErrors, AllToAllVNamesThePairThatDisagrees) {
  run([](World& world) {
    test::CollectiveCheck check(world, 4096);
    std::vector<std::size_t> receive(kPes, 16), send(kPes, 16), offsets = {0, 16, 32};
    if (world.my_pe() == 2) send[0] = 8;
    expect_error(Code::mismatch, "PE 2 sends 8 bytes to PE 0, which expects 16", [&] {
      all_to_all_v_bytes(world.team(), check.target(), receive, offsets, check.source(), send,
                         offsets);
    });
    check.all_to_all_v(world.team(), 100, 1);
  });
}

TEST(CollectiveErrors, InvalidAndDestroyedTeamsAreRefused) {
  run([](World& world) {
    EXPECT_THROW(sync(Team()), Error);
    Team team = world.team().split_strided(0, 1, kPes);
    Team copy = team;
    team.free();
    expect_error(Code::closed, "", [&] { barrier(copy); });
    expect_error(Code::closed, "", [&] { all_gather_bytes(copy, nullptr, nullptr, 0); });
  });
}

TEST(CollectiveErrors, AMissingPeIsNamed) {
  std::atomic<int> waiting{kPes - 1};
  const auto body = [&](World& world) {
    test::CollectiveCheck check(world, 4096);
    const Team team = world.team().split_strided(0, 1, kPes);
    barrier(world.team());
    if (world.my_pe() == 2) {
      // Alive, but not in the collective.
      EXPECT_TRUE(test::wait_for([&] { return waiting == 0; }));
    } else {
      expect_error(Code::timeout, "PE 2",
                   [&] { all_gather_bytes(team, check.target(), check.source(), 8); });
      --waiting;
    }
  };
  run(body, std::chrono::milliseconds(250));
}

TEST(Collectives, SpansCountElements) {
  Settings settings;
  settings.symmetric_size = 8 << 20;
  settings.timeout = std::chrono::milliseconds(20'000);
  run_threads(3, settings, [](World& world) {
    const Team team = world.team();
    const Pe me = world.my_pe();
    auto one = world.heap().allocate<double>(2), all = world.heap().allocate<double>(6);
    auto back = world.heap().allocate<double>(6);
    one[0] = me;
    one[1] = 10 + me;
    all_gather(team, all.span(), one.span());
    for (Pe pe = 0; pe < 3; ++pe) {
      const auto block = static_cast<std::size_t>(2 * pe);
      EXPECT_EQ(all[block], pe);
      EXPECT_EQ(all[block + 1], 10 + pe);
    }
    for (std::size_t i = 0; i < 6; ++i) all[i] = 100 * me + static_cast<double>(i);
    all_to_all(team, back.span(), all.span());
    for (std::size_t i = 0; i < 6; ++i)
      EXPECT_EQ(back[i], 100.0 * static_cast<double>(i / 2) + 2 * me + static_cast<double>(i % 2));
    broadcast(team, back.span(), all.span(), 2);
    EXPECT_EQ(back[5], 205);
    // Spans of a fixed extent are spans.
    all_gather(team, back.span().first<6>(), one.span().first<2>());
    EXPECT_EQ(back[4], 2);
    broadcast(team, back.span().first<3>(), all.span().first<3>(), 1);
    EXPECT_EQ(back[2], 102);
    all_to_all(team, back.span().first<3>(), all.span().first<3>());
    EXPECT_EQ(back[2], 200 + me);
    reduce_scatter(team, ReduceOp::sum, one.span().first<1>(), all.span().first<3>());
    EXPECT_EQ(one[0], 300 + 3 * me);
    reduce(team, ReduceOp::sum, back.span().first<1>(), all.span().last<1>());
    EXPECT_EQ(back[0], 315);
    reduce(team, ReduceOp::max, back.span(), all.span());
    EXPECT_EQ(back[4], 204);
    reduce_scatter(team, ReduceOp::sum, one.span(), all.span());
    EXPECT_EQ(one[1], 300 + 3 * (2 * me + 1));
    // PE i sends i elements to each PE, from its end; unused offsets may be anything.
    const auto n = static_cast<std::size_t>(me);
    const std::vector<std::size_t> send{n, n, n}, from(3, me == 0 ? 99 : 6 - n);
    const std::vector<std::size_t> receive{0, 1, 2}, to{77, 0, 1};
    back[3] = -1;
    all_to_all_v(team, back.span(), receive, to, all.span(), send, from);
    EXPECT_EQ(back[0], 105);
    EXPECT_EQ(back[1], 204);
    EXPECT_EQ(back[2], 205);
    EXPECT_EQ(back[3], -1);

    const auto refuse = [&](const char* part, const std::function<void()>& call) {
      sync(team);  // the PEs refuse the same call
      expect_error(Code::invalid_argument, part, call);
    };
    refuse("broadcast: target has 2 elements and source 6",
           [&] { broadcast(team, one.span(), all.span(), 0); });
    refuse("allowed: 3 and 1 times", [&] { all_gather(team, all.span().first(5), one.span()); });
    refuse("all_to_all: target has 5",
           [&] { all_to_all(team, back.span().first(5), all.span().first(5)); });
    refuse("reduce: target has", [&] { reduce(team, ReduceOp::sum, one.span(), all.span()); });
    refuse("reduce_scatter: target has",
           [&] { reduce_scatter(team, ReduceOp::sum, all.span(), all.span()); });
    const std::vector<std::size_t> past{0, 0, 7};
    refuse("7 elements from element 1",
           [&] { all_to_all_v(team, back.span(), past, to, all.span(), send, from); });
    refuse("has 2 counts", [&] {
      all_to_all_v(team, back.span(), std::span(receive).first(2), to, all.span(), send, from);
    });
    all_gather(team, all.span(), one.span());
  });
}

}  // namespace
}  // namespace shoal
