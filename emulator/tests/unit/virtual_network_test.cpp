// SPDX-License-Identifier: Apache-2.0
// The network in virtual time: rates of links, queues at the ports of the switch, and packets that
// their buffers drop.
#include <gtest/gtest.h>

#include <algorithm>

#include "rig.hpp"

namespace shoal::emulator::test {
namespace {

constexpr std::uint32_t kBytes = 1 << 20;
constexpr Time kLatency{2000};
constexpr std::size_t kMtu = 4096, kHeaders = 100;  ///< of a packet, at most

NetworkOptions network_of(double rate, std::uint32_t nics = 2) {
  NetworkOptions options{.nics = nics, .bytes_per_ns = rate, .latency = kLatency};
  options.nic.window = 1024;  // packets: more than a test sends
  return options;
}

class EmulatorLinks : public testing::TestWithParam<double> {};

// The last packet is serialised twice: to the switch and from it.
TEST_P(EmulatorLinks, AWriteTakesItsBytesAtTheRateOfALinkAndTheLatency) {
  const double rate = GetParam();
  Pair pair(network_of(rate), {.memory = kBytes});
  pair.a.memory[kBytes / 8 - 1] = 1;
  pair.a.write(pair.b, 0, 0, kBytes);
  ASSERT_TRUE(pair.network.run_until([&] { return pair.b.memory[kBytes / 8 - 1] != 0; }));
  const auto took = static_cast<double>((pair.network.now() - kLatency).count());
  const double packets = kBytes / kMtu;
  EXPECT_GE(took, (kBytes + kMtu) / rate);
  // Up to a nanosecond a packet is lost by rounding.
  EXPECT_LE(took, (kBytes + kMtu + (packets + 1) * kHeaders) / rate + packets + 1);
  EXPECT_LT(pair.network.statistics().most_queued, kHeaders) << "it comes as fast as it leaves";
}

INSTANTIATE_TEST_SUITE_P(BytesPerNs, EmulatorLinks, testing::Values(1.0, 12.5, 50.0),
                         [](const auto& rate) {
                           return std::to_string(static_cast<int>(rate.param * 10)) + "tenths";
                         });

/// NICs 0 and 1 write kBytes each to NIC 2 at the same time.
struct Incast {
  explicit Incast(std::uint64_t port_bytes)
      : network([&] {
          NetworkOptions options = network_of(50, 3);
          options.port_bytes = port_bytes;
          return options;
        }()) {
    for (std::uint32_t i = 0; i < 2; ++i) {
      sources.push_back(std::make_unique<End>(network, i, EndOptions{.memory = kBytes}));
      targets.push_back(std::make_unique<End>(network, 2, EndOptions{.memory = kBytes}));
      std::ranges::fill(sources[i]->memory, i + 1);
      sources[i]->connect(*targets[i], {.ack_timeout = 8});
      targets[i]->connect(*sources[i], {.ack_timeout = 8});
    }
    for (std::uint32_t i = 0; i < 2; ++i) sources[i]->write(*targets[i], 0, 0, kBytes);
    for (std::uint32_t i = 0; i < 2; ++i) {
      std::optional<Seen> seen;
      network.run_until([&] { return (seen = sources[i]->sent.poll()).has_value(); });
      EXPECT_TRUE(seen.has_value() && seen->syndrome == Syndrome::none) << i;
      EXPECT_EQ(std::ranges::count(targets[i]->memory, i + 1), kBytes / 8) << i;
    }
  }
  VirtualNetwork network;
  std::vector<std::unique_ptr<End>> sources, targets;
};

TEST(EmulatorIncast, WithoutALimitTheQueueHoldsWhatThePortCannotSend) {
  Incast incast(0);
  const VirtualNetwork::Statistics& seen = incast.network.statistics();
  EXPECT_EQ(seen.overflowed, 0U);
  EXPECT_EQ(seen.lost, 0U);
  // Two links fill the queue at the rate at which one empties it.
  EXPECT_NEAR(static_cast<double>(seen.most_queued), kBytes, kBytes * 0.04);
  EXPECT_GE(incast.network.now(), Time(2 * kBytes / 50) + kLatency);
}

TEST(EmulatorIncast, AQueuePastTheBufferOfThePortIsDroppedAndSentAgain) {
  constexpr std::uint64_t kBuffer = 128 << 10;
  Incast incast(kBuffer);
  const VirtualNetwork::Statistics& seen = incast.network.statistics();
  EXPECT_GT(seen.overflowed, 10U);
  EXPECT_EQ(seen.lost, 0U) << "what a port drops is counted apart";
  EXPECT_LE(seen.most_queued, kBuffer);
  EXPECT_GT(seen.most_queued, kBuffer - 2 * kMtu);
}

TEST(EmulatorIncast, ABufferThatHoldsTheQueueDropsNothing) {
  Incast incast(2 * kBytes);
  EXPECT_EQ(incast.network.statistics().overflowed, 0U);
}

}  // namespace
}  // namespace shoal::emulator::test
