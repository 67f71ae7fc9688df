// SPDX-License-Identifier: Apache-2.0
#include "checks/world/operations.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <numeric>
#include <string_view>

#include "fabric/fabric.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"
#include "support/world/neighbours.hpp"
#include "support/world/world_local.hpp"
#include "team/exchange.hpp"

namespace shoal::test {
namespace {

void sync(World& world) {
  detail::sync(state_of(world.team()), "test");
}

template <typename T>
void check_atomic_type(World& world) {
  const auto one = world.heap().allocate<T>(8);
  sync(world);
  const Pe target = 0;
  const auto n = static_cast<T>(world.n_pes());
  constexpr int kTimes = 100;
  for (int i = 0; i < kTimes; ++i) world.atomic_fetch_add(one.on(target)[0], T{1});
  world.atomic_fetch_or(one.on(target)[1], static_cast<T>(T{1} << world.my_pe()));
  world.atomic_fetch_xor(one.on(target)[2], static_cast<T>(T{1} << world.my_pe()));
  // A compare-and-swap loop that loses no update.
  for (int i = 0; i < kTimes; ++i)
    for (T seen = world.atomic_fetch(one.on(target)[3]);;) {
      const T before = world.atomic_compare_swap(one.on(target)[3], seen, static_cast<T>(seen + 2));
      if (before == seen) break;
      seen = before;
    }
  sync(world);
  const T mask = static_cast<T>((T{1} << world.n_pes()) - 1);
  EXPECT_EQ(world.atomic_fetch(one.on(target)[0]), static_cast<T>(n * kTimes));
  EXPECT_EQ(world.atomic_fetch(one.on(target)[1]), mask);
  EXPECT_EQ(world.atomic_fetch(one.on(target)[2]), mask);
  EXPECT_EQ(world.atomic_fetch(one.on(target)[3]), static_cast<T>(2 * n * kTimes));
  sync(world);
  world.atomic_fetch_and(one.on(target)[1], static_cast<T>(~(T{1} << world.my_pe())));
  world.atomic_set(one.on(right(world))[4], static_cast<T>(world.my_pe() + 7));
  sync(world);
  EXPECT_EQ(world.atomic_fetch(one.on(target)[1]), T{0});
  EXPECT_EQ(world.atomic_swap(one.on(world.my_pe())[4], T{-1}), static_cast<T>(left(world) + 7));
  EXPECT_EQ(local(world, one, 4), T{-1});
  // Swapping tokens around loses none.
  sync(world);
  const T mine = world.atomic_swap(one.on(target)[5], static_cast<T>(world.my_pe() + 1));
  world.atomic_fetch_add(one.on(target)[6], mine);
  sync(world);
  EXPECT_EQ(world.atomic_fetch(one.on(target)[6]) + world.atomic_fetch(one.on(target)[5]),
            n * (n + 1) / 2);
  sync(world);
}

void check_split(const Team& parent, Pe start, Pe stride, Pe count) {
  const Team team = parent.split_strided(start, stride, count);
  const Pe distance = parent.my_pe() - start;
  const bool in_team =
      distance % stride == 0 && distance / stride >= 0 && distance / stride < count;
  ASSERT_EQ(team.valid(), in_team) << start << " " << stride << " " << count;
  if (!in_team) {
    EXPECT_EQ(team.my_pe(), -1);
    EXPECT_EQ(team.size(), 0);
    EXPECT_EQ(team.index(), -1);
    return;
  }
  EXPECT_EQ(team.size(), count);
  EXPECT_EQ(team.my_pe(), distance / stride);
  for (Pe i = 0; i < count; ++i) {
    EXPECT_EQ(team.world_pe(i), parent.world_pe(start + i * stride));
    EXPECT_EQ(team.translate(i, parent), start + i * stride);
  }
  for (Pe pe = 0; pe < parent.size(); ++pe) {
    const Pe d = pe - start;
    const bool there = d % stride == 0 && d / stride >= 0 && d / stride < count;
    EXPECT_EQ(parent.translate(pe, team), there ? std::optional<Pe>(d / stride) : std::nullopt);
  }
  const Pe mine = parent.my_pe();
  const auto all = exchange_bytes(team, std::as_bytes(std::span(&mine, 1)));
  for (Pe i = 0; i < count; ++i) {
    Pe theirs = -1;
    std::memcpy(&theirs, all.data() + static_cast<std::size_t>(i) * sizeof theirs, sizeof theirs);
    EXPECT_EQ(theirs, start + i * stride);
  }
  Team(team).free();
  expect_error(Code::closed, "was destroyed", [&] { state_of(team); });
}

}  // namespace

Settings world_settings() {
  Settings settings;
  settings.symmetric_size = 8 << 20;
  settings.timeout = std::chrono::seconds(20);
  settings.bootstrap_timeout = std::chrono::seconds(20);
  return settings;
}

void check_identity(World& world) {
  const Team all = world.team();
  EXPECT_EQ(all.my_pe(), world.my_pe());
  EXPECT_EQ(all.size(), world.n_pes());
  EXPECT_EQ(world.n_pes() % world.pes_per_node(), 0);
  EXPECT_LT(world.my_pe_on_node(), world.pes_per_node());
  EXPECT_EQ(world.node_team().size(), world.pes_per_node());
  EXPECT_EQ(world.node_team().my_pe(), world.my_pe_on_node());
  EXPECT_EQ(world.same_index_team().size(), world.n_pes() / world.pes_per_node());
  EXPECT_EQ(world.self_team().size(), 1);
  EXPECT_EQ(world.self_team().world_pe(0), world.my_pe());
  const Team shared = world.shared_team();
  for (Pe pe = 0; pe < world.n_pes(); ++pe) {
    const bool near = world.team().translate(pe, shared).has_value();
    EXPECT_EQ(world.heap().peer_pointer(world.heap().base(), pe) != nullptr, near);
    EXPECT_EQ(state_of(world).fabric().peer_base(pe) != nullptr, near);
    EXPECT_EQ(world.describe_transport(pe).find("load-store") != std::string::npos, near)
        << world.describe_transport(pe);
    expect_parts(world.describe_transport(pe), {"put get atomics signals"});
    const std::string own = in_gpu_memory(world) ? "; control self" : "self: ";
    EXPECT_EQ(world.describe_transport(pe).find(own) != std::string::npos, pe == world.my_pe());
  }
  std::vector<std::string> names;
  for (const InitPhase& phase : world.init_phases()) names.push_back(phase.name);
  std::vector<std::string> expected{"settings",   "bootstrap",    "identity", "heap",
                                    "transports", "connectivity", "teams",    "final barrier"};
  if (in_gpu_memory(world)) expected.insert(expected.begin() + 3, "device");
  bool network = false;  // some pair, which need not be one of this PE's, needs one
  for (const std::string& name : names) network |= name == "network";
  if (network)
    expected.insert(expected.end() - 2, {"NIC choice", "network", "network links", "network map"});
  EXPECT_EQ(names, expected);
  std::chrono::nanoseconds sum{};
  for (const InitPhase& phase : world.init_phases()) {
    EXPECT_GE(phase.duration.count(), 0) << phase.name;
    sum += phase.duration;
  }
  EXPECT_GT(sum.count(), 0);
}

void check_rma(World& world) {
  for (const std::size_t count :
       {std::size_t{1}, std::size_t{2}, std::size_t{3}, std::size_t{7168}, std::size_t{200'000}}) {
    const auto box = world.heap().allocate<std::int32_t>(count);
    std::vector<std::int32_t> out(count);
    std::iota(out.begin(), out.end(), world.my_pe() * 1000);
    sync(world);
    world.put(box.on(right(world)), out);
    world.quiet();
    sync(world);
    EXPECT_EQ(local(world, box, 0), left(world) * 1000);
    EXPECT_EQ(local(world, box, count - 1),
              left(world) * 1000 + static_cast<std::int32_t>(count) - 1);

    std::vector<std::int32_t> in(count);
    world.get(std::span(in), box.on(right(world)));  // what this PE wrote there
    EXPECT_EQ(in, out);
    std::fill(in.begin(), in.end(), 0);
    world.get_nbi(std::span(in), box.on(right(world)));
    world.quiet();
    EXPECT_EQ(in, out);
    sync(world);

    for (auto& value : out) value = -value;
    world.put_nbi(box.on(left(world)), out);
    world.fence();
    world.quiet();
    sync(world);
    EXPECT_EQ(local(world, box, count - 1),
              -(right(world) * 1000 + static_cast<std::int32_t>(count) - 1));
    sync(world);
    world.put_value(box.on(right(world))[count - 1], 42 + world.my_pe());
    sync(world);
    EXPECT_EQ(world.get_value(box.on(world.my_pe())[count - 1]), 42 + left(world));
    sync(world);
  }
}

void check_strided(World& world) {
  constexpr std::size_t kCount = 10;
  const auto box = world.heap().allocate<std::int16_t>(40);
  std::vector<std::int16_t> out(40);
  std::iota(out.begin(), out.end(), static_cast<std::int16_t>(100 * world.my_pe()));
  sync(world);
  world.put_strided(box.on(right(world)).subspan(1, 37), 4, out.data(), 2, kCount);
  sync(world);
  const auto mine = local(world, box);
  for (std::size_t i = 0; i < box.size(); ++i) {
    const bool written = i >= 1 && (i - 1) % 4 == 0 && (i - 1) / 4 < kCount;
    EXPECT_EQ(mine[i], written ? 100 * left(world) + static_cast<int>((i - 1) / 4) * 2 : 0) << i;
  }
  std::vector<std::int16_t> in(30, -1);
  world.get_strided(in.data(), 3, box.on(world.my_pe()).subspan(1, 37), 4, kCount);
  for (std::size_t i = 0; i < in.size(); ++i)
    EXPECT_EQ(in[i], i % 3 == 0 ? 100 * left(world) + static_cast<int>(i / 3) * 2 : -1) << i;
  expect_error(Code::invalid_argument, "leave the remote span",
               [&] { world.put_strided(box.on(0), 4, out.data(), 1, 11); });
  expect_error(Code::invalid_argument, "at least 1",
               [&] { world.put_strided(box.on(0), 0, out.data(), 1, 2); });
  sync(world);
}

void check_atomics(World& world) {
  check_atomic_type<std::int32_t>(world);
  check_atomic_type<std::int64_t>(world);
  const auto box = world.heap().allocate<std::uint32_t>(4);
  expect_error(Code::invalid_argument, "not a multiple", [&] {
    world.atomic_fetch(RemoteSpan<std::uint64_t>{{0, box.on(0)[1].address.offset}, 1});
  });
  sync(world);
}

void check_signals(World& world) {
  constexpr int kRounds = 200;
  const auto data = world.heap().allocate<std::uint64_t>(64);
  const auto flags = world.heap().allocate<std::uint64_t>(2);
  sync(world);
  std::vector<std::uint64_t> out(64);
  // A token goes around the ring; its holder sees the data that came with it.
  for (std::uint64_t round = 1; round <= kRounds; ++round) {
    if (world.my_pe() != 0) {
      EXPECT_EQ(world.signal_wait_until(flags.data(), Compare::greater_equal, round), round);
    }
    for (const std::uint64_t value : local(world, data))
      EXPECT_EQ(value, world.my_pe() == 0 ? round - 1 : round);
    std::fill(out.begin(), out.end(), round);
    world.put_signal(data.on(right(world)), out, flags.on(right(world)), SignalOp::set, round);
    if (world.my_pe() == 0) world.signal_wait_until(flags.data(), Compare::equal, round);
  }
  world.signal_add(flags.on(0)[1], 5);
  sync(world);
  if (world.my_pe() == 0) {
    EXPECT_EQ(world.signal_fetch(flags.data() + 1), 5u * static_cast<std::uint64_t>(world.n_pes()));
  }
  sync(world);
}

void check_waits(World& world) {
  const auto n = static_cast<std::size_t>(world.n_pes());
  const auto words = world.heap().allocate<std::int64_t>(n);
  const std::vector<std::int64_t> zero{0};
  std::vector<int> all_skipped(n, 1);
  EXPECT_EQ(world.wait_any(std::span<const std::int64_t>(words.span()), Compare::equal, zero,
                           all_skipped),
            World::no_index);
  EXPECT_TRUE(
      world
          .wait_some(std::span<const std::int64_t>(words.span()), Compare::equal, zero, all_skipped)
          .empty());
  world.wait_all(std::span<const std::int64_t>(words.span()), Compare::equal, zero);
  EXPECT_FALSE(world.test_all(std::span<const std::int64_t>(words.span()), Compare::less, zero));
  EXPECT_EQ(world.test_any(std::span<const std::int64_t>(words.span()), Compare::greater, zero),
            World::no_index);
  // wait_any starts at another variable each time: it returns each of those that are ready.
  std::vector<std::size_t> seen;
  for (std::size_t i = 0; i < n; ++i)
    seen.push_back(
        world.wait_any(std::span<const std::int64_t>(words.span()), Compare::equal, zero));
  std::sort(seen.begin(), seen.end());
  for (std::size_t i = 0; i < n; ++i) EXPECT_EQ(seen[i], i);
  sync(world);

  for (Pe pe = 0; pe < world.n_pes(); ++pe)
    world.put_value(words.on(pe)[static_cast<std::size_t>(world.my_pe())],
                    -static_cast<std::int64_t>(world.my_pe()) - 1);
  std::vector<std::int64_t> expected(n);
  for (std::size_t i = 0; i < n; ++i) expected[i] = -static_cast<std::int64_t>(i) - 1;
  std::vector<int> done(n, 0);
  for (std::size_t left_over = n; left_over > 0;) {
    const auto some = world.wait_some(std::span<const std::int64_t>(words.span()), Compare::equal,
                                      expected, done);
    ASSERT_FALSE(some.empty());
    for (const std::size_t i : some) {
      EXPECT_EQ(done[i], 0);
      done[i] = 1;
    }
    left_over -= some.size();
  }
  world.wait_all(std::span<const std::int64_t>(words.span()), Compare::less,
                 zero);  // signed: they are negative
  EXPECT_TRUE(world.test(words.data(), Compare::not_equal, 0));
  EXPECT_EQ(world
                .test_some(std::span<const std::int64_t>(words.span()), Compare::less_equal,
                           std::vector<std::int64_t>{-1})
                .size(),
            n);
  expect_error(Code::invalid_argument, "2 values for", [&] {
    world.test_all(std::span<const std::int64_t>(words.span()).first(1), Compare::equal,
                   expected = {1, 2});
  });
  const std::int64_t elsewhere = 0;
  expect_error(Code::invalid_argument, "symmetric heap",
               [&] { world.wait_until(&elsewhere, Compare::equal, 0); });
  sync(world);
}

void check_bounds(World& world) {
  const std::size_t size = world.heap().size();
  std::byte byte{};
  world.get_bytes(&byte, {world.n_pes() - 1, size - 1}, 1);
  const RemoteAddress outside[] = {
      {0, size}, {0, size - 1}, {0, SIZE_MAX}, {-1, 0}, {world.n_pes(), 0}};
  for (const RemoteAddress address : outside) {
    const char* text = address.pe == 0 ? "leave the symmetric heap" : "the world has PEs 0 to";
    std::byte two[2] = {};
    expect_error(Code::invalid_argument, text, [&] { world.put_bytes(address, two, 2); });
    expect_error(Code::invalid_argument, text, [&] { world.get_bytes(two, address, 2); });
    expect_error(Code::invalid_argument, text, [&] { world.put_bytes_nbi(address, two, 2); });
    expect_error(Code::invalid_argument, text, [&] { world.get_bytes_nbi(two, address, 2); });
    expect_error(Code::invalid_argument, text,
                 [&] { world.put_strided_bytes(address, 1, two, 1, 1, 2); });
    expect_error(Code::invalid_argument, text,
                 [&] { world.put_signal_bytes(address, two, 2, {{0, 0}, 1}, SignalOp::set, 1); });
  }
  expect_error(Code::invalid_argument, "is null", [&] { world.put_bytes({0, 0}, nullptr, 1); });
  expect_error(Code::invalid_argument, "they must be equal",
               [&] { world.put(RemoteSpan<int>{{0, 0}, 2}, std::vector<int>{1, 2, 3}); });
  expect_error(Code::invalid_argument, "leave the symmetric heap",
               [&] { world.signal_set(RemoteSpan<std::uint64_t>{{0, size}, 1}, 1); });
  expect_error(Code::invalid_argument, "not a multiple",
               [&] { world.signal_set(RemoteSpan<std::uint64_t>{{0, 4}, 1}, 1); });
  world.put_bytes({0, size}, nullptr, 0);  // no bytes at the very end: nothing to do
  sync(world);
}

void check_heap(World& world) {
  SymmetricHeap& heap = world.heap();
  heap.free(heap.malloc(1));  // arrays that earlier checks have dropped return now
  const std::size_t before = heap.used();
  void* const first = heap.malloc(1000);
  void* const aligned = heap.align(std::size_t{1} << 20, 10);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first) % 128, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(aligned) % (std::size_t{1} << 20), 0u);
  EXPECT_TRUE(heap.contains(first, 1000));
  EXPECT_FALSE(heap.contains(heap.base() + heap.size()));
  EXPECT_FALSE(heap.contains(&world));
  EXPECT_EQ(heap.malloc(0), nullptr);
  heap.free(nullptr);

  // calloc zeroes memory that was used before, on every PE, before any PE writes there.
  const RemoteAddress there{world.my_pe(), heap.offset_of(first)};
  std::vector<unsigned char> bytes(1000, 0xff);
  world.put_bytes(there, bytes.data(), bytes.size());
  heap.free(first);
  auto* const zeroed = static_cast<unsigned char*>(heap.calloc(10, 100));
  EXPECT_EQ(static_cast<void*>(zeroed), first);
  world.get_bytes(bytes.data(), there, bytes.size());
  EXPECT_TRUE(
      std::all_of(bytes.begin(), bytes.end(), [](unsigned char value) { return value == 0; }));
  EXPECT_GT(heap.used(), before);
  heap.free(zeroed);
  heap.free(aligned);
  EXPECT_EQ(heap.used(), before);

  expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE", [&] { heap.malloc(heap.size() + 1); });
  expect_error(Code::exhausted, "SHOAL_SYMMETRIC_SIZE", [&] { heap.calloc(SIZE_MAX, 16); });
  expect_error(Code::invalid_argument, "powers of two", [&] { heap.align(3, 16); });
  int elsewhere = 0;
  expect_error(Code::invalid_argument, "did not return", [&] { heap.free(&elsewhere); });
  expect_error(Code::invalid_argument, "did not return", [&] { heap.free(heap.base() + 128); });
  expect_error(Code::mismatch, "malloc of 100 bytes",
               [&] { heap.malloc(world.my_pe() == 0 ? 100 : 200); });
  EXPECT_EQ(heap.used(), before);

  std::vector<int> buffer(100);
  heap.register_buffer(buffer.data(), 100);
  expect_error(Code::invalid_argument, "overlaps",
               [&] { heap.register_buffer(buffer.data() + 1, 8); });
  expect_error(Code::invalid_argument, "needs no registration",
               [&] { heap.register_buffer(heap.base(), 8); });
  heap.unregister_buffer(buffer.data());
  expect_error(Code::invalid_argument, "no registered buffer",
               [&] { heap.unregister_buffer(buffer.data()); });
  {
    const auto array = heap.allocate<double>(1000);
    EXPECT_EQ(heap.offset_of(array.data()), array.on(0).address.offset);
  }
  heap.free(heap.malloc(8));  // releases the array
  EXPECT_EQ(heap.used(), before);
}

void check_exchange(World& world) {
  detail::TeamState& all = state_of(world.team());
  detail::TeamState& node = state_of(world.node_team());
  for (std::uint64_t round = 0; round < 100; ++round) {
    // Blobs of different lengths, with syncs and operations of an overlapping team in between, and
    // without waiting for the slowest PE.
    std::vector<std::uint64_t> mine(1 + round % 64,
                                    round * 1000 + static_cast<std::uint64_t>(world.my_pe()));
    const auto blobs = detail::exchange(all, mine.data(), mine.size() * sizeof mine[0], "test");
    ASSERT_EQ(blobs.size(), all.size() * mine.size() * sizeof mine[0]);
    for (std::size_t pe = 0; pe < all.size(); ++pe) {
      std::uint64_t last = 0;
      std::memcpy(&last, blobs.data() + ((pe + 1) * mine.size() - 1) * sizeof last, sizeof last);
      ASSERT_EQ(last, round * 1000 + pe);
    }
    if (round % 3 == 0) detail::sync(all, "test");
    if (round % 5 == 0) detail::sync(node, "test");
    const bool now = round % 7 == 0;
    EXPECT_TRUE(!now || detail::exchange(node, nullptr, 0, "test").empty());
  }
  if (world.n_pes() == 1) return;
  expect_error(Code::mismatch, "differs among its PEs",
               [&] { detail::exchange(all, "abcdefgh", world.my_pe() == 0 ? 4 : 8, "test"); });
}

/// Disjoint sets in one call: each PE passes the numbers of its own set.
void check_disjoint_splits(World& world) {
  const Team all = world.team();
  const Pe n = all.size(), me = all.my_pe();
  for (Pe stride = 1; stride <= n; ++stride) {
    const Pe count = (n - me % stride + stride - 1) / stride;
    check_split(all, me % stride, stride, count);
  }
  // A rail in reverse order exists next to teams of one PE.
  const Pe rail = (n + 1) / 2;
  check_split(all, me % 2 == 0 ? 2 * (rail - 1) : me, me % 2 == 0 ? -2 : 1, me % 2 == 0 ? rail : 1);
  // The last PE is outside its own set, whatever that is.
  constexpr Pe kMost = std::numeric_limits<Pe>::max(), kLeast = std::numeric_limits<Pe>::min();
  const std::array<Pe, 3> outside[] = {{0, 1, n - 1},        {0, 0, 0},      {n, 1, 1},
                                       {-1, -1, kMost},      {kMost, 2, 7},  {0, 0, 2},
                                       {kLeast, kLeast, 99}, {n - 1, 1, -5}, {kMost, kMost, kMost}};
  for (const auto& [start, stride, count] : outside) {
    Team team =
        me == n - 1 ? all.split_strided(start, stride, count) : all.split_strided(0, 1, n - 1);
    EXPECT_EQ(team.valid(), me != n - 1);
    if (team.valid()) team.free();
  }
  // All PEs are outside.
  if (n > 2) EXPECT_FALSE(all.split_strided((me + 1) % n, 1, 1).valid());

  // Sets that overlap, and PEs of one set that pass other numbers: an error on all PEs.
  const auto differs = [&](std::string_view message, Pe start, Pe stride, Pe count) {
    expect_error(Code::mismatch, message, [&] {
      if (me == n - 1)
        all.split_strided(start, stride, count);
      else
        all.split_strided(0, 1, n);
    });
  };
  const std::string first = fmt::format("split_strided(start 0, stride 1, count {})", n);
  differs(fmt::format("PE 0 passes {}, a set that contains PE {}, which passes split_strided(start "
                      "{}, stride 1, count 1)",
                      first, n - 1, n - 1),
          n - 1, 1, 1);
  differs("split it differently: PE 0 passes", n - 1, -1, n);  // the same set in another order
  differs("split it differently: PE 0 passes", 0, 0, 0);
  differs("split it differently: PE 0 passes", 0, 1, n - 1);
  expect_error(Code::mismatch, "split it differently", [&] {
    if (me == 0)
      all.split_strided(0, 1, n);
    else
      all.split_2d(n);
  });
  // A member whose set leaves the team.
  expect_error(Code::invalid_argument, fmt::format("on PE {}, of a team", n - 1),
               [&] { all.split_strided(me, 1, me == n - 1 ? 2 : 1); });
  check_split(all, 0, 1, n);  // nothing has changed
}

void check_teams(World& world) {
  const Team all = world.team();
  const Pe n = all.size();
  check_split(all, 0, 1, n);
  check_split(all, n - 1, -1, n);
  check_split(all, 0, 2, (n + 1) / 2);
  check_split(all, 1, 3, (n - 2) / 3 + 1);
  expect_error(Code::invalid_argument, "must lie in", [&] { all.split_strided(0, 1, n + 1); });
  expect_error(Code::invalid_argument, "stride not 0", [&] { all.split_strided(0, 0, 1); });
  check_disjoint_splits(world);
  expect_error(Code::invalid_argument, "is predefined", [&] { world.team().free(); });
  expect_error(Code::invalid_argument, "is invalid", [] { Team().world_pe(0); });
  expect_error(Code::invalid_argument, "it has PEs 0 to", [&] { all.world_pe(n); });

  for (const Pe x_range : {1, 2, 3, n, n + 5}) {
    auto [row, column] = all.split_2d(x_range);
    const Pe width = std::min(x_range, n);
    EXPECT_EQ(row.my_pe(), all.my_pe() % width);
    EXPECT_EQ(column.my_pe(), all.my_pe() / width);
    EXPECT_EQ(row.size(), std::min(width, n - all.my_pe() / width * width));
    EXPECT_EQ(column.size(), (n - all.my_pe() % width + width - 1) / width);
    EXPECT_EQ(row.world_pe(0), all.my_pe() / width * width);
    EXPECT_EQ(column.world_pe(0), all.my_pe() % width);
    // Overlapping teams in use at the same time.
    for (int i = 0; i < 20; ++i) {
      detail::sync(state_of(row), "row");
      const Pe mine = all.my_pe();
      const auto blobs = detail::exchange(state_of(column), &mine, sizeof mine, "column");
      for (Pe pe = 0; pe < column.size(); ++pe) {
        Pe theirs = -1;
        std::memcpy(&theirs, blobs.data() + static_cast<std::size_t>(pe) * sizeof theirs,
                    sizeof theirs);
        EXPECT_EQ(theirs, column.world_pe(pe));
      }
    }
    column.free();
    row.free();
  }
  expect_error(Code::invalid_argument, "x_range is 0", [&] { all.split_2d(0); });

  // All PEs agree on exhaustion, and nothing is lost.
  std::vector<Team> teams;
  const auto fill = [&] {
    for (;;) teams.push_back(all.split_strided(0, 1, n));
  };
  expect_error(Code::exhausted, "SHOAL_MAX_TEAMS", fill);
  EXPECT_EQ(static_cast<std::int64_t>(teams.size()), world.settings().max_teams - 5);
  teams.back().free();
  teams.pop_back();
  if (n > 1) expect_error(Code::exhausted, "SHOAL_MAX_TEAMS", [&] { all.split_2d(n); });
  teams.push_back(all.split_strided(0, 1, n));
  for (Team& team : teams) team.free();
}

void check_make_team(World& world) {
  const auto shared = world.heap().allocate<std::uint64_t>(2);
  if (world.my_pe() == 0) {
    const std::vector<std::uint64_t> ids{world.make_team_id(), world.make_team_id()};
    for (Pe pe = 0; pe < world.n_pes(); ++pe) world.put(shared.on(pe), ids);
  }
  sync(world);
  const Pe n = world.n_pes();
  const std::vector<std::uint64_t> id = local(world, shared);
  for (int round = 0; round < 20; ++round) {
    // In reverse order, with the same id each time.
    Team team = world.make_team(id[0], n, n - 1 - world.my_pe());
    EXPECT_EQ(team.my_pe(), n - 1 - world.my_pe());
    EXPECT_EQ(team.world_pe(0), n - 1);
    detail::sync(state_of(team), "test");
    team.free();
    // Only some PEs take part; the others are ahead in the next round.
    if (world.my_pe() % 2 == 0) {
      Team even = world.make_team(id[1], (n + 1) / 2, world.my_pe() / 2);
      EXPECT_EQ(even.size(), (n + 1) / 2);
      EXPECT_EQ(even.world_pe(even.size() - 1), (n - 1) / 2 * 2);
      even.free();
    }
  }
  expect_error(Code::invalid_argument, "taken twice", [&] { world.make_team(id[0], n, 0); });
  expect_error(Code::invalid_argument, "allowed: 0 to",
               [&] { world.make_team(id[0], n, world.my_pe() == 0 ? n : world.my_pe()); });
  expect_error(Code::invalid_argument, "allowed: 1 to", [&] { world.make_team(id[0], n + 1, 0); });
  sync(world);
  if (n > 2) {  // of two, the one that wants a team of one PE has it at once
    expect_error(Code::mismatch, "different sizes",
                 [&] { world.make_team(id[1], world.my_pe() == 0 ? n - 1 : n, world.my_pe()); });
  }
  sync(world);
}

void check_everything(World& world) {
  check_identity(world);
  check_rma(world);
  check_strided(world);
  check_atomics(world);
  check_signals(world);
  check_waits(world);
  check_bounds(world);
  check_heap(world);
  check_exchange(world);
  check_teams(world);
  check_make_team(world);
  check_fence(world);
  check_put_signal_add(world);
  check_unsigned_atomics(world);
  check_wait_index(world);
  check_peer_pointer(world);
  check_registered_buffers(world);
}

void check_growth(World& world) {
  constexpr std::size_t kCount = std::size_t{20} << 20;
  const Pe right = (world.my_pe() + 1) % world.n_pes();
  const Pe left = (world.my_pe() + world.n_pes() - 1) % world.n_pes();
  for (int round = 0; round < 3; ++round) {
    void* const memory = world.heap().malloc(kCount * sizeof(int));
    const std::size_t last = world.heap().offset_of(memory) + (kCount - 1) * sizeof(int);
    world.put_value(RemoteSpan<int>{{right, last}, 1}, 100 * round + world.my_pe());
    barrier(world.team());
    EXPECT_EQ(world.get_value(RemoteSpan<int>{{world.my_pe(), last}, 1}), 100 * round + left);
  }
  barrier(world.team());
}

}  // namespace shoal::test
