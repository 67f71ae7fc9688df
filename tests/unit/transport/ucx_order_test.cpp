// SPDX-License-Identifier: Apache-2.0
// What the ucx transport (D4) makes of a network that keeps nothing in order but what a flush
// orders (C1): two PEs, as threads, over fake_ucp.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <numeric>
#include <thread>
#include <vector>

#include "memory/host/segment.hpp"
#include "shoal/bootstrap.hpp"
#include "transport/module.hpp"

#ifdef SHOAL_TEST_UCX  // where there is UCX to build against
#include "fake_ucp/fake_ucp.hpp"

namespace shoal::transport {
extern "C" const Module shoal_transport_module;
}

namespace shoal::test {
namespace {

using transport::Transport;

constexpr std::size_t kSegmentBytes = std::size_t{1} << 20;
constexpr std::size_t kFlag = 512 << 10, kEcho = kFlag + 8, kWords = kFlag + 64;

struct Pair {
  Pe pe;
  Pe other;
  Transport& transport;
  std::byte* mine;    ///< this PE's segment
  std::byte* theirs;  ///< the other's, for looking at what must have arrived

  std::atomic_ref<std::uint64_t> word(std::size_t offset) const {
    return std::atomic_ref<std::uint64_t>(*reinterpret_cast<std::uint64_t*>(mine + offset));
  }
  bool wait_for(std::size_t offset, std::uint64_t value) const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (word(offset).load(std::memory_order_acquire) < value) {
      if (std::chrono::steady_clock::now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }
  /// Returns when the other has called as often.
  void meet() {
    transport.signal(other, kWords - 8, SignalOp::add, 1);
    EXPECT_TRUE(wait_for(kWords - 8, ++meetings));
  }
  std::uint64_t meetings = 0;
};

void run_pair(const Settings& settings, const std::function<void(Pair&)>& body) {
  reset_fake_ucp(4711);
  auto bootstraps = thread_bootstraps(2);
  std::vector<std::shared_ptr<memory::Segment>> segments;
  for (int pe = 0; pe < 2; ++pe) segments.push_back(memory::Segment::create(kSegmentBytes));
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < 2; ++pe)
    threads.emplace_back([&, pe] {
      const std::vector<std::int32_t> one_host(2, 0);
      transport::Context context;
      context.my_pe = pe;
      context.n_pes = 2;
      context.host_of = context.node_of = one_host;
      context.segment = segments[static_cast<std::size_t>(pe)];
      context.settings = &settings;
      context.wanted = {pe == 1, pe == 0};
      context.timeout = std::chrono::seconds(20);
      context.check = [] {};
      const auto transport = transport::shoal_transport_module.make(context);
      Bootstrap& bootstrap = *bootstraps[static_cast<std::size_t>(pe)];
      transport->connect(bootstrap.all_gather(transport->address(), "address"));
      EXPECT_EQ(transport->reach(1 - pe).capabilities, transport::capability::all_operations)
          << transport->reach(1 - pe).reason;
      Pair pair{pe, 1 - pe, *transport, segments[static_cast<std::size_t>(pe)]->base(),
                segments[static_cast<std::size_t>(1 - pe)]->base()};
      body(pair);
      pair.meet();
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(fake_ucp_counts().requests_left, 0u);
}

Settings settings_with(std::int64_t depth, std::size_t chunk) {
  Settings settings;
  settings.network_depth = depth;
  settings.network_chunk = chunk;
  settings.timeout = std::chrono::seconds(20);
  return settings;
}

/// Depth and chunk: from one request at a time to more than are ever needed.
class UcxOrder : public testing::TestWithParam<std::pair<std::int64_t, std::size_t>> {
 protected:
  static void run(const std::function<void(Pair&)>& body) {
    const auto [depth, chunk] = GetParam();
    run_pair(settings_with(depth, chunk), body);
    const FakeUcpCounts counts = fake_ucp_counts();
    // The handshake reads two things at once.
    EXPECT_LE(counts.most_transfers, static_cast<std::size_t>(std::max<std::int64_t>(depth, 2)));
    EXPECT_LE(counts.most_flushes, 1u);
    // Its own window, answers to the other's, and an acknowledgement, a request for one and a
    // goodbye.
    EXPECT_LE(counts.most_messages, 2 * static_cast<std::size_t>(depth) + 3);
    if (depth > 4) EXPECT_GT(counts.overtaken, 10u) << "the fake is not as adverse as it should be";
  }
};

constexpr std::size_t kLengths[] = {8, 100, 4096, 4100, 16384, 16392, 60'000};

// C1
TEST_P(UcxOrder, SignalsComeAfterData) {
  run([](Pair& pair) {
    std::vector<std::byte> out(60'000);
    for (std::uint64_t round = 1; round <= 84; ++round) {
      const std::size_t bytes = kLengths[round % std::size(kLengths)];
      if (pair.pe == 0) {
        std::memset(out.data(), static_cast<int>(round), bytes);
        if (round % 3 == 0) {
          pair.transport.put_signal(1, 0, out.data(), bytes, kFlag, SignalOp::set, round);
        } else {
          pair.transport.put_nbi(1, 0, out.data(), bytes);
          pair.transport.signal(1, kFlag, round % 3 == 1 ? SignalOp::set : SignalOp::add,
                                round % 3 == 1 ? round : 1);
        }
        ASSERT_TRUE(pair.wait_for(kEcho, round));
        pair.transport.quiet();
      } else {
        ASSERT_TRUE(pair.wait_for(kFlag, round));
        const auto right = std::count(pair.mine, pair.mine + bytes, static_cast<std::byte>(round));
        ASSERT_EQ(static_cast<std::size_t>(right), bytes) << "round " << round;
        pair.transport.signal(0, kEcho, SignalOp::set, round);
      }
    }
  });
}

TEST_P(UcxOrder, FencesKeepPutsApart) {
  run([](Pair& pair) {
    std::vector<std::byte> out(60'000);
    for (std::uint64_t round = 1; round <= 70; ++round) {
      const std::size_t bytes = kLengths[round % std::size(kLengths)];
      if (pair.pe == 0) {
        // Long behind short, short behind long, to the same place: the last one stays, then a word
        // says so.
        const std::size_t first = kLengths[(round * 5) % std::size(kLengths)];
        const std::vector<std::byte> old(first, std::byte{0xEE});
        std::memset(out.data(), static_cast<int>(round % 200), bytes);
        pair.transport.put_nbi(1, 0, old.data(), first);
        pair.transport.fence(1);
        pair.transport.put_nbi(1, 0, out.data(), bytes);
        pair.transport.fence(1);
        pair.transport.put(1, kFlag, &round, sizeof round);
        ASSERT_TRUE(pair.wait_for(kEcho, round));
        pair.transport.quiet();
      } else {
        ASSERT_TRUE(pair.wait_for(kFlag, round));
        const auto right =
            std::count(pair.mine, pair.mine + bytes, static_cast<std::byte>(round % 200));
        ASSERT_EQ(static_cast<std::size_t>(right), bytes) << "round " << round;
        pair.transport.signal(0, kEcho, SignalOp::set, round);
      }
    }
  });
}

TEST_P(UcxOrder, QuietCompletesEverything) {
  run([](Pair& pair) {
    std::vector<std::byte> out(60'000), in(60'000);
    for (std::uint64_t round = 1; round <= 42; ++round) {
      const std::size_t bytes = kLengths[round % std::size(kLengths)];
      std::memset(out.data(), static_cast<int>(round + 1), bytes);
      pair.transport.put_nbi(pair.other, 0, out.data(), bytes);
      pair.transport.put_strided(pair.other, 128 << 10, 24, out.data(), 8, 8, bytes / 8);
      pair.transport.signal(pair.other, kFlag, SignalOp::add, 1);
      pair.transport.quiet();
      ASSERT_EQ(std::memcmp(pair.theirs, out.data(), bytes), 0) << "round " << round;
      for (std::size_t i = 0; i < bytes / 8; ++i)
        ASSERT_EQ(std::memcmp(pair.theirs + (128 << 10) + i * 24, out.data() + i * 8, 8), 0)
            << "round " << round;
      std::memset(in.data(), 0, bytes);
      pair.transport.get_nbi(in.data(), pair.other, 0, bytes);
      pair.transport.quiet();
      ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes), 0) << "round " << round;
      std::memset(in.data(), 0, bytes);
      pair.transport.get(in.data(), pair.other, 0, bytes);
      ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes), 0) << "round " << round;
      std::memset(in.data(), 0, bytes);
      pair.transport.get_strided(in.data(), 8, pair.other, 128 << 10, 24, 8, bytes / 8);
      ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes / 8 * 8), 0) << "round " << round;
    }
  });
}

TEST_P(UcxOrder, AtomicsAndSignalsAreAppliedOnceInOrder) {
  run([](Pair& pair) {
    constexpr std::uint64_t kTimes = 200;
    for (std::uint64_t i = 0; i < kTimes; ++i) {
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::add, kWords, 3, 0, 8), 3 * i);
      pair.transport.signal(pair.other, kWords + 8, SignalOp::add, 1);
      pair.transport.put(pair.other, kWords + 16, &i, sizeof i);  // in the order of the program
      if (i % 10 == 0) {
        EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 8, 0, 0, 8), i + 1);
        EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 16, 0, 0, 8), i);
      }
    }
    pair.meet();
    EXPECT_EQ(pair.word(kWords).load(), 3 * kTimes);
    EXPECT_EQ(pair.word(kWords + 8).load(), kTimes);
    EXPECT_EQ(pair.word(kWords + 16).load(), kTimes - 1);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Windows, UcxOrder,
    testing::Values(std::pair<std::int64_t, std::size_t>{1, 4096},
                    std::pair<std::int64_t, std::size_t>{2, 5000},
                    std::pair<std::int64_t, std::size_t>{7, 20'000},
                    std::pair<std::int64_t, std::size_t>{256, std::size_t{1} << 20}),
    [](const auto& instance) { return "depth_" + std::to_string(instance.param.first); });

}  // namespace
}  // namespace shoal::test
#endif
