// SPDX-License-Identifier: Apache-2.0
#include "checks/transport/pair.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "memory/host/segment.hpp"
#include "shoal/bootstrap.hpp"

namespace shoal::test {
namespace {

constexpr std::size_t kFlag = 512 << 10, kEcho = kFlag + 8, kWords = kFlag + 64;
constexpr std::size_t kMeeting = kWords - 8;
constexpr std::size_t kStrided = 128 << 10;
constexpr std::size_t kLongest = 60'000;
constexpr std::size_t kLengths[] = {8, 100, 4096, 4100, 16384, 16392, kLongest};

}  // namespace

bool Pair::wait_for(std::size_t offset, std::uint64_t value) const {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (word(offset).load(std::memory_order_acquire) < value) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

void Pair::meet() {
  transport.signal(other, kMeeting, SignalOp::add, 1);
  EXPECT_TRUE(wait_for(kMeeting, ++meetings));
}

namespace {

/// Two PEs as threads, connected as far as they fit together.
void start_pair(
    transport::Factory make, const Settings& first, const Settings& second,
    const std::vector<std::string>& nics,
    const std::function<void(Pe, transport::Transport&, memory::Segment* const*)>& body) {
  auto bootstraps = thread_bootstraps(2);
  std::shared_ptr<memory::Segment> segments[2];
  memory::Segment* raw[2];
  for (int pe = 0; pe < 2; ++pe) {
    segments[pe] = memory::Segment::create(kPairSegmentBytes);
    raw[pe] = segments[pe].get();
  }
  std::barrier<> end(2);  // neither transport ends while the other is in use
  std::vector<std::thread> threads;
  for (Pe pe = 0; pe < 2; ++pe)
    threads.emplace_back([&, pe] {
      const std::vector<std::int32_t> one_host(2, 0);
      transport::Context context;
      context.my_pe = pe;
      context.n_pes = 2;
      context.host_of = context.node_of = one_host;
      context.segment = segments[pe];
      context.settings = pe == 0 ? &first : &second;
      context.wanted = {pe == 1, pe == 0};
      context.nics = nics;
      context.timeout = std::chrono::seconds(20);
      context.check = [] {};
      const auto transport = make(context);
      Bootstrap& bootstrap = *bootstraps[static_cast<std::size_t>(pe)];
      const auto addresses = bootstrap.all_gather(transport->address(), "address");
      transport->open(addresses);
      bootstrap.all_gather({}, "open");
      transport->connect(addresses);
      body(pe, *transport, raw);
      end.arrive_and_wait();
    });
  for (auto& thread : threads) thread.join();
}

}  // namespace

void run_pair(transport::Factory make, const Settings& first, const Settings& second,
              const std::function<void(Pair&)>& body, std::vector<std::string> nics) {
  start_pair(
      make, first, second, nics,
      [&](Pe pe, transport::Transport& transport, memory::Segment* const* segments) {
        EXPECT_EQ(transport.reach(1 - pe).capabilities, transport::capability::all_operations)
            << transport.reach(1 - pe).reason;
        Pair pair{pe, 1 - pe, transport, segments[pe]->base(), segments[1 - pe]->base()};
        body(pair);
      });
}

void run_unconnected_pair(transport::Factory make, const Settings& first, const Settings& second,
                          const std::function<void(const std::string&)>& look) {
  start_pair(make, first, second, {},
             [&](Pe pe, transport::Transport& transport, memory::Segment* const*) {
               EXPECT_EQ(transport.reach(1 - pe).capabilities, 0u);
               look(transport.reach(1 - pe).reason);
             });
}

Settings pair_settings(std::int64_t depth, std::size_t chunk) {
  Settings settings;
  settings.network_depth = depth;
  settings.network_chunk = chunk;
  settings.timeout = std::chrono::seconds(20);
  return settings;
}

void check_signals_follow_data(Pair& pair) {
  std::vector<std::byte> out(kLongest);
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
      const auto right = std::count(pair.local, pair.local + bytes, static_cast<std::byte>(round));
      ASSERT_EQ(static_cast<std::size_t>(right), bytes) << "round " << round;
      pair.transport.signal(0, kEcho, SignalOp::set, round);
    }
  }
}

void check_fences_order_puts(Pair& pair) {
  std::vector<std::byte> out(kLongest);
  for (std::uint64_t round = 1; round <= 70; ++round) {
    const std::size_t bytes = kLengths[round % std::size(kLengths)];
    if (pair.pe == 0) {
      // Two puts of different lengths to the same place, then a word: the second put stays.
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
          std::count(pair.local, pair.local + bytes, static_cast<std::byte>(round % 200));
      ASSERT_EQ(static_cast<std::size_t>(right), bytes) << "round " << round;
      pair.transport.signal(0, kEcho, SignalOp::set, round);
    }
  }
}

void check_quiet_completes_everything(Pair& pair) {
  std::vector<std::byte> out(kLongest), in(kLongest);
  for (std::uint64_t round = 1; round <= 42; ++round) {
    const std::size_t bytes = kLengths[round % std::size(kLengths)];
    std::memset(out.data(), static_cast<int>(round + 1), bytes);
    pair.transport.put_nbi(pair.other, 0, out.data(), bytes);
    pair.transport.put_strided(pair.other, kStrided, 24, out.data(), 8, 8, bytes / 8);
    // A flag that quiet does not wait for may carry the request for the data's acknowledgement.
    if (round % 2 == 0)
      pair.transport.signal(pair.other, kFlag, SignalOp::add, 1);
    else
      pair.transport.raise_flag(pair.other, kFlag, SignalOp::add, 1);
    pair.transport.quiet();
    ASSERT_EQ(std::memcmp(pair.remote, out.data(), bytes), 0) << "round " << round;
    for (std::size_t i = 0; i < bytes / 8; ++i)
      ASSERT_EQ(std::memcmp(pair.remote + kStrided + i * 24, out.data() + i * 8, 8), 0)
          << "round " << round;
    std::memset(in.data(), 0, bytes);
    pair.transport.get_nbi(in.data(), pair.other, 0, bytes);
    pair.transport.quiet();
    ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes), 0) << "round " << round;
    std::memset(in.data(), 0, bytes);
    pair.transport.get(in.data(), pair.other, 0, bytes);
    ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes), 0) << "round " << round;
    std::memset(in.data(), 0, bytes);
    pair.transport.get_strided(in.data(), 8, pair.other, kStrided, 24, 8, bytes / 8);
    ASSERT_EQ(std::memcmp(in.data(), out.data(), bytes / 8 * 8), 0) << "round " << round;
  }
}

void check_atomics_and_signals_are_applied_once_in_order(Pair& pair) {
  constexpr std::uint64_t kTimes = 200;
  for (std::uint64_t i = 0; i < kTimes; ++i) {
    EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::add, kWords, 3, 0, 8), 3 * i);
    pair.transport.signal(pair.other, kWords + 8, SignalOp::add, 1);
    pair.transport.put(pair.other, kWords + 16, &i, sizeof i);  // in program order
    // Updates of either width, next to a word that must not change.
    pair.transport.update(pair.other, AtomicOp::add, kWords + 24, 5, 4);
    pair.transport.update(pair.other, AtomicOp::bit_xor, kWords + 32, 1, 8);
    pair.transport.update(pair.other, AtomicOp::set, kWords + 40, i, 8);
    if (i % 10 == 0) {
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 8, 0, 0, 8), i + 1);
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 16, 0, 0, 8), i);
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 24, 0, 0, 8),
                5 * (i + 1));
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 32, 0, 0, 8),
                (i + 1) % 2);
      EXPECT_EQ(pair.transport.atomic(pair.other, AtomicOp::fetch, kWords + 40, 0, 0, 8), i);
    }
  }
  pair.meet();
  EXPECT_EQ(pair.word(kWords).load(), 3 * kTimes);
  EXPECT_EQ(pair.word(kWords + 8).load(), kTimes);
  EXPECT_EQ(pair.word(kWords + 16).load(), kTimes - 1);
  // quiet covers updates.
  pair.meet();
  pair.transport.update(pair.other, AtomicOp::set, kWords + 24, 77, 4);
  pair.transport.quiet();
  EXPECT_EQ(*reinterpret_cast<std::uint32_t*>(pair.remote + kWords + 24), 77u);
  pair.meet();
}

}  // namespace shoal::test
