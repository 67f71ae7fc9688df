// SPDX-License-Identifier: Apache-2.0
#include "checks/transport/worlds.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "checks/collective/reference.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/rounds.hpp"
#include "support/world/neighbours.hpp"

namespace shoal::test {
void check_operations_over(World& world, std::string_view transport) {
  for (Pe pe = 0; pe < world.n_pes(); ++pe)
    EXPECT_EQ(world.describe_transport(pe).starts_with(std::string(transport) +
                                                       ": put get atomics signals"),
              pe != world.my_pe())
        << world.describe_transport(pe);
  check_everything(world);
}

void check_long_transfers(World& world) {
  constexpr std::size_t kBytes = rounds(std::size_t{2} << 20, std::size_t{512} << 10) + 77;
  const auto box = world.heap().allocate<std::byte>(kBytes + 64);
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  const auto made = [](Pe pe, std::uint64_t round) {
    return random_bytes(kBytes, static_cast<std::uint64_t>(pe) * 100 + round);
  };
  for (std::uint64_t round = 1; round <= 3; ++round) {
    const Bytes out = made(world.my_pe(), round);
    if (round == 2) {
      world.put_nbi(box.on(right(world)).subspan(3, kBytes), out);
      world.signal_set(flag.on(right(world)), round);
    } else {
      world.put_signal(box.on(right(world)).subspan(3, kBytes), out, flag.on(right(world)),
                       SignalOp::set, round);
    }
    world.signal_wait_until(flag.data(), Compare::equal, round);
    EXPECT_EQ(std::memcmp(box.data() + 3, made(left(world), round).data(), kBytes), 0)
        << "round " << round;
    EXPECT_EQ(box[2], std::byte{0});
    EXPECT_EQ(box[kBytes + 3], std::byte{0});
    Bytes in(kBytes);
    world.get(std::span(in), box.on(right(world)).subspan(3, kBytes));
    EXPECT_TRUE(in == out) << "round " << round;
    std::fill(in.begin(), in.end(), std::byte{0});
    world.get_nbi(std::span(in), box.on(right(world)).subspan(3, kBytes));
    world.quiet();
    EXPECT_TRUE(in == out) << "round " << round;
    barrier(world.team());
  }
}

void check_data_before_signals(World& world) {
  check_data_before_signals_for(world, rounds(10'000, 1000));
}

void check_data_before_signals_for(World& world, std::uint64_t rounds) {
  constexpr std::size_t kWords = 3000;
  const auto data = world.heap().allocate<std::uint64_t>(kWords);
  const auto flags =
      world.heap().allocate<std::uint64_t>(2);  // 0: data has arrived, 1: data has been read
  barrier(world.team());
  std::vector<std::uint64_t> out(kWords);
  std::uint64_t wrong = 0;
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    const std::size_t words = round % 4 == 0 ? kWords : 1 + round % 600;
    std::fill(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(words), round);
    const auto there = data.on(right(world)).subspan(0, words);
    if (round % 2 == 0) {
      world.put_nbi(there, std::span<const std::uint64_t>(out).first(words));
      world.signal_set(flags.on(right(world))[0], round);
    } else {
      world.put_signal(there, std::span<const std::uint64_t>(out).first(words),
                       flags.on(right(world))[0], SignalOp::set, round);
    }
    world.signal_wait_until(flags.data(), Compare::equal, round);
    for (std::size_t i = 0; i < words; ++i) wrong += data[i] != round;
    world.signal_set(flags.on(left(world))[1], round);
    world.wait_until(flags.data() + 1, Compare::equal, round);
    world.quiet();
  }
  EXPECT_EQ(wrong, 0u);
  barrier(world.team());
}

void check_mixed_atomics(World& world) {
  check_mixed_atomics_for(world, rounds(1000, 200));
}

void check_mixed_atomics_for(World& world, std::uint64_t times) {
  const auto words = world.heap().allocate<std::uint64_t>(4);
  const auto small = world.heap().allocate<std::uint32_t>(2);
  barrier(world.team());
  const Pe target = 1;
  // On a loaded machine fewer rounds: PEs that end late are late for the barrier of others.
  constexpr std::uint64_t kFewest = 20;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  std::uint64_t done = 0;
  for (; done < times && (done < kFewest || std::chrono::steady_clock::now() < end); ++done) {
    world.atomic_fetch_add(words.on(target)[0], std::uint64_t{3});
    world.signal_add(words.on(target)[1], 1);
    world.atomic_fetch_add(small.on(target)[0], 1u);
    for (std::uint64_t seen = world.atomic_fetch(words.on(target)[2]);;) {
      const std::uint64_t before = world.atomic_compare_swap(words.on(target)[2], seen, seen + 2);
      if (before == seen) break;
      seen = before;
    }
  }
  world.atomic_fetch_add(words.on(target)[3], done);
  world.quiet();
  barrier(world.team());
  const std::uint64_t all = world.atomic_fetch(words.on(target)[3]);
  EXPECT_GE(all, kFewest * static_cast<std::uint64_t>(world.n_pes()));
  EXPECT_EQ(world.atomic_fetch(words.on(target)[0]), 3 * all);
  EXPECT_EQ(world.atomic_fetch(words.on(target)[1]), all);
  EXPECT_EQ(world.atomic_fetch(words.on(target)[2]), 2 * all);
  EXPECT_EQ(world.atomic_fetch(small.on(target)[0]), static_cast<std::uint32_t>(all));
  barrier(world.team());
}

Settings next_to_shared_memory(Settings settings) {
  settings.transport_inside = "shm";
  settings.node_size = 2;
  return settings;
}

void check_next_to_shared_memory(const Settings& settings, const std::string& transport) {
  run_threads(4, next_to_shared_memory(settings), [&](World& world) {
    const std::string remote = world.describe_transport((world.my_pe() + 2) % 4);
    EXPECT_TRUE(remote.starts_with(transport + ": ")) << remote;
    EXPECT_TRUE(world.describe_transport(world.my_pe() ^ 1).starts_with("shm: "));
    check_mixed_atomics(world);
    run_random_collectives(world, rounds(20, 6), 17);
  });
}

void check_words_are_whole(World& world) {
  check_words_are_whole_for(world, rounds(20'000, 4000));
}

void check_words_are_whole_for(World& world, std::uint64_t puts) {
  const auto word = world.heap().allocate<std::uint64_t>(1);
  constexpr std::uint64_t kTwice = 0x1'0000'0001;
  barrier(world.team());
  if (world.my_pe() == 0) {
    for (std::uint64_t i = 1; i <= puts; ++i) world.put_value(word.on(1)[0], i * kTwice);
  } else {
    const std::atomic_ref<std::uint64_t> here(*word.data());
    std::uint64_t seen = 0, torn = 0;
    while (seen < puts * kTwice) {
      const std::uint64_t now = here.load(std::memory_order_acquire);
      torn += now % kTwice != 0 || now < seen;
      seen = now;
    }
    EXPECT_EQ(torn, 0u);
  }
  barrier(world.team());
}

void check_threads_of_a_pe(World& world) {
  constexpr std::size_t kThreads = 3, kTimes = 300, kWords = 2500;
  const auto sums = world.heap().allocate<std::uint64_t>(1);
  const auto boxes = world.heap().allocate<std::uint64_t>(kThreads * kWords);
  barrier(world.team());
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      std::vector<std::uint64_t> out(kWords), in(kWords);
      for (std::size_t i = 0; i < kTimes; ++i) {
        std::iota(out.begin(), out.end(), i * 10'000 + t);
        const auto there = boxes.on(right(world)).subspan(t * kWords, kWords);
        world.put(there, out);
        world.quiet();
        world.get(std::span(in), there);
        ASSERT_EQ(in, out);
        world.atomic_fetch_add(sums.on(0)[0], std::uint64_t{1});
      }
    });
  for (auto& thread : threads) thread.join();
  barrier(world.team());
  EXPECT_EQ(world.atomic_fetch(sums.on(0)[0]), 2 * kThreads * kTimes);
  barrier(world.team());
}

}  // namespace shoal::test
