// SPDX-License-Identifier: Apache-2.0
// Checks of the order of operations, and of memory that is reached other than by put and get.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

#include "checks/transport/worlds.hpp"
#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/world/neighbours.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

template <typename T>
void check_unsigned_atomics(World& world) {
  constexpr T kMax = std::numeric_limits<T>::max();
  const auto words = world.heap().allocate<T>(4);
  const RemoteSpan<T> there = words.on(right(world));
  barrier(world.team());
  // Each PE alone uses the words of its right neighbour.
  world.atomic_set(there[0], kMax);
  EXPECT_EQ(world.atomic_fetch(there[0]), kMax);
  EXPECT_EQ(world.atomic_fetch_add(there[0], T{3}), kMax);
  EXPECT_EQ(world.atomic_fetch(there[0]), T{2}) << "addition wraps around";
  EXPECT_EQ(world.atomic_fetch_add(there[0], static_cast<T>(0) - T{5}), T{2});
  EXPECT_EQ(world.atomic_fetch(there[0]), kMax - 2) << "and so does subtraction";
  EXPECT_EQ(world.atomic_compare_swap(there[0], kMax, T{1}), kMax - 2);
  EXPECT_EQ(world.atomic_compare_swap(there[0], kMax - 2, kMax / 2 + 1), kMax - 2);
  EXPECT_EQ(world.atomic_swap(there[0], T{0}), kMax / 2 + 1);
  EXPECT_EQ(world.atomic_fetch_or(there[0], kMax), T{0});
  EXPECT_EQ(world.atomic_fetch_xor(there[0], T{1}), kMax);
  EXPECT_EQ(world.atomic_fetch_and(there[0], kMax / 2), kMax - 1);
  EXPECT_EQ(world.get_value(there[0]), kMax / 2 - 1);
  EXPECT_EQ(world.get_value(there[1]), T{0}) << "the word next to it is untouched";
  barrier(world.team());
  // Unsigned variables compare as unsigned: the largest is not below 0.
  set_local(world, words, 2, kMax);
  EXPECT_TRUE(world.test(words.data() + 2, Compare::greater, T{1}));
  EXPECT_FALSE(world.test(words.data() + 2, Compare::less, T{1}));
  // All PEs together wrap around once and end at the sum modulo the width.
  constexpr T kStep = kMax / 4 + 7;
  for (int i = 0; i < 8; ++i) world.atomic_fetch_add(words.on(0)[3], kStep);
  barrier(world.team());
  EXPECT_EQ(world.atomic_fetch(words.on(0)[3]),
            static_cast<T>(kStep * 8 * static_cast<T>(world.n_pes())));
  barrier(world.team());
}

}  // namespace

void check_unsigned_atomics(World& world) {
  check_unsigned_atomics<std::uint32_t>(world);
  check_unsigned_atomics<std::uint64_t>(world);
}

void check_fence(World& world) {
  check_fence_for(world, 1000);
}

void check_fence_for(World& world, std::uint64_t rounds) {
  constexpr std::size_t kCount = 96;
  const auto data = world.heap().allocate<std::uint64_t>(kCount);
  const auto flags =
      world.heap().allocate<std::uint64_t>(2);  // 0: data has arrived, 1: data has been read
  barrier(world.team());
  std::vector<std::uint64_t> out(kCount);
  for (std::uint64_t round = 1; round <= rounds; ++round) {
    std::iota(out.begin(), out.end(), round * 1000);
    world.put_nbi(data.on(right(world)), out);
    world.fence();
    world.put_value(flags.on(right(world))[0], round);
    world.wait_until(flags.data(), Compare::equal, round);
    const auto seen = local(world, data);
    for (std::size_t i = 0; i < kCount; ++i)
      ASSERT_EQ(seen[i], round * 1000 + i) << "round " << round;
    world.signal_set(flags.on(left(world))[1], round);
    world.quiet();  // `out` is free again
    world.wait_until(flags.data() + 1, Compare::equal, round);
  }
  barrier(world.team());
}

void check_put_signal_add(World& world) {
  constexpr std::uint64_t kRounds = 200;
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto me = static_cast<std::size_t>(world.my_pe());
  const auto rows = world.heap().allocate<std::uint64_t>(n * 16);
  const auto arrived = world.heap().allocate<std::uint64_t>(1);
  barrier(world.team());
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    // Each PE writes a row to every PE and adds to the same signal, which counts the rows received.
    const std::vector<std::uint64_t> row(16, round * 1000 + me);
    for (Pe pe = 0; pe < world.n_pes(); ++pe)
      world.put_signal(rows.on(pe).subspan(me * 16, 16), row, arrived.on(pe), SignalOp::add, 1);
    EXPECT_EQ(world.signal_wait_until(arrived.data(), Compare::equal, round * n), round * n);
    const auto seen = local(world, rows);
    for (std::size_t i = 0; i < rows.size(); ++i)
      ASSERT_EQ(seen[i], round * 1000 + i / 16) << "round " << round;
    barrier(world.team());
  }
}

void check_wait_index(World& world) {
  const auto words = world.heap().allocate<std::uint32_t>(8);
  const std::span<const std::uint32_t> all(words.span());
  const std::vector<std::uint32_t> values{1, 2, 3, 4, 5, 6, 7, 8};
  barrier(world.team());
  EXPECT_EQ(world.test_any(all, Compare::equal, values), World::no_index);
  for (const std::size_t index : {5u, 0u, 7u}) {
    barrier(world.team());
    world.put_value(words.on(right(world))[index], values[index]);
    EXPECT_EQ(world.wait_any(all, Compare::equal, values), index);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(world.test_any(all, Compare::equal, values), index);
    EXPECT_EQ(world.test_some(all, Compare::equal, values), std::vector<std::size_t>{index});
    std::vector<int> skip(8, 0);
    skip[index] = 1;
    EXPECT_EQ(world.test_any(all, Compare::equal, values, skip), World::no_index);
    set_local(world, words, index, 0);
  }
  barrier(world.team());
}

void check_peer_pointer(World& world) {
  const auto words = world.heap().allocate<std::uint64_t>(4);
  const auto flag = world.heap().allocate<std::uint64_t>(1);
  EXPECT_EQ(world.heap().peer_pointer(words.data(), world.my_pe()), words.data());
  barrier(world.team());
  const Pe neighbour = right(world);
  const bool near = world.team().translate(neighbour, world.shared_team()).has_value();
  auto* const there =
      static_cast<std::uint64_t*>(world.heap().peer_pointer(words.data() + 1, neighbour));
  EXPECT_EQ(there != nullptr, near);
  if (there != nullptr && !in_gpu_memory(world)) {
    there[0] = 7000 + static_cast<std::uint64_t>(world.my_pe());
    there[1] = 8000;
  } else {
    world.put(words.on(neighbour).subspan(1, 2),
              std::vector<std::uint64_t>{7000u + world.my_pe(), 8000});
    world.quiet();
  }
  world.signal_set(flag.on(neighbour), 1);
  world.wait_until(flag.data(), Compare::equal, 1);
  EXPECT_EQ(local(world, words), (std::vector<std::uint64_t>{
                                     0, 7000u + static_cast<std::uint64_t>(left(world)), 8000, 0}));
  barrier(world.team());
}

void check_registered_buffers(World& world) {
  constexpr std::size_t kCount = 5000;
  const auto box = world.heap().allocate<std::int32_t>(kCount);
  std::vector<std::int32_t> out(kCount), in(kCount, -1);
  std::iota(out.begin(), out.end(), 100 * world.my_pe());
  world.heap().register_buffer(out.data(), kCount * sizeof out[0]);
  world.heap().register_buffer(in.data(), kCount * sizeof in[0]);
  barrier(world.team());
  world.put(box.on(right(world)), out);
  barrier(world.team());
  EXPECT_EQ(local(world, box, 0), 100 * left(world));
  EXPECT_EQ(local(world, box, kCount - 1),
            100 * left(world) + static_cast<std::int32_t>(kCount) - 1);
  world.get(std::span(in), box.on(right(world)));
  EXPECT_EQ(in, out);
  std::fill(in.begin(), in.end(), -1);
  world.get_nbi(std::span(in).subspan(10, 20),
                box.on(right(world)).subspan(10, 20));  // a part of the buffer
  world.quiet();
  EXPECT_EQ(in[9], -1);
  EXPECT_EQ(in[10], out[10]);
  EXPECT_EQ(in[29], out[29]);
  EXPECT_EQ(in[30], -1);
  barrier(world.team());
  world.put_nbi(box.on(left(world)).subspan(1, 4), std::span(out).first(4));
  barrier(world.team());
  EXPECT_EQ(local(world, box, 1), 100 * right(world));
  world.heap().unregister_buffer(in.data());
  world.heap().unregister_buffer(out.data());
  barrier(world.team());
}

}  // namespace shoal::test
