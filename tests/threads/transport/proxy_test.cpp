// SPDX-License-Identifier: Apache-2.0
// The proxy in worlds of threads, over shm, ofi and the emulated NIC: threads post in place of the
// warps of a kernel.
// @traits polls
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "shoal/collective.hpp"
#include "support/proxy/world_proxy.hpp"
#include "support/rounds.hpp"
#include "support/world/neighbours.hpp"
#include "support/world/ofi.hpp"
#include "support/world/verbs.hpp"
#include "support/world/world_local.hpp"

namespace shoal::test {
namespace {

/// Fails from any thread of a world. `parts`: of the message, which only a failure puts together.
template <typename... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream what;
  (what << ... << parts);
  throw std::runtime_error(what.str());
}
void check_ok(Outcome outcome, const std::string& what, WorldProxy& proxy) {
  if (outcome == Outcome::ok) return;
  const auto failure = proxy.proxy().failure();
  throw std::runtime_error(what + ": outcome " + std::to_string(static_cast<int>(outcome)) + ", " +
                           (failure ? failure->what() : "no failure"));
}

/// Runs `body(i)` in `n` threads; rethrows the first exception.
template <typename Body>
void in_threads(int n, Body&& body) {
  std::vector<std::thread> threads;
  std::vector<std::string> faults(static_cast<std::size_t>(n));
  for (int i = 0; i < n; ++i)
    threads.emplace_back([&, i] {
      try {
        body(i);
      } catch (const std::exception& error) {
        faults[static_cast<std::size_t>(i)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& fault : faults) check(fault.empty(), fault);
}

constexpr int kProducers = 4;
constexpr std::uint64_t kSlots = 16;

/// 100'000 requests of 2 PEs with 4 producers each: a round has 3.
constexpr std::size_t kAll = rounds<std::size_t>(4167, 100);

/// Words whose value tells who wrote them, a counter, and values drawn by a fetching atomic: exact
/// after many requests of 4 producers of each PE, through rings of 16 slots.
void check_many_producers(World& world, std::size_t rounds_each) {
  const std::size_t total = kProducers * rounds_each;
  auto cells = world.heap().allocate<std::uint64_t>(total);
  auto counters = world.heap().allocate<std::uint64_t>(2);
  const Pe to = right(world);
  std::vector<std::set<std::uint64_t>> drawn(kProducers);
  {
    WorldProxy proxy(world, kSlots);
    barrier(world.team());
    in_threads(kProducers, [&](int p) {
      for (std::size_t i = 0; i < rounds_each; ++i) {
        const std::size_t cell = static_cast<std::size_t>(p) * rounds_each + i;
        Ticket ticket = 0;
        check_ok(proxy.post(proxy.put_value(&cells[cell], cell * 3 + 1, to), ticket), "put", proxy);
        check_ok(proxy.post(proxy.add(&counters[0], cell, to), ticket), "add", proxy);
        const bool fetches = i % 8 == 0;
        const auto flags = fetches ? device::proxy::kResult : std::uint8_t{0};
        check_ok(proxy.post(proxy.add(&counters[1], 1, to, flags), ticket), "add", proxy);
        if (!fetches) continue;
        std::uint64_t value = 0;
        check_ok(Producer::wait_value(proxy.ring(), ticket, value), "value", proxy);
        check(drawn[static_cast<std::size_t>(p)].insert(value).second, "a value was drawn twice");
      }
    });
    check_ok(proxy.quiet(), "quiet", proxy);
    check(proxy.proxy().completed() == 3 * total, "requests are missing");
    barrier(world.team());
  }
  std::uint64_t sum = 0;
  for (std::size_t cell = 0; cell < total; ++cell) {
    check(cells[cell] == cell * 3 + 1, "cell ", cell, " is ", cells[cell]);
    sum += cell;
  }
  check(counters[0] == sum, "the sum is wrong");
  check(counters[1] == total, "the count is wrong");
  std::set<std::uint64_t> all;
  std::size_t count = 0;
  for (const auto& values : drawn) {
    count += values.size();
    all.insert(values.begin(), values.end());
  }
  check(all.size() == count, "two producers drew the same value");
  barrier(world.team());
}

/// Whoever sees the signal of a put_signal sees its data, in each of many rounds and lengths.
void check_data_before_signal(World& world) {
  const std::uint64_t n_rounds = rounds(400, 40);
  constexpr std::size_t kWords = 5000;
  auto data = world.heap().allocate<std::uint64_t>(kWords);
  auto flags = world.heap().allocate<std::uint64_t>(2);  // data are there; data were read
  const Pe to = right(world);
  WorldProxy proxy(world, kSlots);
  std::vector<std::uint64_t> source(kWords);
  barrier(world.team());
  for (std::uint64_t round = 1; round <= n_rounds; ++round) {
    const std::size_t words = round % 4 == 0 ? kWords : 1 + round % 40;
    for (std::size_t i = 0; i < words; ++i) source[i] = round * kWords + i;
    check_ok(proxy.run(proxy.put_signal(&data[0], source.data(), words * 8, &flags[0], round, to)),
             "put_signal", proxy);
    world.wait_until(&flags[0], Compare::equal, round);
    for (std::size_t i = 0; i < words; ++i)
      check(data[i] == round * kWords + i, "the signal came before word ", i);
    Ticket ticket = 0;
    check_ok(proxy.post(proxy.signal(&flags[1], SignalOp::add, 1, left(world)), ticket), "signal",
             proxy);
    world.wait_until(&flags[1], Compare::greater_equal, round);
  }
  check_ok(proxy.quiet(), "quiet", proxy);
  barrier(world.team());
}

/// A put of a flag after a fence is seen after the data of a put that is cut.
void check_order_and_length(World& world) {
  constexpr std::size_t kBytes = (std::size_t{3} << 20) + 5;
  auto data = world.heap().allocate<std::byte>(kBytes);
  auto flag = world.heap().allocate<std::uint64_t>(1);
  const Pe to = right(world);
  WorldProxy proxy(world, kSlots);
  std::vector<std::byte> source(kBytes);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 7 + 1);
  barrier(world.team());
  Ticket ticket = 0;
  check_ok(proxy.post(proxy.put(&data[0], source.data(), kBytes, to), ticket), "put", proxy);
  check_ok(proxy.post({.kind = Kind::fence}, ticket), "fence", proxy);
  check_ok(proxy.post(proxy.put_value(&flag[0], 1, to), ticket), "flag", proxy);
  world.wait_until(&flag[0], Compare::equal, std::uint64_t{1});
  for (std::size_t i = 0; i < kBytes; ++i)
    check(data[i] == static_cast<std::byte>(i * 7 + 1), "byte ", i);
  check_ok(proxy.quiet(), "quiet", proxy);
  barrier(world.team());
}

/// Gets of many lengths, words and messages included, some of them in flight at a time and
/// alongside puts. Their data are there when they complete.
void check_gets(World& world) {
  constexpr std::size_t kBytes = (std::size_t{3} << 20) + 5;
  auto data = world.heap().allocate<std::byte>(kBytes);
  auto words = world.heap().allocate<std::uint64_t>(64);
  const Pe from = right(world);
  const auto byte_of = [](Pe pe, std::size_t i) {
    return static_cast<std::byte>(i * 7 + static_cast<std::size_t>(pe));
  };
  for (std::size_t i = 0; i < kBytes; ++i) data[i] = byte_of(world.my_pe(), i);
  WorldProxy proxy(world, kSlots);
  std::vector<std::byte> target(kBytes);
  barrier(world.team());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{8}, std::size_t{100},
                                  std::size_t{5000}, std::size_t{200'000}, kBytes}) {
    std::fill(target.begin(), target.end(), std::byte{0});
    check_ok(proxy.run(proxy.get(target.data(), &data[0], bytes, from)), "get", proxy);
    for (std::size_t i = 0; i < bytes; ++i)
      check(target[i] == byte_of(from, i), "byte ", i, " of ", bytes);
  }
  const std::size_t n_rounds = rounds<std::size_t>(300, 30);
  constexpr std::size_t kTogether = 6, kMost = 2048;
  for (std::size_t round = 0; round < n_rounds; ++round) {
    Ticket tickets[kTogether] = {};
    const auto offset_of = [&](std::size_t k) { return (round * 4099 + k * 7919) % 100'000; };
    const auto length_of = [&](std::size_t k) { return k % 2 == 0 ? 8 : 1 + (round * 37) % kMost; };
    for (std::size_t k = 0; k < kTogether; ++k) {
      check_ok(proxy.post(proxy.put_value(&words[round % 64], round, from), tickets[k]), "put",
               proxy);
      check_ok(proxy.post(proxy.get(&target[k * kMost], &data[offset_of(k)], length_of(k), from),
                          tickets[k]),
               "get", proxy);
    }
    for (std::size_t k = 0; k < kTogether; ++k) {
      check_ok(Producer::wait(proxy.ring(), tickets[k]), "wait", proxy);
      for (std::size_t i = 0; i < length_of(k); ++i)
        check(target[k * kMost + i] == byte_of(from, offset_of(k) + i), "round ", round, ", get ",
              k, ", byte ", i);
    }
  }
  check_ok(proxy.quiet(), "quiet", proxy);
  barrier(world.team());
}

void check_proxy(World& world, std::size_t rounds_each) {
  check_many_producers(world, rounds_each);
  check_data_before_signal(world);
  check_order_and_length(world);
  check_gets(world);
}

Settings sized(Settings settings) {
  settings.symmetric_size = 16 << 20;
  return settings;
}

TEST(Proxy, ExecutesRequestsOverSharedMemory) {
  run_threads(2, sized(world_settings()), [](World& world) { check_proxy(world, kAll); });
}

TEST(Proxy, ExecutesRequestsOverOfi) {
  SHOAL_SKIP_WITHOUT_OFI();
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "libfabric is not instrumented";
#endif
  run_threads(2, sized(ofi_settings()), [](World& world) { check_proxy(world, kAll / 4); });
}

using VerbsProxy = WithVerbs;

TEST_F(VerbsProxy, ExecutesRequests) {
  run_threads(2, sized(verbs_settings()), [](World& world) { check_proxy(world, kAll); });
}

TEST_F(VerbsProxy, ExecutesRequestsAtDepthOne) {
  Settings settings = sized(verbs_settings());
  settings.network_depth = 1;
  run_threads(2, settings, check_data_before_signal);
}

TEST_F(VerbsProxy, KeepsOrderWhereTheNicDoesNot) {
  emulate("ORDERING", "unordered");
  emulate("REORDERING", "0.3");
  run_threads(2, sized(verbs_settings()), [](World& world) {
    check_data_before_signal(world);
    check_order_and_length(world);
    check_gets(world);
  });
}

TEST(Proxy, ServesEveryPeer) {
  run_threads(4, sized(world_settings()), [](World& world) {
    auto words = world.heap().allocate<std::uint64_t>(4);
    WorldProxy proxy(world, 2);
    const auto me = static_cast<std::size_t>(world.my_pe());
    barrier(world.team());
    in_threads(4, [&](int pe) {
      check_ok(proxy.run(proxy.put_value(&words[me], 10 + me, pe)), "put", proxy);
    });
    barrier(world.team());
    for (std::size_t pe = 0; pe < 4; ++pe) check(words[pe] == 10 + pe, "a word is missing");
    barrier(world.team());
  });
}

}  // namespace
}  // namespace shoal::test
