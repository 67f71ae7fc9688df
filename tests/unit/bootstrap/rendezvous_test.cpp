// SPDX-License-Identifier: Apache-2.0
// The decisions of the root, without sockets and with a clock that the test sets.
#include <gtest/gtest.h>

#include "bootstrap/tcp/rendezvous.hpp"
#include "support/expect_error.hpp"

namespace shoal::bootstrap {
namespace {

using std::chrono::milliseconds;

struct RendezvousTest : ::testing::Test {
  Hello hello(std::int32_t n_pes) {
    return {{}, n_pes, 100, milliseconds(1000), milliseconds(1000), "h"};
  }
  void join_all(Pe n) {
    for (Pe pe = 0; pe < n; ++pe) ASSERT_FALSE(root.join(pe, hello(n), now).has_value());
    root.take_messages();
  }
  void call(Pe pe, const std::string& step, Call::Kind kind = Call::Kind::barrier,
            std::uint64_t sequence = 1) {
    root.call(pe, sequence, {kind, milliseconds(500), step, {}}, now);
  }
  /// The failure that was sent to `count` PEs. Fails the test if there is none.
  Failure sent(std::size_t count) {
    const auto messages = root.take_messages();
    EXPECT_EQ(messages.size(), count);
    if (messages.empty() || messages.back().type != MessageType::failed) {
      ADD_FAILURE() << "no failure was sent";
      return {};
    }
    return decode_failure(*messages.back().payload, messages.back().about);
  }
  Clock::time_point now{};
  Rendezvous root{milliseconds(300)};
};

TEST_F(RendezvousTest, WelcomesWhenAllHaveCome) {
  EXPECT_FALSE(root.join(1, hello(2), now));
  EXPECT_TRUE(root.take_messages().empty());
  EXPECT_FALSE(root.join(0, hello(2), now));
  const auto messages = root.take_messages();
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].type, MessageType::welcome);
  EXPECT_EQ(root.deadline(), Clock::time_point::max());
}

TEST_F(RendezvousTest, NamesThoseThatDoNotConnect) {
  for (Pe pe : {0, 1, 3, 4, 6, 7}) root.join(pe, hello(8), now);
  root.tick(now + milliseconds(999));
  EXPECT_TRUE(root.take_messages().empty());
  root.tick(now + milliseconds(1000));
  const Failure failure = sent(6);
  EXPECT_EQ(failure.code, Code::timeout);
  EXPECT_EQ(
      failure.message,
      "SHOAL-N144: PEs 2, 5 of 8 did not connect within 1000 ms. Setting: SHOAL_BOOTSTRAP_TIMEOUT_MS");
  EXPECT_EQ(root.join(2, hello(8), now)->message, failure.message)
      << "a late PE receives the failure";
}

TEST_F(RendezvousTest, RemarkExplainsMissingPes) {
  root.join(0, hello(2), now);
  root.set_remark("7 connections came without proof of the key");
  root.tick(now + milliseconds(1000));
  EXPECT_EQ(
      sent(1).message,
      "SHOAL-N144: PE 1 of 2 did not connect within 1000 ms. Setting: SHOAL_BOOTSTRAP_TIMEOUT_MS. 7 "
      "connections came without proof of the key");
}

TEST_F(RendezvousTest, CountsMissingPes) {
  EXPECT_EQ(root.missing(), 0u) << "the number of PEs is not known yet";
  root.join(0, hello(3), now);
  EXPECT_EQ(root.missing(), 2u);
}

TEST_F(RendezvousTest, RefusesWrongIndexAndTheJobGoesOn) {
  root.join(0, hello(2), now);
  test::expect_parts(root.join(0, hello(2), now)->message, {"taken by PE 0 (pid 100 on host h)"});
  test::expect_parts(root.join(2, hello(2), now)->message, {"allowed: 0 to 1"});
  test::expect_parts(root.join(-1, hello(2), now)->message, {"allowed: 0 to 1"});
  EXPECT_FALSE(root.join(1, hello(2), now));
  EXPECT_EQ(root.take_messages().front().type, MessageType::welcome);
}

TEST_F(RendezvousTest, DifferentNumbersOfPesFailAll) {
  root.join(0, hello(4), now);
  const auto refusal = root.join(1, hello(5), now);
  EXPECT_EQ(refusal->code, Code::mismatch);
  const Failure failure = sent(1);
  test::expect_parts(failure.message, {"PE 0 gives 4, PE 1 gives 5"});
}

TEST_F(RendezvousTest, DifferentCallsNameBoth) {
  join_all(2);
  call(0, "a");
  call(1, "b", Call::Kind::all_gather);
  const Failure failure = sent(2);
  EXPECT_EQ(failure.code, Code::mismatch);
  test::expect_parts(failure.message,
                     {"PE 0 called barrier(\"a\") while PE 1 called all_gather(\"b\")"});
}

TEST_F(RendezvousTest, CallTimesOutNamingTheMissing) {
  join_all(4);
  call(1, "heap");
  call(2, "heap");
  root.tick(now + milliseconds(500));
  EXPECT_EQ(
      sent(4).message,
      "SHOAL-N129: PEs 0, 3 of 4 did not call barrier(\"heap\") within 500 ms of PE 1. Setting: "
      "SHOAL_BOOTSTRAP_TIMEOUT_MS");
}

TEST_F(RendezvousTest, LostPeFailsAllByName) {
  join_all(3);
  root.lost(1, "ended without closing");
  const Failure failure = sent(2);
  EXPECT_EQ(failure.origin, 1);
  EXPECT_EQ(failure.message, "PE 1 (pid 100 on host h) ended without closing");
}

TEST_F(RendezvousTest, OnlyTheFirstFailureIsTold) {
  join_all(2);
  root.abort(0, "shoal: no memory");
  root.abort(1, "second");
  EXPECT_EQ(sent(2).message, "PE 0: no memory");
}

TEST_F(RendezvousTest, ClosingIsNoFailureUnlessOthersCall) {
  join_all(3);
  root.close(0);
  EXPECT_TRUE(root.take_messages().empty());
  call(1, "late");
  test::expect_parts(sent(2).message,
                     {"PE 0 (pid 100 on host h) closed the bootstrap before barrier(\"late\")"});
  EXPECT_FALSE(root.over());
  root.close(1);
  root.lost(2, "ended");
  EXPECT_TRUE(root.over());
}

TEST_F(RendezvousTest, SequenceOnlyGrows) {
  join_all(2);
  call(0, "a");
  call(1, "a");
  EXPECT_EQ(root.take_messages().size(), 2u);
  call(0, "b", Call::Kind::barrier, 1);  // the number of a completed call
  test::expect_parts(sent(1).message, {"out of order"});
}

TEST_F(RendezvousTest, WaitsForLatecomersOnlySoLong) {
  root.join(0, hello(2), now);
  root.lost(0, "ended");
  root.tick(now);
  EXPECT_FALSE(root.over());
  EXPECT_EQ(root.deadline(), now + milliseconds(300));
  root.tick(now + milliseconds(300));
  EXPECT_TRUE(root.over());
}

TEST_F(RendezvousTest, LargeResultsTravelInParts) {
  join_all(2);
  for (Pe pe : {0, 1})
    root.call(pe, 1,
              {Call::Kind::all_gather, milliseconds(500), "big",
               Bytes(kMaxContribution, std::byte{static_cast<unsigned char>(pe)})},
              now);
  Bytes result;
  for (const auto& message : root.take_messages()) {
    EXPECT_LE(message.payload->size(), kMaxPayload);
    if (message.to == 1)
      result.insert(result.end(), message.payload->begin(), message.payload->end());
  }
  EXPECT_EQ(decode_contributions(result, 2)[1], Bytes(kMaxContribution, std::byte{1}));
}

}  // namespace
}  // namespace shoal::bootstrap
