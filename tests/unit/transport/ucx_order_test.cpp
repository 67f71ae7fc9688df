// SPDX-License-Identifier: Apache-2.0
// The ucx transport keeps the order of operations on a UCP that orders nothing but what a flush
// orders: two PEs, as threads, over fake_ucp.
// @traits polls, slow
// @waiting Windows/UcxOrder.*
// @soak Windows/UcxOrder.*/depth_1:Windows/UcxOrder.*/depth_7
#include <gtest/gtest.h>

#ifdef SHOAL_TEST_UCX  // where there is UCX to build against
#include <algorithm>
#include <chrono>
#include <latch>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "checks/transport/pair.hpp"
#include "fake_ucp/fake_ucp.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"
#include "transport/module.hpp"

namespace shoal::transport {
extern "C" const Module shoal_transport_module;
}

namespace shoal::test {
namespace {

/// Depth and chunk: from one request at a time to more than are ever needed.
class UcxOrder : public testing::TestWithParam<std::pair<std::int64_t, std::size_t>> {
 protected:
  static void run(const std::function<void(Pair&)>& body) {
    const auto [depth, chunk] = GetParam();
    const Settings settings = pair_settings(depth, chunk);
    reset_fake_ucp(4711);
    run_pair(transport::shoal_transport_module.make, settings, settings, body);
    const FakeUcpCounts counts = fake_ucp_counts();
    EXPECT_EQ(counts.requests_left, 0u);
    // The handshake reads two things at once.
    EXPECT_LE(counts.most_transfers, static_cast<std::size_t>(std::max<std::int64_t>(depth, 2)));
    EXPECT_LE(counts.most_flushes, 1u);
    // The PE's own window, replies to the other's, and an acknowledgement, a request for one and a
    // goodbye.
    EXPECT_LE(counts.most_messages, 2 * static_cast<std::size_t>(depth) + 3);
    if (depth > 4) EXPECT_GT(counts.overtaken, 10u) << "the fake is not as adverse as it should be";
  }
};

TEST_P(UcxOrder, SignalsFollowData) {
  run(check_signals_follow_data);
}
TEST_P(UcxOrder, FencesOrderPuts) {
  run(check_fences_order_puts);
}
TEST_P(UcxOrder, QuietCompletesEverything) {
  run(check_quiet_completes_everything);
}
TEST_P(UcxOrder, AtomicsAndSignalsAreAppliedOnceInOrder) {
  run(check_atomics_and_signals_are_applied_once_in_order);
}

INSTANTIATE_TEST_SUITE_P(
    Windows, UcxOrder,
    testing::Values(std::pair<std::int64_t, std::size_t>{1, 4096},
                    std::pair<std::int64_t, std::size_t>{2, 5000},
                    std::pair<std::int64_t, std::size_t>{7, 20'000},
                    std::pair<std::int64_t, std::size_t>{256, std::size_t{1} << 20}),
    [](const auto& instance) { return "depth_" + std::to_string(instance.param.first); });

// Whichever kind of call fails first: the pair is not connected, with the reason, and the world
// takes its next transport.
struct FirstCall {
  const char* name;
  FakeUcpFault fault;
  const char* reason;
};

void PrintTo(const FirstCall& call, std::ostream* out) {
  *out << call.name;
}

class UcxFirstCall : public testing::TestWithParam<FirstCall> {};

TEST_P(UcxFirstCall, FailsTheConnection) {
  const auto [name, fault, reason] = GetParam();
  const Settings settings = pair_settings(16, 4096);
  reset_fake_ucp(4711, fault);
  std::mutex lock;
  std::string reasons;
  run_unconnected_pair(transport::shoal_transport_module.make, settings, settings,
                       [&](const std::string& why) {
                         EXPECT_NE(why, "");
                         const std::lock_guard guard(lock);
                         reasons += why + "\n";
                       });
  // The first PE whose call fails knows the reason; the other one may miss its answers instead.
  expect_parts(reasons, {reason});
  reset_fake_ucp(4711);
}

INSTANTIATE_TEST_SUITE_P(
    Calls, UcxFirstCall,
    testing::Values(FirstCall{"connect", FakeUcpFault::connect, "UCX makes no connection"},
                    FirstCall{"key", FakeUcpFault::key, "UCX cannot use the keys"},
                    FirstCall{"message", FakeUcpFault::message, "sending failed: made up"},
                    FirstCall{"put", FakeUcpFault::put, "RMA failed: made up"},
                    FirstCall{"get", FakeUcpFault::get, "RMA failed: made up"},
                    FirstCall{"flush", FakeUcpFault::flush, "a flush failed: made up"}),
    testing::PrintToStringParamName());

// UCX's handler would end the process, here that of a PE whose peer may just have died.
TEST(UcxAssertion, FailsTheConnectionsAndNotTheProcess) {
  const Settings settings = pair_settings(16, 4096);
  reset_fake_ucp(4711);
  std::latch met(2);  // that the breach does not affect
  run_pair(transport::shoal_transport_module.make, settings, settings, [&](Pair& pair) {
    std::vector<std::byte> data(20'000);
    pair.transport.put_nbi(pair.other, 0, data.data(), data.size());
    met.arrive_and_wait();
    if (pair.pe == 0) break_fake_ucp();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    try {
      while (std::chrono::steady_clock::now() < end) {
        pair.transport.put_nbi(pair.other, 0, data.data(), data.size());
        pair.transport.quiet();
      }
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::peer_failed);
      const std::string what = error.what();
      expect_parts(what, {"UCX failed on this PE: Assertion `made up' failed (fake.c:7)"});
    }
    try {
      pair.transport.quiet();  // reports what was in flight, unless the call above has
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::peer_failed);
    }
    pair.transport.quiet();
    EXPECT_EQ(pair.transport.ended().size(), 1U);
  });
  reset_fake_ucp(4711);
}

}  // namespace
}  // namespace shoal::test
#endif
