// SPDX-License-Identifier: Apache-2.0
#include "checks/transport/tunings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "checks/world/operations.hpp"
#include "fabric/fabric.hpp"
#include "support/made_up.hpp"
#include "support/rounds.hpp"
#include "team/exchange.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

void sync(World& world) {
  detail::sync(state_of(world.team()), "test");
}

std::size_t most_in_flight(World& world, Pe pe) {
  return state_of(world).fabric().route(pe).most_in_flight();
}

}  // namespace

Settings tuned(Settings settings, const Tuning& tuning) {
  settings.symmetric_size = 32 << 20;
  settings.network_depth = tuning.depth;
  settings.network_chunk = tuning.chunk;
  settings.progress_wait = tuning.wait;
  return settings;
}

void check_chunks(World& world, std::size_t chunk) {
  constexpr std::size_t kBytes = rounds<std::size_t>(5 << 20, 1 << 20) + 123;
  const auto box = world.heap().allocate<std::byte>(kBytes);
  std::vector<std::byte> mine(kBytes), back(kBytes);
  const Pe other = 1 - world.my_pe();
  std::uint64_t seed = 1;
  for (const std::size_t bytes :
       {std::size_t{5}, std::size_t{4096}, chunk - 1, chunk + 1, kBytes - 3}) {
    if (bytes > kBytes - 3) continue;
    ++seed;
    fill(mine.data(), bytes, seed * 1000 + static_cast<std::uint64_t>(world.my_pe()));
    world.put(box.on(other).subspan(3, bytes), std::span<const std::byte>(mine.data(), bytes));
    world.quiet();
    sync(world);
    expect(holds(box.data() + 3, bytes, seed * 1000 + static_cast<std::uint64_t>(other)),
           "put is whole");
    world.get(std::span(back.data(), bytes), box.on(other).subspan(3, bytes));
    expect(std::memcmp(back.data(), mine.data(), bytes) == 0, "get is whole");
    sync(world);
  }
}

void check_many_requests(World& world, std::int64_t depth_setting) {
  constexpr std::size_t kCount = rounds(3000, 600), kBytes = 96;
  const auto box = world.heap().allocate<std::byte>(kCount * kBytes);
  const auto words = world.heap().allocate<std::uint64_t>(kCount);
  const Pe other = 1 - world.my_pe();
  std::vector<std::byte> mine(kCount * kBytes);
  fill(mine.data(), mine.size(), static_cast<std::uint64_t>(world.my_pe()));
  for (std::size_t i = 0; i < kCount; ++i) {
    world.put_nbi(box.on(other).subspan(i * kBytes, kBytes),
                  std::span<const std::byte>(mine.data() + i * kBytes, kBytes));
    world.put_value(words.on(other)[i], i * 3 + 1);
    world.atomic_fetch_add(words.on(other)[i], std::uint64_t{1});
  }
  world.quiet();
  sync(world);
  expect(holds(box.data(), mine.size(), static_cast<std::uint64_t>(other)), "data");
  for (std::size_t i = 0; i < kCount; ++i)
    expect(words[i] == i * 3 + 2, fmt::format("word {} is {}", i, words[i]));
  // Both ways at once, from the heap into the heap.
  const auto copy = world.heap().allocate<std::byte>(kCount * kBytes);
  for (std::size_t i = 0; i < kCount; ++i)
    world.get_nbi(std::span(copy.data() + i * kBytes, kBytes),
                  box.on(other).subspan(i * kBytes, kBytes));
  world.quiet();
  expect(std::memcmp(copy.data(), mine.data(), mine.size()) == 0, "what came back");
  const std::size_t most = most_in_flight(world, other),
                    depth = static_cast<std::size_t>(depth_setting);
  expect(most <= depth && most >= std::min<std::size_t>(depth, 4),
         fmt::format("{} were in flight at most", most));
  sync(world);
}

void check_signals_after_data(World& world, int times) {
  constexpr std::size_t kSizes[] = {8, 24, 200, 1024, 5000};
  const auto box = world.heap().allocate<std::byte>(8192);
  const auto flag = world.heap().allocate<std::uint64_t>(2);
  std::vector<std::byte> data(8192);
  const Pe me = world.my_pe();
  for (int i = 1; i <= times; ++i) {
    const auto number = static_cast<std::uint64_t>(i);
    const std::size_t bytes = kSizes[mix(number) % std::size(kSizes)];
    if (me == i % 2) {
      fill(data.data(), bytes, number);
      const std::span<const std::byte> source(data.data(), bytes);
      const auto target = box.on(1 - me).subspan(0, bytes);
      switch (i / 2 % 3) {
        case 0:
          world.put_signal(target, source, flag.on(1 - me)[0], SignalOp::set, number);
          break;
        case 1:
          world.put(target, source);
          world.signal_set(flag.on(1 - me)[0], number);
          break;
        default:
          world.put_nbi(target, source);
          world.fence();
          world.put_value(flag.on(1 - me)[0], number);
          world.quiet();
      }
    } else {
      world.signal_wait_until(&flag[0], Compare::equal, number);
      expect(holds(box.data(), bytes, number),
             fmt::format("round {}: the signal came before {} bytes", i, bytes));
    }
  }
  sync(world);
}

void check_fence_between_puts(World& world) {
  constexpr std::size_t kWords = 512;
  const auto first = world.heap().allocate<std::uint64_t>(kWords);
  const auto second = world.heap().allocate<std::uint64_t>(kWords);
  std::vector<std::uint64_t> data(kWords);
  const auto last = [](const SymmetricArray<std::uint64_t>& array) {
    return std::atomic_ref(array.data()[kWords - 1]).load(std::memory_order_acquire);
  };
  constexpr std::uint64_t kRounds = 500;
  if (world.my_pe() == 0) {
    for (std::uint64_t i = 1; i <= kRounds; ++i) {
      std::fill(data.begin(), data.end(), i);
      world.put_nbi(first.on(1), std::span<const std::uint64_t>(data));
      world.fence();
      world.put(second.on(1), std::span<const std::uint64_t>(data));
      world.quiet();
    }
  } else {
    for (std::uint64_t seen = 0; seen < kRounds;) {
      seen = std::max(seen, last(second));
      expect(last(first) >= seen, "the second put was seen before the first");
      std::this_thread::yield();
    }
  }
  sync(world);
}

}  // namespace shoal::test
