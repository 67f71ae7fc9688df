// SPDX-License-Identifier: Apache-2.0
// The verbs transport between two PEs that are threads, over fake_ibverbs: writes are placed in any
// order until an atomic waits for them, and queues take no more than they hold.
// @traits polls, slow
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ostream>
#include <vector>

#include "fake_ibverbs/module.hpp"
#include "support/expect_error.hpp"
#include "transport/scoped_timeout.hpp"
#ifdef SHOAL_WITH_FAKE_VERBS
#include <infiniband/verbs.h>

namespace shoal::test {
namespace {

struct Shape {
  const char* name;
  std::int64_t depth;
  std::size_t chunk;
  std::int64_t queue_pairs = 1, queue_depth = 512, inline_bytes = 128, interval = 1;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.name;
}

class VerbsOrder : public WithFakeVerbs, public testing::WithParamInterface<Shape> {
 protected:
  void run(const std::function<void(Pair&)>& body) {
    const Shape& shape = GetParam();
    Settings chosen = settings(shape.depth, shape.chunk);
    chosen.verbs_queue_pairs = shape.queue_pairs;
    chosen.verbs_depth = shape.queue_depth;
    chosen.verbs_inline = shape.inline_bytes;
    chosen.verbs_signal_interval = shape.interval;
    reset({.seed = 4711});
    run_pair(module->make, chosen, chosen, body);
    const FakeVerbsCounts seen = counts();
    EXPECT_EQ(seen.refused, 0u) << "a send queue was posted to that had no room";
    EXPECT_EQ(seen.overruns, 0u);
    EXPECT_EQ(seen.receives, 0u) << "no receive queue is needed";
    EXPECT_LE(seen.most_in_queue, static_cast<std::size_t>(shape.queue_depth));
    EXPECT_LT(seen.doorbells, seen.requests) << "a message and its atomic share a doorbell";
    EXPECT_LT(seen.completions, seen.requests) << "messages need no completion of their own";
    if (shape.interval > 1) EXPECT_LT(2 * seen.completions, seen.requests);
    if (shape.depth > 4) EXPECT_GT(seen.reordered, 10u) << "the fake is not adverse";
  }
};

TEST_P(VerbsOrder, SignalsFollowData) {
  run(check_signals_follow_data);
}
TEST_P(VerbsOrder, FencesOrderPuts) {
  run(check_fences_order_puts);
}
TEST_P(VerbsOrder, QuietCompletesEverything) {
  run(check_quiet_completes_everything);
}
TEST_P(VerbsOrder, AtomicsAndSignalsAreAppliedOnceInOrder) {
  run(check_atomics_and_signals_are_applied_once_in_order);
}

INSTANTIATE_TEST_SUITE_P(Shapes, VerbsOrder,
                         testing::Values(Shape{"one_at_a_time", 1, 4096}, Shape{"few", 7, 20'000},
                                         Shape{"many", 256, std::size_t{1} << 20},
                                         Shape{"small_queue", 256, 4096, 1, 16, 0},
                                         Shape{"three_queue_pairs", 64, 5000, 3, 64, 256},
                                         Shape{"rare_completions", 256, 4096, 2, 512, 128, 32}),
                         testing::PrintToStringParamName());

// More messages than a ring holds, in both directions, while the peer reads none for a while.
TEST_F(WithFakeVerbs, FullRingsHoldSendersBack) {
  run_pair(module->make, settings(256), settings(256), [](Pair& pair) {
    constexpr std::uint64_t kTimes = 5000;
    for (std::uint64_t i = 0; i < kTimes; ++i)
      pair.transport.signal(pair.other, 64, SignalOp::add, 1);
    pair.transport.quiet();
    pair.meet();
    EXPECT_EQ(pair.word(64).load(), kTimes);
  });
  EXPECT_EQ(counts().refused, 0u);
}

// Requests that the network cannot carry out end the connection with the reason; quiet reports it.
TEST_F(WithFakeVerbs, AQueuePairInErrorNamesThePeerAndTheReason) {
  reset({.fail_after = 2000});  // not during the handshake
  run_pair(module->make, settings(), settings(), [&](Pair& pair) {
    const std::uint64_t value = 1;
    pair.meet();  // connected
    expect_error(Code::peer_failed, "transport retry counter exceeded (status 12, vendor 0x81)",
                 [&] {
                   for (int i = 0; i < 10'000; ++i) {
                     pair.transport.put(pair.other, 64, &value, sizeof value);
                     pair.transport.quiet();
                   }
                 });
    const auto ended = pair.transport.ended();
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].pe, pair.other);
    // The count is of both PEs, which are in one process; the queue pair to this PE may still be in
    // use.
    std::size_t listed = 0;
    for (const transport::NicReport& nic : module->nics(settings()))
      for (const transport::QueuePairReport& queue : nic.queue_pairs) {
        ++listed;
        if (queue.peer == pair.other) EXPECT_EQ(queue.state, "ERR");
      }
    EXPECT_GE(listed, 1u);
  });
}

// Errors of the device without a request of this PE: a refused request of the peer, a lost
// completion.
TEST_F(WithFakeVerbs, AsynchronousEventsNameTheirCause) {
  for (const auto& [event, cause] :
       {std::pair{IBV_EVENT_QP_ACCESS_ERR, "the device refused a request of the peer: the memory"},
        std::pair{IBV_EVENT_CQ_ERR, "the completion queue has overflowed or is broken"},
        std::pair{IBV_EVENT_DEVICE_FATAL, "the device reports a fatal error"}}) {
    reset({.event = event, .event_after = 2000});  // not during the handshake
    run_pair(module->make, settings(), settings(), [&, text = cause](Pair& pair) {
      const std::uint64_t value = 1;
      pair.meet();
      expect_error(Code::peer_failed, text, [&] {
        for (;;) {
          pair.transport.put(pair.other, 64, &value, sizeof value);
          pair.transport.quiet();
        }
      });
    });
  }
}

// A port that is down stops nothing by itself: requests are repeated.
TEST_F(WithFakeVerbs, APortThatIsDownIsNoFailureYet) {
  reset({.event = IBV_EVENT_PORT_ERR, .event_port = 1});
  run_pair(module->make, settings(), settings(), check_quiet_completes_everything);
}

// The failure that follows names the port and the event; events of the device's other ports are not
// its reason.
TEST_F(WithFakeVerbs, AFailureNamesTheEventOfItsPort) {
  for (const auto& [event, port, reason] :
       {std::tuple{
            IBV_EVENT_PORT_ERR, 1,
            "; event PORT_ERR of port fake_0:1: the port is down: cable, switch, or ip link. "
            "Settings: SHOAL_VERBS_TIMEOUT"},
        std::tuple{IBV_EVENT_LID_CHANGE, 1, "; event LID_CHANGE of port fake_0:1: the subnet"},
        std::tuple{IBV_EVENT_GID_CHANGE, 1, "; event GID_CHANGE of port fake_0:1: the port's GID"},
        std::tuple{IBV_EVENT_PORT_ERR, 2, "vendor 0x81). Settings"}}) {
    reset({.event = event, .event_port = port, .fail_after = 2000});
    run_pair(module->make, settings(), settings(), [text = reason](Pair& pair) {
      const std::uint64_t value = 1;
      pair.meet();
      expect_error(Code::peer_failed, text, [&] {
        for (int i = 0; i < 10'000; ++i) {
          pair.transport.put(pair.other, 64, &value, sizeof value);
          pair.transport.quiet();
        }
      });
    });
  }
}

// The device executes the requests of calls that timed out later, when the memory of the calls may
// be in other use.
TEST_F(WithFakeVerbs, CallsThatWereGivenUpLeaveMemoryAlone) {
  constexpr std::size_t kBytes = 4096, kPlace = 8192;
  run_pair(module->make, settings(), settings(), [&](Pair& pair) {
    pair.meet();
    if (pair.pe == 0) {
      std::vector<std::byte> local(kBytes);
      std::fill_n(pair.local, kBytes, std::byte{5});  // registered: the device reads it in place
      stall(true);
      {
        const transport::ScopedTimeout limit(std::chrono::milliseconds(20));
        expect_error(Code::timeout, "get of 4096 bytes",
                     [&] { pair.transport.get(local.data(), pair.other, 0, kBytes); });
        expect_error(Code::timeout, "put of 4096 bytes",
                     [&] { pair.transport.put(pair.other, kPlace, pair.local, kBytes); });
      }
      std::ranges::fill(local, std::byte{3});
      stall(false);
      pair.transport.quiet();
      EXPECT_EQ(std::ranges::count(local, std::byte{3}), kBytes) << "the late data were stored";
      EXPECT_EQ(std::count(pair.remote + kPlace, pair.remote + kPlace + kBytes, std::byte{5}),
                kBytes);
    }
    pair.meet();
  });
}

// Memory that is not registered is sent from buffers.
TEST_F(WithFakeVerbs, PutsInFlightKeepTheirData) {
  run_pair(module->make, settings(256), settings(256), [](Pair& pair) {
    constexpr std::size_t kPuts = 64, kBytes = 4096;
    std::vector<std::vector<std::byte>> sources;
    for (std::size_t i = 0; i < kPuts; ++i) {
      sources.emplace_back(kBytes, static_cast<std::byte>(i + 1));
      pair.transport.put_nbi(pair.other, i * kBytes, sources[i].data(), kBytes);
    }
    pair.transport.quiet();
    for (std::size_t i = 0; i < kPuts; ++i)
      EXPECT_EQ(std::memcmp(pair.remote + i * kBytes, sources[i].data(), kBytes), 0) << "put " << i;
    pair.meet();
  });
}

TEST_F(WithFakeVerbs, RoutesByTheGidOfRoce) {
  reset({.ethernet = true});
  run_pair(module->make, settings(), settings(), check_quiet_completes_everything);
}

// The automatic order of networks depends on it.
TEST_F(WithFakeVerbs, FindsPortsThatItCanUse) {
  EXPECT_EQ(transport::rdma_obstacle(settings()), "");
  reset({.active = false});
  expect_parts(transport::rdma_obstacle(settings()), {"no RDMA port is active"});
  reset({.connections = false});
  expect_parts(transport::rdma_obstacle(settings()), {"no RDMA port is active"});
  reset({.devices = 0});
  expect_parts(transport::rdma_obstacle(settings()), {"finds no RDMA device"});
}

// Ports of a PE are its rails.
TEST_F(WithFakeVerbs, SpreadsLongTransfersOverPorts) {
  reset({.devices = 2});
  run_pair(module->make, settings(), settings(), check_signals_follow_data, {"fake_0:1", "fake_1"});
  EXPECT_EQ(counts().numbers.size(), 4u);
}

}  // namespace
}  // namespace shoal::test
#endif
