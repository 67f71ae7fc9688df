// SPDX-License-Identifier: Apache-2.0
// The message core of network transports, over a network in memory that refuses, delays and, if
// asked to, reorders.
// @traits slow, one_thread
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <ostream>
#include <random>
#include <vector>

#include "checks/transport/pair.hpp"
#include "support/expect_error.hpp"
#include "transport/message/apply.hpp"
#include "transport/message/network_transport.hpp"

namespace shoal::test {
namespace {

using namespace transport::message;

/// State that two FakeNetworks share.
struct Wire {
  std::mutex mutex;
  std::mt19937 dice{4711};
  std::deque<std::vector<std::byte>> inbox[2];
  bool reorders = false;
  unsigned refuses = 0;  ///< one send in so many; 0: none
  bool cut = false;      ///< messages are lost, and probes fail
  /// A PE says goodbye behind each reply, and both arrive in one poll.
  std::atomic<bool> farewell{false};
  bool hides_rma = false;
  /// RMA requests complete only once so many requests without effect have been sent.
  unsigned awaited_announcements = 0;
  unsigned announcements = 0;
};
Wire* wire = nullptr;

class FakeNetwork final : public Network {
 public:
  static constexpr const char* kName = "fake";
  static constexpr std::size_t kMaxRails = 1;

  FakeNetwork(Engine& engine, const transport::Context& context)
      : engine_(engine), chunk_(context.settings->network_chunk) {
    traits_ = {.name = kName,
               .payload_bytes = 192,
               .put_bytes = 192,
               .window = static_cast<std::uint32_t>(context.settings->network_depth),
               .reorders = wire->reorders,
               .probes = true,
               .says_goodbye = true,
               .hides_rma = wire->hides_rma};
  }

  const Traits& traits() const noexcept override { return traits_; }
  std::vector<std::byte> address() override {
    const Bases mine{engine_.segment().base(), engine_.scratch().data()};
    std::vector<std::byte> bytes(sizeof mine);
    std::memcpy(bytes.data(), &mine, sizeof mine);
    return bytes;
  }
  void open(Peer&, std::span<const std::byte> address) override {
    std::memcpy(&peer_, address.data(), sizeof peer_);
  }

  bool send(Peer& peer, const Message& message, const Payload& payload, After after) override {
    const std::lock_guard lock(wire->mutex);
    if (wire->refuses != 0 && wire->dice() % wire->refuses == 0) return false;
    if (after == After::writes && peer.writes != 0) return false;
    if (wire->cut && message.kind == Kind::probe) {
      engine_.fail_peer(peer, "cut");
      return false;
    }
    Message stamped = message;
    engine_.stamp(peer, stamped);
    std::vector<std::byte> bytes(sizeof stamped + payload.bytes());
    std::memcpy(bytes.data(), &stamped, sizeof stamped);
    payload.pack(bytes.data() + sizeof stamped);
    if (message.kind == Kind::nothing && message.flags == 0) ++wire->announcements;
    auto& inbox = wire->inbox[peer.pe];
    if (!wire->cut) inbox.push_back(std::move(bytes));
    if (wire->farewell && message.kind == Kind::reply) {
      stamped.kind = Kind::goodbye;
      inbox.emplace_back(sizeof stamped);
      std::memcpy(inbox.back().data(), &stamped, sizeof stamped);
    }
    engine_.sent(peer, stamped);
    if (message.kind == Kind::probe) peer.probing = false;
    return true;
  }
  bool transfer(Peer& peer, const Transfer& transfer) override {
    std::byte* const base = transfer.region == Region::segment ? peer_.segment : peer_.scratch;
    in_flight_.push_back({transfer, base + transfer.offset, &peer});
    peer.start(transfer.direction, transfer.batch);
    return true;
  }
  std::size_t request_bytes(const Peer&, const Transfer&) const override { return chunk_; }
  bool poll() override {
    bool any = false;
    while (deliver_one()) {
      any = true;
      if (!wire->farewell) break;
    }
    return any;
  }

  bool writing(const Peer& peer) const noexcept override { return peer.writes != 0; }
  bool needs_acknowledgement(const Peer&) const noexcept override { return false; }
  std::uint64_t newest(const Peer&) const noexcept override { return 0; }
  bool is_complete(Peer& peer, std::uint64_t) override { return peer.writes == 0; }
  void abandon(Batch& batch) noexcept override {
    for (InFlight& request : in_flight_)
      if (request.transfer.batch == &batch) request.transfer.batch = nullptr;
  }
  std::string description() const override { return "in memory"; }
  std::string route(const Peer&) const override { return "wire"; }

 private:
  struct Bases {
    std::byte* segment;
    std::byte* scratch;
  };
  struct InFlight {
    Transfer transfer;
    std::byte* remote;
    Peer* peer;
  };

  bool deliver_one() {
    std::vector<std::byte> message;
    {
      const std::lock_guard lock(wire->mutex);
      const bool served = wire->announcements >= wire->awaited_announcements;
      if (served && !in_flight_.empty() && wire->dice() % 4 == 0)
        finish(wire->dice() % in_flight_.size());
      auto& inbox = wire->inbox[engine_.my_pe()];
      if (!inbox.empty()) {
        const auto at = static_cast<std::ptrdiff_t>(traits_.reorders ? wire->dice() % inbox.size()
                                                                     : std::size_t{0});
        message = std::move(inbox[static_cast<std::size_t>(at)]);
        inbox.erase(inbox.begin() + at);
      }
    }
    if (!message.empty()) engine_.receive(message.data(), message.size());
    return !message.empty();
  }
  void finish(std::size_t i) {
    const InFlight request = in_flight_[i];
    in_flight_.erase(in_flight_.begin() + static_cast<std::ptrdiff_t>(i));
    const Transfer& transfer = request.transfer;
    if (transfer.direction == Direction::write) {
      std::memcpy(request.remote, transfer.local, transfer.bytes);
    } else {
      std::memcpy(transfer.local, request.remote, transfer.bytes);
    }
    request.peer->finish(transfer.direction, transfer.batch);
  }

  Engine& engine_;
  const std::size_t chunk_;
  Traits traits_;
  Bases peer_{};
  std::vector<InFlight> in_flight_;
};

void run_over(Wire& over, const Settings& first, const Settings& second,
              const std::function<void(Pair&)>& body) {
  wire = &over;
  run_pair(make_network_transport<FakeNetwork>, first, second, body);
  wire = nullptr;
}

/// Runs `body` on PE 0, with nothing in flight between the two.
void run_first(Wire& over, const std::function<void(Pair&)>& body) {
  const Settings settings = pair_settings(16, 4096);
  run_over(over, settings, settings, [&](Pair& pair) {
    pair.meet();
    if (pair.pe == 1) return;
    pair.transport.quiet();
    body(pair);
  });
}
/// Waits from here on fail.
void cut(Wire& over) {
  const std::lock_guard lock(over.mutex);
  over.cut = true;
}

struct Adversity {
  const char* name;
  bool reorders;
  unsigned refuses;
  std::int64_t depth;
};

void PrintTo(const Adversity& network, std::ostream* out) {
  *out << network.name;
}

class MessageCore : public testing::TestWithParam<Adversity> {
 protected:
  static void run(const std::function<void(Pair&)>& body) {
    Wire over;
    over.reorders = GetParam().reorders;
    over.refuses = GetParam().refuses;
    const Settings settings = pair_settings(GetParam().depth, 4096);
    run_over(over, settings, settings, [&](Pair& pair) {
      body(pair);
      EXPECT_LE(pair.transport.most_in_flight(), static_cast<std::size_t>(GetParam().depth));
    });
  }
};

TEST_P(MessageCore, SignalsFollowData) {
  run(check_signals_follow_data);
}
TEST_P(MessageCore, FencesOrderPuts) {
  run(check_fences_order_puts);
}
TEST_P(MessageCore, QuietCompletesEverything) {
  run(check_quiet_completes_everything);
}
TEST_P(MessageCore, AtomicsAndSignalsAreAppliedOnceInOrder) {
  run(check_atomics_and_signals_are_applied_once_in_order);
}

INSTANTIATE_TEST_SUITE_P(Networks, MessageCore,
                         testing::Values(Adversity{"in_order", false, 0, 64},
                                         Adversity{"depth_1", false, 0, 1},
                                         Adversity{"refusing", false, 3, 8},
                                         Adversity{"reordering", true, 0, 64},
                                         Adversity{"reordering_and_refusing", true, 3, 5}),
                         testing::PrintToStringParamName());

// A target whose window is larger than the sender's depth would acknowledge too late if the sender
// did not ask.
TEST(MessageWindow, SmallerThanTheTargetGrantsDoesNotStall) {
  Wire over;
  run_over(over, pair_settings(3, 4096), pair_settings(256, 4096), [](Pair& pair) {
    for (int i = 0; i < 100; ++i) pair.transport.signal(pair.other, 0, SignalOp::add, 1);
    EXPECT_TRUE(pair.wait_for(0, 100));
    if (pair.pe == 0) EXPECT_LE(pair.transport.most_in_flight(), 3u);
  });
}

// A target that does not notice the RMA requests that it serves would sleep between its polls.
TEST(MessageAnnouncements, ArriveWhileRmaIsInFlight) {
  Wire over;
  over.hides_rma = true;
  const Settings settings = pair_settings(64, 4096);
  run_over(over, settings, settings, [&](Pair& pair) {
    pair.meet();
    if (pair.pe == 1) return;
    const auto announced = [&] {
      const std::lock_guard lock(over.mutex);
      return over.announcements;
    };
    {
      const std::lock_guard lock(over.mutex);
      over.awaited_announcements = over.announcements + 3;
    }
    std::vector<std::byte> data(1000);
    pair.transport.get(data.data(), 1, 0, data.size());  // ends when the third has been sent
    // Short transfers in quick succession share them: one per 250 us or 512 KiB.
    constexpr unsigned kGets = 1000;
    const unsigned before = announced();
    const auto start = std::chrono::steady_clock::now();
    for (unsigned i = 0; i < kGets; ++i) pair.transport.get(data.data(), 1, 0, data.size());
    const auto intervals =
        (std::chrono::steady_clock::now() - start) / std::chrono::microseconds(250);
    EXPECT_LE(announced() - before, intervals + 3);
    pair.transport.quiet();
  });
}

TEST(MessageAnnouncements, AreNotSentWhereTargetsNoticeRma) {
  Wire over;
  const Settings settings = pair_settings(64, 4096);
  run_over(over, settings, settings, [&](Pair& pair) {
    if (pair.pe == 1) return;
    std::vector<std::byte> data(100'000);
    for (int i = 0; i < 20; ++i) pair.transport.get(data.data(), 1, 0, data.size());
    const std::lock_guard lock(over.mutex);
    EXPECT_EQ(over.announcements, 0u);
  });
}

TEST(MessageFailure, IsReportedByTheOperationAndOnceByQuiet) {
  Wire over;
  run_first(over, [&](Pair& pair) {
    cut(over);
    pair.transport.signal(1, 0, SignalOp::add, 1);
    expect_error(Code::peer_failed,
                 "atomic of 8 bytes failed on PE 0: transport fake has lost PE 1",
                 [&] { pair.transport.atomic(1, AtomicOp::add, 8, 1, 0, 8); });
    expect_error(Code::peer_failed, "quiet failed on PE 0: transport fake has lost PE 1: cut",
                 [&] { pair.transport.quiet(); });
    pair.transport.quiet();
    ASSERT_EQ(pair.transport.ended().size(), 1u);
    EXPECT_EQ(pair.transport.ended()[0].pe, 1);
    EXPECT_EQ(pair.transport.ended()[0].description, "its connection (fake) ended: cut");
  });
}

// A barrier after a barrier would otherwise wait for the acknowledgement of the first one's flags.
TEST(MessageFlags, AreNotAwaitedByQuiet) {
  Wire over;
  run_first(over, [&](Pair& pair) {
    cut(over);
    pair.transport.raise_flag(1, 0, SignalOp::add, 1);
    pair.transport.quiet();
    pair.transport.fence(1);
    pair.transport.quiet();
    pair.transport.signal(1, 0, SignalOp::add, 1);
    pair.transport.raise_flag(1, 0, SignalOp::add, 1);
    expect_error(Code::peer_failed, "quiet failed on PE 0: transport fake has lost PE 1: cut",
                 [&] { pair.transport.quiet(); });
  });
}

TEST(MessageFlags, KeepTheWindow) {
  Wire over;
  run_over(over, pair_settings(3, 4096), pair_settings(256, 4096), [](Pair& pair) {
    for (int i = 0; i < 100; ++i) pair.transport.raise_flag(pair.other, 0, SignalOp::add, 1);
    EXPECT_TRUE(pair.wait_for(0, 100));
    if (pair.pe == 0) EXPECT_LE(pair.transport.most_in_flight(), 3u);
  });
}

// An atomic without a result sends a request and returns, whatever its width.
TEST(MessageUpdates, DoNotWait) {
  Wire over;
  run_first(over, [&](Pair& pair) {
    cut(over);
    for (const AtomicOp op :
         {AtomicOp::set, AtomicOp::add, AtomicOp::bit_and, AtomicOp::bit_or, AtomicOp::bit_xor})
      for (const std::size_t width : {4, 8}) pair.transport.update(1, op, 8, 1, width);
    expect_error(Code::peer_failed, "quiet failed on PE 0: transport fake has lost PE 1: cut",
                 [&] { pair.transport.quiet(); });
  });
}

// The last operation of a PE may complete in the same poll that finds the peer gone.
TEST(MessageFailure, SparesAnOperationWhoseReplyArrivedWithAGoodbye) {
  Wire over;
  run_first(over, [&](Pair& pair) {
    {
      const std::lock_guard lock(over.mutex);
      over.farewell = true;
    }
    EXPECT_EQ(pair.transport.atomic(1, AtomicOp::add, 8, 5, 0, 8), 0u);
    pair.transport.quiet();
    expect_error(Code::peer_failed, "transport fake has lost PE 1: left",
                 [&] { pair.transport.atomic(1, AtomicOp::add, 8, 1, 0, 8); });
    ASSERT_EQ(pair.transport.ended().size(), 1u);
    EXPECT_EQ(pair.transport.ended()[0].description, "its connection (fake) ended: left");
  });
}

TEST(MessageNumbers, WrapAround) {
  EXPECT_TRUE(not_before(5, 5));
  EXPECT_TRUE(not_before(6, 5));
  EXPECT_FALSE(not_before(5, 6));
  EXPECT_TRUE(not_before(2, 0xfffffffe));
  EXPECT_FALSE(not_before(0xfffffffe, 2));
}

// A message from another process is untrusted: addresses outside the segment are refused.
TEST(MessageApply, RefusesWhatLeavesTheSegment) {
  constexpr std::size_t kBytes = 4096;
  const auto valid = [](const Message& message, std::size_t payload) {
    return is_valid(message, payload, kBytes, 192);
  };
  Message word;
  word.width = 8;
  word.offset = kBytes;
  for (const Kind kind : {Kind::store, Kind::fetch, Kind::update}) {
    word.kind = kind;
    EXPECT_FALSE(valid(word, 0)) << "kind " << static_cast<int>(kind);
  }
  word.offset = kBytes - 8;
  EXPECT_TRUE(valid(word, 0));
  word.offset = kBytes - 4;
  EXPECT_FALSE(valid(word, 0)) << "past the end";
  word.offset = 4;
  EXPECT_FALSE(valid(word, 0)) << "not aligned";
  word.offset = ~std::uint64_t{7};
  EXPECT_FALSE(valid(word, 0)) << "offset + width wraps around";
  word.offset = 8;
  word.width = 2;
  EXPECT_FALSE(valid(word, 0)) << "not a word";
  word.width = 8;
  word.op = static_cast<AtomicOp>(200);
  EXPECT_FALSE(valid(word, 0)) << "no operation";

  Message put;
  put.kind = Kind::put;
  put.elements = {10, 4, 1000};
  put.offset = kBytes - 3010;
  EXPECT_TRUE(valid(put, 40));
  EXPECT_FALSE(valid(put, 39)) << "more bytes than follow";
  ++put.offset;
  EXPECT_FALSE(valid(put, 40)) << "past the end";
  put.offset = 0;
  put.elements = {1u << 31, 1u << 31, 0};
  EXPECT_FALSE(valid(put, 40)) << "length wraps around";
  put.elements = {8, 3, ~std::uint64_t{0} / 2 + 1};
  EXPECT_FALSE(valid(put, 40)) << "stride wraps around";

  Message get;
  get.kind = Kind::get;
  get.elements = {193, 1, 0};
  EXPECT_FALSE(valid(get, 0)) << "longer than a reply";

  Message signal;
  signal.set_signal(kBytes, SignalOp::set, 1);
  EXPECT_FALSE(valid(signal, 0));
  signal.signal_offset = kBytes - 8;
  EXPECT_TRUE(valid(signal, 0));
}

}  // namespace
}  // namespace shoal::test
