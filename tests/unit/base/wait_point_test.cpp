// SPDX-License-Identifier: Apache-2.0
// Blocking until a word is written: which writes wake, how often, and that a missed wake costs
// only the bound. Bounds of a minute stand for "never": a missing wake shows as an expired block.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/wait_point.hpp"

namespace shoal::test {
namespace {

constexpr std::chrono::minutes kNever{1};
constexpr std::chrono::milliseconds kSoon{1};
constexpr std::uint64_t kWord = 640;

TEST(WaitPoint, AWriteAfterTheAnnouncementIsNotMissed) {
  WaitPoint point;
  WaitPoint::Waiter waiter(point);
  waiter.announce(kWord);
  point.notify(kWord, 8);
  EXPECT_TRUE(waiter.block(kNever));
  EXPECT_EQ(point.wakes(), 1u);
  EXPECT_EQ(point.expired(), 0u);
}

TEST(WaitPoint, OnlyWritesOfTheAnnouncedWordWake) {
  const struct {
    std::uint64_t offset;
    std::size_t bytes;
    bool wakes;
  } writes[] = {{kWord, 8, true},       {kWord, 4, true},        {kWord + 4, 4, true},
                {kWord - 64, 65, true}, {0, 100'000, true},      {kWord - 8, 8, false},
                {kWord + 8, 8, false},  {kWord - 64, 64, false}, {0, 0, false}};
  for (const auto& [offset, bytes, wakes] : writes) {
    WaitPoint point;
    WaitPoint::Waiter waiter(point);
    waiter.announce(kWord);
    point.notify(offset, bytes);
    EXPECT_EQ(point.wakes(), wakes ? 1u : 0u) << offset << ", " << bytes;
    EXPECT_EQ(point.awaited(), wakes ? 0u : kWord) << offset << ", " << bytes;
    EXPECT_EQ(waiter.block(wakes ? std::chrono::nanoseconds(kNever) : kSoon), wakes);
  }
}

TEST(WaitPoint, AnyWriteWakesAWaiterForAnyWord) {
  WaitPoint point;
  WaitPoint::Waiter waiter(point);
  waiter.announce(WaitPoint::kAnyWord);
  point.notify(4096, 1);
  EXPECT_TRUE(waiter.block(kNever));
}

TEST(WaitPoint, OneOfManyWritersWakes) {
  WaitPoint point;
  WaitPoint::Waiter waiter(point);
  point.notify(kWord, 8);  // no thread waits
  EXPECT_EQ(point.wakes(), 0u);
  waiter.announce(WaitPoint::kAnyWord);
  for (int i = 0; i < 10; ++i) point.notify(kWord, 8);
  EXPECT_EQ(point.wakes(), 1u);
  point.notify_all();
  EXPECT_EQ(point.wakes(), 1u);
  waiter.announce(kWord);
  point.notify_all();
  EXPECT_EQ(point.wakes(), 2u);
}

TEST(WaitPoint, AWriteWithoutAWakeCostsTheBound) {
  WaitPoint point;
  WaitPoint::Waiter waiter(point);
  waiter.announce(kWord);
  EXPECT_FALSE(waiter.block(kSoon));
  EXPECT_EQ(point.expired(), 1u);
  EXPECT_EQ(point.awaited(), kWord);  // until the wait ends
  waiter.announce(kWord);
  point.notify(kWord, 8);
  EXPECT_TRUE(waiter.block(kNever));
}

TEST(WaitPoint, AWaitThatEndsLeavesNoAnnouncement) {
  WaitPoint point;
  {
    WaitPoint::Waiter waiter(point);
    waiter.announce(kWord);
    waiter.announce(kWord + 64);
    EXPECT_EQ(point.awaited(), kWord + 64);
  }
  EXPECT_EQ(point.awaited(), 0u);
}

// Threads of one PE that wait for different words share the announcement.
TEST(WaitPoint, AWriteWakesAllThreadsThatShareAnAnnouncement) {
  WaitPoint point;
  auto first = std::make_unique<WaitPoint::Waiter>(point);
  WaitPoint::Waiter second(point);
  first->announce(kWord);
  second.announce(kWord + 64);
  point.notify(kWord + 128, 8);
  EXPECT_TRUE(first->block(kNever));
  EXPECT_TRUE(second.block(kNever));
  // One that ends does not take the other's wake with it.
  first->announce(kWord);
  second.announce(kWord + 64);
  first.reset();
  point.notify(kWord + 64, 8);
  EXPECT_TRUE(second.block(kNever));
}

/// A word that one thread writes and another waits for.
struct Mailbox {
  WaitPoint point;
  std::atomic<std::uint64_t> word{0};

  void write(std::uint64_t value) {
    word.store(value, std::memory_order_release);
    point.notify(kWord, 8);
  }
  void await(std::uint64_t value) {
    const auto ready = [&] { return word.load(std::memory_order_acquire) >= value; };
    WaitPoint::Waiter waiter(point);
    while (!ready()) {
      waiter.announce(kWord);
      for (int i = 0; i < 16; ++i)
        if (ready()) return;
      waiter.block(std::chrono::seconds(1));
    }
  }
};

// No write is lost between announcement and block: every round then ends by a wake. A lost one
// would be an expired block; few are allowed: the protocol bounds their cost and not their number.
TEST(WaitPoint, TurnsBetweenTwoThreadsLoseNoWake) {
  constexpr std::uint64_t kRounds = 20'000;
  std::array<Mailbox, 2> boxes;
  std::thread other([&] {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      boxes[1].await(round);
      boxes[0].write(round);
    }
  });
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    boxes[1].write(round);
    boxes[0].await(round);
  }
  other.join();
  for (const Mailbox& box : boxes) {
    EXPECT_LE(box.point.expired(), 3u);
    EXPECT_EQ(box.point.awaited(), 0u);
  }
}

// Many writers, one waiter for all of them.
TEST(WaitPoint, WritersRaceForOneWaiter) {
  constexpr std::uint64_t kWriters = 4, kWrites = 2000;
  WaitPoint point;
  std::atomic<std::uint64_t> count{0};
  std::vector<std::thread> writers;
  for (std::uint64_t i = 0; i < kWriters; ++i)
    writers.emplace_back([&, i] {
      for (std::uint64_t write = 0; write < kWrites; ++write) {
        count.fetch_add(1);
        point.notify(64 * (i + 1), 8);
      }
    });
  {
    WaitPoint::Waiter waiter(point);
    while (count.load() < kWriters * kWrites) {
      waiter.announce(WaitPoint::kAnyWord);
      if (count.load() == kWriters * kWrites) break;
      waiter.block(std::chrono::seconds(1));
    }
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_LE(point.expired(), 3u);
  EXPECT_LE(point.wakes(), kWriters * kWrites);
}

}  // namespace
}  // namespace shoal::test
