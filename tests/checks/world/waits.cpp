// SPDX-License-Identifier: Apache-2.0
#include "checks/world/waits.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <span>
#include <thread>

#include "fabric/fabric.hpp"
#include "pe/memory.hpp"
#include "shoal/collective.hpp"
#include "team/team_state.hpp"
#include "world/state.hpp"

namespace shoal::test {

const WaitPoint& wait_point_of(const World& world, Pe pe) {
  const auto& state = state_of(world);
  return *reinterpret_cast<const WaitPoint*>(state.fabric().host_base(pe) +
                                             state.memory().layout().wait_point());
}

void await_block(const WaitPoint& point) {
  while (point.awaited() == 0) std::this_thread::yield();
}

void check_writes_wake(World& world, const WaitPoint* of_pe_1) {
  constexpr std::size_t kBytes = 4096;
  const auto words = world.heap().allocate<std::uint64_t>(kBytes / sizeof(std::uint64_t));
  std::array<std::uint64_t, kBytes / sizeof(std::uint64_t)> source;
  const auto word = words.on(1).subspan(0, 1);
  // Not polled: only single words are stored whole.
  constexpr std::size_t kOthers = 64;
  const auto others = words.on(1).subspan(200, kOthers);
  const auto value = [&](std::uint64_t round) {
    source.fill(round);
    return std::span<const std::uint64_t>(source);
  };
  const std::function<void(std::uint64_t)> writes[] = {
      [&](std::uint64_t round) { world.put_value(word[0], round); },
      [&](std::uint64_t round) { world.put(others, value(round).first(kOthers)); },
      [&](std::uint64_t round) { world.put_nbi(others, value(round).first(kOthers)); },
      [&](std::uint64_t round) { world.signal_set(word, round); },
      [&](std::uint64_t) { world.signal_add(word, 1); },
      [&](std::uint64_t) { world.atomic_fetch_add(word, 1); },
      [&](std::uint64_t round) { world.atomic_set(word, round); },
      [&](std::uint64_t round) {
        world.put_signal(words.on(1).subspan(8, 8), value(round).first(8), word, SignalOp::set,
                         round);
      },
  };
  constexpr std::uint64_t kEnd = 1'000'000;
  std::uint64_t round = 0;
  if (world.my_pe() == 1) {
    while (world.signal_fetch(words.data()) < kEnd) {
      world.wait_until(words.data(), Compare::greater_equal, ++round);
      // PE 0 looks at the count before PE 1 blocks again.
      world.wait_until(words.data() + 100, Compare::greater_equal, round);
    }
  } else if (world.my_pe() == 0) {
    const WaitPoint& waiter = of_pe_1 != nullptr ? *of_pe_1 : wait_point_of(world, 1);
    for (std::size_t i = 0; i < std::size(writes); ++i) {
      // PE 1 may look by itself between a write and its wake, if this PE loses its core there.
      constexpr int kAttempts = 100;
      bool woken = false;
      for (int attempt = 0; attempt < kAttempts && !woken; ++attempt) {
        await_block(waiter);
        const std::uint64_t before = waiter.wakes();
        writes[i](++round);
        woken = waiter.wakes() > before;
        world.put_value(word, round);
        world.put_value(words.on(1)[100], round);
      }
      EXPECT_TRUE(woken) << "write " << i;
    }
    world.put_value(words.on(1)[100], kEnd);
    world.signal_set(word, kEnd);
  }
  barrier(world.team());
}

void check_stores_are_seen(World& world) {
  const auto words = world.heap().allocate<std::uint64_t>(8);
  if (world.my_pe() == 1) {
    world.wait_until(words.data(), Compare::equal, 7);
  } else if (world.my_pe() == 0) {
    const WaitPoint& waiter = wait_point_of(world, 1);
    await_block(waiter);
    const std::uint64_t before = waiter.wakes();
    auto& word = *reinterpret_cast<std::uint64_t*>(state_of(world).fabric().peer_base(1) +
                                                   world.heap().offset_of(words.data()));
    std::atomic_ref(word).store(7, std::memory_order_release);
    EXPECT_EQ(waiter.wakes(), before);
  }
  barrier(world.team());
}

}  // namespace shoal::test
