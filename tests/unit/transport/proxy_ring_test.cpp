// SPDX-License-Identifier: Apache-2.0
// The ring of a proxy and its executor, over a transport whose room and completions the test
// decides.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.hpp"
#include "support/expect_error.hpp"
#include "support/rounds.hpp"
#include "support/wait_for.hpp"
#include "transport/proxy/executor.hpp"
#include "transport/proxy/requests.hpp"
#include "transport/proxy/thread_platform.hpp"

namespace shoal::transport {
namespace {

using namespace std::chrono_literals;
using device::proxy::Kind;
using device::proxy::kResult;
using device::proxy::kSignalAdd;
using device::proxy::kSignalSet;
using device::proxy::Outcome;
using device::proxy::Request;
using device::proxy::State;
using device::proxy::Ticket;
using proxy::Executor;
using Producer = device::proxy::Producer<proxy::ThreadPlatform>;

constexpr std::size_t kHeap = 4096;
constexpr std::size_t kStart = 64;  ///< of the heap, as the transport counts

/// Memory of two PEs. Operations take effect at once; their completion waits for `reachable`.
class FakeOperations final : public PolledOperations {
 public:
  std::map<Pe, bool> room, reachable;
  std::map<Pe, std::vector<std::byte>> memory;
  std::vector<std::string> log;
  Pe lost = -1;

  FakeOperations() {
    for (const Pe pe : {0, 1}) {
      room[pe] = reachable[pe] = true;
      memory[pe].resize(kStart + kHeap);
    }
  }
  std::uint64_t word(Pe pe, std::size_t offset) {
    std::uint64_t value = 0;
    std::memcpy(&value, memory[pe].data() + kStart + offset, sizeof value);
    return value;
  }

  void put_nbi(Pe pe, std::size_t offset, const void* source, std::size_t bytes) override {
    if (pe == lost) fail(Code::peer_failed, "transport fake has lost PE {}", pe);
    log.push_back(fmt::format("put {} {}", pe, bytes));
    std::memcpy(memory[pe].data() + offset, source, bytes);
  }
  void get_nbi(void* target, Pe pe, std::size_t offset, std::size_t bytes) override {
    if (pe == lost) fail(Code::peer_failed, "transport fake has lost PE {}", pe);
    log.push_back(fmt::format("get {} {}", pe, bytes));
    std::memcpy(target, memory[pe].data() + offset, bytes);
  }
  void atomic_nbi(Pe pe, AtomicOp, std::size_t offset, std::uint64_t operand, std::uint64_t,
                  std::size_t, std::uint64_t* before) override {
    log.push_back(fmt::format("atomic {}", pe));
    *before = word(pe, offset - kStart);
    const std::uint64_t after = *before + operand;
    std::memcpy(memory[pe].data() + offset, &after, sizeof after);
  }
  void signal(Pe pe, std::size_t offset, SignalOp, std::uint64_t value) override {
    log.push_back(fmt::format("signal {} {}", pe, value));
    std::memcpy(memory[pe].data() + offset, &value, sizeof value);
  }
  bool has_room(Pe pe) override { return room[pe]; }
  bool reached(Pe pe, Point&) override {
    if (pe == lost) fail(Code::peer_failed, "transport fake has lost PE {}", pe);
    return reachable[pe];
  }
};

class ProxyRing : public testing::Test {
 protected:
  explicit ProxyRing(std::uint64_t n_slots = 4) : memory_(n_slots, 50ms) {}

  Executor make(std::chrono::milliseconds timeout = 10s) {
    return Executor({.my_pe = 0,
                     .n_pes = 2,
                     .heap_bytes = kHeap,
                     .ring = memory_.ring(),
                     .timeout = timeout,
                     .route = [this](Pe) { return PolledRoute{transport_, kStart}; },
                     .failure = [this](Pe pe) { return pe == dead_ ? "killed" : ""; }});
  }
  Ticket post(const Request& request) {
    Ticket ticket = 99;
    EXPECT_EQ(Producer::post(memory_.ring(), request, ticket), Outcome::ok);
    return ticket;
  }
  bool is_complete(Ticket ticket) const {
    const auto& ring = memory_.ring();
    return ring.responses[ticket % ring.n_slots].done >= ticket + 1;
  }
  static void run(Executor& executor, int steps = 4) {
    for (int i = 0; i < steps; ++i) executor.step();
  }

  static bool step_until_it_ends(Executor& executor) {
    return test::wait_for([&] {
      executor.step();
      return executor.state() != State::running;
    });
  }

  ProxyMemory memory_;
  FakeOperations transport_;
  Pe dead_ = -1;
};

Request value(Pe pe, std::uint64_t offset, std::uint64_t operand) {
  return {.kind = Kind::put_value, .width = 8, .pe = pe, .offset = offset, .operand = operand};
}

TEST_F(ProxyRing, Gets) {
  Executor executor = make();
  std::uint64_t target[2] = {};
  post(value(1, 16, 5));
  post(value(1, 24, 6));
  transport_.reachable[1] = false;
  const Ticket ticket = post({.kind = Kind::get,
                              .pe = 1,
                              .offset = 16,
                              .source = reinterpret_cast<std::uintptr_t>(target),
                              .bytes = sizeof target});
  run(executor);
  EXPECT_FALSE(is_complete(ticket));
  transport_.reachable[1] = true;
  run(executor);
  EXPECT_TRUE(is_complete(ticket));
  EXPECT_EQ(target[0], 5U);
  EXPECT_EQ(target[1], 6U);
  transport_.lost = 1;
  const Ticket lost = post(
      {.kind = Kind::get, .pe = 1, .source = reinterpret_cast<std::uintptr_t>(target), .bytes = 8});
  run(executor);
  EXPECT_EQ(Producer::wait(memory_.ring(), lost), Outcome::failed);
  ASSERT_TRUE(executor.failure().has_value());
  test::expect_parts(executor.failure()->what(), {"get of 8 bytes from PE 1", "has lost PE 1"});
}

TEST_F(ProxyRing, ExecutesRequestsInOrder) {
  Executor executor = make();
  const std::uint64_t source[3] = {7, 8, 9};
  post({.kind = Kind::put,
        .flags = kSignalSet,
        .pe = 1,
        .offset = 16,
        .source = reinterpret_cast<std::uintptr_t>(source),
        .bytes = sizeof source,
        .signal_offset = 8,
        .signal_value = 5});
  post(value(1, 40, 11));
  const Ticket last = post({.kind = Kind::signal, .flags = kSignalAdd, .pe = 1, .signal_value = 6});
  run(executor);
  EXPECT_EQ(transport_.log,
            (std::vector<std::string>{"put 1 24", "signal 1 5", "put 1 8", "signal 1 6"}));
  EXPECT_EQ(transport_.word(1, 32), 9U);
  EXPECT_EQ(transport_.word(1, 40), 11U);
  EXPECT_TRUE(is_complete(last));
  EXPECT_EQ(executor.completed(), 3U);
}

TEST_F(ProxyRing, IsBoundedAndReportsAStalledConsumer) {
  Executor executor = make();
  for (std::uint64_t i = 0; i < 4; ++i) post(value(1, 8 * i, i));
  Ticket ticket = 0;
  EXPECT_EQ(Producer::post(memory_.ring(), value(1, 32, 4), ticket), Outcome::timeout);
  EXPECT_EQ(*memory_.ring().head, 4U) << "a post that gives up reserves nothing";
  EXPECT_EQ(Producer::wait(memory_.ring(), 3), Outcome::timeout);
  run(executor);
  EXPECT_EQ(post(value(1, 32, 4)), 4U);  // the next lap
  run(executor);
  EXPECT_EQ(transport_.word(1, 32), 4U);
  EXPECT_EQ(executor.completed(), 5U);
}

// The slot of an incomplete request is not reused, though later requests are complete.
TEST_F(ProxyRing, KeepsSlotsOfIncompleteRequests) {
  Executor executor = make();
  transport_.reachable[1] = false;
  const Ticket slow = post(value(1, 0, 1));
  const Ticket fast = post(value(0, 0, 1));
  for (int i = 0; i < 2; ++i) post(value(0, 8, 2));
  run(executor);
  EXPECT_FALSE(is_complete(slow));
  EXPECT_TRUE(is_complete(fast));
  EXPECT_EQ(executor.completed(), 0U);
  Ticket ticket = 0;
  EXPECT_EQ(Producer::post(memory_.ring(), value(0, 0, 3), ticket), Outcome::timeout);
  EXPECT_EQ(Producer::wait_all(memory_.ring(), Producer::quiet_ticket(memory_.ring())),
            Outcome::timeout);
  transport_.reachable[1] = true;
  run(executor);
  EXPECT_EQ(executor.completed(), 4U);
  EXPECT_EQ(Producer::wait_all(memory_.ring(), 4), Outcome::ok);
}

TEST_F(ProxyRing, DoesNotWaitForASlowPeer) {
  Executor executor = make();
  transport_.room[1] = false;
  const Ticket slow = post(value(1, 0, 1));
  const Ticket fast = post(value(0, 0, 1));
  run(executor);
  EXPECT_FALSE(is_complete(slow));
  EXPECT_TRUE(is_complete(fast));
  transport_.room[1] = true;
  run(executor);
  EXPECT_TRUE(is_complete(slow));
}

TEST_F(ProxyRing, FencesHoldBackLaterRequestsToAPe) {
  Executor executor = make();
  transport_.reachable[1] = false;
  post(value(1, 0, 1));
  const Ticket fence = post({.kind = Kind::fence});
  post(value(1, 8, 2));
  run(executor);
  EXPECT_EQ(transport_.log.size(), 1U);
  EXPECT_FALSE(is_complete(fence));
  transport_.reachable[1] = true;
  run(executor);
  EXPECT_EQ(transport_.log.size(), 2U);
  EXPECT_EQ(executor.completed(), 3U);
}

// The response of a fetching request is kept until its producer has read it.
TEST_F(ProxyRing, KeepsResultsUntilTheyAreTaken) {
  Executor executor = make();
  const Request add{.kind = Kind::atomic,
                    .op = AtomicOp::add,
                    .width = 8,
                    .flags = kResult,
                    .pe = 1,
                    .offset = 24,
                    .operand = 5};
  post({.kind = Kind::fence});
  const Ticket first = post(add), second = post(add);
  run(executor);
  EXPECT_TRUE(is_complete(second));
  EXPECT_EQ(executor.completed(), 1U);
  EXPECT_EQ(Producer::wait_all(memory_.ring(), 1), Outcome::ok);
  EXPECT_EQ(Producer::wait_all(memory_.ring(), 2), Outcome::timeout);
  std::uint64_t before = 99;
  EXPECT_EQ(Producer::wait_value(memory_.ring(), second, before), Outcome::ok);
  EXPECT_EQ(before, 5U);
  EXPECT_EQ(Producer::wait_value(memory_.ring(), first, before), Outcome::ok);
  EXPECT_EQ(before, 0U);
  run(executor);
  EXPECT_EQ(executor.completed(), 3U);
}

TEST_F(ProxyRing, NamesTheFirstCauseToEveryWaiter) {
  Executor executor = make();
  transport_.lost = 1;
  const Ticket good = post(value(0, 0, 1));
  run(executor);
  const Ticket bad = post(value(1, 64, 1));
  post(value(1, 72, 1));
  run(executor);
  EXPECT_EQ(executor.state(), State::failed);
  EXPECT_EQ(Producer::wait(memory_.ring(), good), Outcome::ok);
  EXPECT_EQ(Producer::wait(memory_.ring(), bad), Outcome::failed);
  EXPECT_EQ(Producer::wait_all(memory_.ring(), 3), Outcome::failed);
  const device::proxy::Control& control = *memory_.ring().control;
  EXPECT_EQ(control.pe, 1);
  EXPECT_EQ(control.kind, Kind::put_value);
  EXPECT_EQ(control.code, static_cast<std::int32_t>(Code::peer_failed));
  EXPECT_EQ(control.position, bad);
  EXPECT_EQ(control.offset, 64U);
  EXPECT_EQ(control.bytes, 8U);
  test::expect_parts(executor.failure()->what(),
                     {"proxy of PE 0", "request 1", "put_value of 8 bytes to PE 1",
                      "transport fake has lost PE 1"});
  executor.abort();
  EXPECT_EQ(executor.state(), State::failed) << "the first cause stays";
}

TEST_F(ProxyRing, GivesUpRequestsWithoutProgress) {
  Executor executor = make(20ms);
  transport_.reachable[1] = false;
  const Ticket slow = post(value(1, 0, 1));
  EXPECT_TRUE(step_until_it_ends(executor));
  EXPECT_EQ(Producer::wait(memory_.ring(), slow), Outcome::failed);
  ASSERT_TRUE(executor.failure().has_value());
  EXPECT_EQ(executor.failure()->code(), Code::timeout);
  test::expect_parts(executor.failure()->what(),
                     {"no progress for 20 ms towards PE 1", "SHOAL_TIMEOUT_MS"});
}

TEST_F(ProxyRing, AsksWhetherThePeerLives) {
  Executor executor = make();
  transport_.reachable[1] = false;
  post(value(1, 0, 1));
  dead_ = 1;
  EXPECT_TRUE(step_until_it_ends(executor));
  ASSERT_TRUE(executor.failure().has_value());
  EXPECT_EQ(executor.failure()->code(), Code::peer_failed);
  test::expect_parts(executor.failure()->what(), {"PE 1: killed"});
}

TEST_F(ProxyRing, AbortsEveryWait) {
  Executor executor = make();
  const Ticket ticket = post(value(1, 0, 1));
  executor.abort();
  run(executor);
  EXPECT_TRUE(transport_.log.empty());
  EXPECT_EQ(Producer::wait(memory_.ring(), ticket), Outcome::aborted);
}

TEST_F(ProxyRing, CutsLongPutsWhereTheTransportHasNoRoom) {
  // Only the source is long: the check of the range is not what this test is about.
  std::vector<std::byte> source((std::size_t{2} << 20) + 8);
  transport_.memory[1].resize(kStart + source.size());
  Executor executor({.my_pe = 0,
                     .n_pes = 2,
                     .heap_bytes = source.size(),
                     .ring = memory_.ring(),
                     .timeout = 10s,
                     .route = [this](Pe) { return PolledRoute{transport_, kStart}; }});
  post({.kind = Kind::put,
        .pe = 1,
        .source = reinterpret_cast<std::uintptr_t>(source.data()),
        .bytes = source.size()});
  run(executor);
  EXPECT_EQ(transport_.log,
            (std::vector<std::string>{"put 1 1048576", "put 1 1048576", "put 1 8"}));
}

struct Bad {
  const char* name;
  Request request;
  const char* part;
};

void PrintTo(const Bad& bad, std::ostream* out) {
  *out << bad.name;
}

class BadRequest : public ProxyRing, public testing::WithParamInterface<Bad> {};

TEST_P(BadRequest, FailsTheRingWithoutEffect) {
  Executor executor = make();
  const Ticket ticket = post(GetParam().request);
  const Ticket later = post(value(1, 0, 1));
  run(executor);
  EXPECT_TRUE(transport_.log.empty());
  EXPECT_EQ(Producer::wait(memory_.ring(), ticket), Outcome::failed);
  EXPECT_EQ(Producer::wait(memory_.ring(), later), Outcome::failed);
  ASSERT_TRUE(executor.failure().has_value());
  EXPECT_EQ(executor.failure()->code(), Code::invalid_argument);
  test::expect_parts(executor.failure()->what(), {GetParam().part, "nothing was done"});
}

const Bad kBad[] = {
    {"NoSuchKind", {.kind = static_cast<Kind>(9), .pe = 1}, "kind 9; allowed: 1 to 6"},
    {"NegativePe", value(-1, 0, 1), "PE -1; allowed: 0 to 1"},
    {"PeOutsideTheWorld", value(2, 0, 1), "PE 2; allowed: 0 to 1"},
    {"BehindTheHeap", value(1, kHeap - 7, 1), "8 bytes at heap offset 4089; the heap has 4096"},
    {"OffsetOverflows", value(1, ~std::uint64_t{0}, 1), "at heap offset 18446744073709551615"},
    {"LengthOverflows",
     {.kind = Kind::put, .pe = 1, .offset = 8, .source = 64, .bytes = ~std::uint64_t{0} - 70},
     "the heap has 4096 bytes"},
    {"NoSource", {.kind = Kind::put, .pe = 1, .bytes = 8}, "a source of 8 bytes at address 0x0"},
    {"SourceOverflows",
     {.kind = Kind::put, .pe = 1, .source = ~std::uint64_t{0}, .bytes = 8},
     "a source of 8 bytes at address 0xffffffffffffffff"},
    {"NoSuchWidth", {.kind = Kind::put_value, .width = 3, .pe = 1}, "allowed: 1, 2, 4, 8"},
    {"NoSuchAtomicWidth", {.kind = Kind::atomic, .width = 2, .pe = 1}, "allowed: 4, 8"},
    {"NoSuchAtomic",
     {.kind = Kind::atomic, .op = static_cast<AtomicOp>(8), .width = 8, .pe = 1},
     "atomic operation 8; allowed: 0 to 7"},
    {"UnalignedAtomic",
     {.kind = Kind::atomic, .width = 8, .pe = 1, .offset = 4},
     "a word at heap offset 4; allowed: multiples of 8"},
    {"UnalignedSignal",
     {.kind = Kind::signal, .flags = kSignalSet, .pe = 1, .signal_offset = 4},
     "a signal at heap offset 4; allowed: multiples of 8"},
    {"SignalBehindTheHeap",
     {.kind = Kind::put, .flags = kSignalAdd, .pe = 1, .signal_offset = kHeap},
     "a signal of 8 bytes at heap offset 4096"},
    {"SignalWithoutOperation", {.kind = Kind::signal, .pe = 1}, "neither set nor add"},
    {"TwoSignals",
     {.kind = Kind::signal, .flags = kSignalSet | kSignalAdd, .pe = 1},
     "do not fit kind 4"},
    {"ResultOfAPut", {.kind = Kind::put, .flags = kResult, .pe = 1}, "do not fit kind 1"},
    {"GetBehindTheHeap",
     {.kind = Kind::get, .pe = 1, .offset = kHeap - 7, .source = 64, .bytes = 8},
     "a source of 8 bytes at heap offset 4089"},
    {"NoTarget", {.kind = Kind::get, .pe = 1, .bytes = 8}, "a target of 8 bytes at address 0x0"},
    {"SignalOfAGet",
     {.kind = Kind::get, .flags = kSignalSet, .pe = 1, .source = 64, .bytes = 8},
     "do not fit kind 6"},
};

INSTANTIATE_TEST_SUITE_P(All, BadRequest, testing::ValuesIn(kBad),
                         testing::PrintToStringParamName());

// Requests of the lap before, which are still in the slots, are not taken for new ones; a producer
// that has reserved a position but not stored its tag holds back the consumer.
TEST_F(ProxyRing, TellsLapsApart) {
  Executor executor = make();
  for (std::uint64_t i = 0; i < 4; ++i) post(value(1, 8 * i, i + 1));
  run(executor);
  run(executor);
  EXPECT_EQ(transport_.log.size(), 4U);
  const Ticket reserved = (*memory_.ring().head)++;
  post(value(1, 40, 6));
  run(executor);
  EXPECT_EQ(transport_.log.size(), 4U);
  device::proxy::Slot& slot = memory_.ring().slots[reserved % 4];
  const Request late = value(1, 32, 5);
  slot.words[0] = late.offset;
  slot.words[1] = late.operand;
  slot.words[5] = 1;
  slot.words[7] = device::proxy::tag_of(late, device::proxy::lap_of(reserved, 4));
  run(executor);
  EXPECT_EQ(transport_.log.size(), 6U);
  EXPECT_EQ(transport_.word(1, 32), 5U);
  EXPECT_EQ(transport_.word(1, 40), 6U);
}

// Producers, a consumer and the words between them, without a network: the short form for the
// thread sanitizer. Sources lie in memory that only the ring orders.
TEST(ProxyRingThreads, OrderWhatProducersStore) {
  constexpr int kProducers = 3;
  const int n = test::rounds(5000, 2000);
  ProxyMemory memory(2, 20s);
  const device::proxy::Ring& ring = memory.ring();
  FakeOperations transport;
  Executor executor(
      {.my_pe = 0, .n_pes = 2, .heap_bytes = kHeap, .ring = ring, .timeout = 20s, .route = [&](Pe) {
         return PolledRoute{transport, kStart};
       }});
  std::vector<std::thread> producers;
  std::atomic<int> wrong{0};
  for (int p = 0; p < kProducers; ++p)
    producers.emplace_back([&, p] {
      std::uint64_t source[2] = {};  // not atomic: the ring must order it
      for (int i = 1; i <= n; ++i) {
        source[0] = source[1] = static_cast<std::uint64_t>(i);
        Ticket ticket = 0;
        const Outcome posted = Producer::post(ring,
                                              {.kind = Kind::put,
                                               .pe = p % 2,
                                               .offset = static_cast<std::uint64_t>(p) * 16,
                                               .source = reinterpret_cast<std::uintptr_t>(source),
                                               .bytes = sizeof source},
                                              ticket);
        if (posted != Outcome::ok || Producer::wait(ring, ticket) != Outcome::ok) ++wrong;
        std::uint64_t before = 0;
        const Request add{.kind = Kind::atomic,
                          .op = AtomicOp::add,
                          .width = 8,
                          .flags = kResult,
                          .pe = 1,
                          .offset = 512 + static_cast<std::uint64_t>(p) * 8,
                          .operand = 2};
        if (Producer::post(ring, add, ticket) != Outcome::ok ||
            Producer::wait_value(ring, ticket, before) != Outcome::ok ||
            before != static_cast<std::uint64_t>(i - 1) * 2)
          ++wrong;
      }
    });
  const auto all = static_cast<std::uint64_t>(kProducers) * static_cast<std::uint64_t>(n) * 2;
  const auto end = std::chrono::steady_clock::now() + 30s;
  while (executor.completed() < all && std::chrono::steady_clock::now() < end && wrong == 0)
    if (!executor.step()) std::this_thread::yield();
  executor.abort();
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(executor.completed(), all);
  for (int p = 0; p < kProducers; ++p)
    EXPECT_EQ(transport.word(p % 2, static_cast<std::size_t>(p) * 16 + 8),
              static_cast<std::uint64_t>(n));
}

}  // namespace
}  // namespace shoal::transport
