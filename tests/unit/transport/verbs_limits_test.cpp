// SPDX-License-Identifier: Apache-2.0
// The start of the verbs transport over fake_ibverbs: order of queue pairs, choice of ports, errors
// of settings and limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>

#include "fake_ibverbs/module.hpp"
#include "memory/host/segment.hpp"
#include "support/expect_error.hpp"
#ifdef SHOAL_WITH_FAKE_VERBS
#include <infiniband/verbs.h>

#include "transport/verbs/order.hpp"
#include "transport/verbs/port/address.hpp"
#include "transport/verbs/requirements.hpp"

namespace shoal::test {
namespace {

using transport::verbs::creation_order;
using transport::verbs::Place;

// Step i of all PEs is a permutation: no PE is the target of two.
TEST(VerbsCreationOrder, EveryStepIsAPermutation) {
  constexpr Pe kPes = 8;
  constexpr std::size_t kEach = 3;
  std::vector<std::vector<Place>> orders;
  for (Pe me = 0; me < kPes; ++me) orders.push_back(creation_order(kPes, me, kEach, true));
  for (std::size_t i = 0; i < orders[0].size(); ++i) {
    std::set<Pe> targets;
    for (Pe me = 0; me < kPes; ++me) {
      const Place& place = orders[static_cast<std::size_t>(me)][i];
      targets.insert(place.pe);
      EXPECT_EQ(place.index, i / (kPes - 1));
      EXPECT_EQ(place.pe, (static_cast<Pe>(i % (kPes - 1)) + 1 + me) % kPes);
    }
    EXPECT_EQ(targets.size(), static_cast<std::size_t>(kPes)) << "step " << i;
  }
}

TEST(VerbsCreationOrder, TheNaiveOrderIsTheSameForAll) {
  EXPECT_EQ(creation_order(4, 2, 1, false), (std::vector<Place>{{0, 0}, {1, 0}, {3, 0}}));
  EXPECT_EQ(creation_order(4, 2, 1, true), (std::vector<Place>{{3, 0}, {0, 0}, {1, 0}}));
  EXPECT_TRUE(creation_order(1, 0, 4, true).empty());
}

class VerbsStart : public WithFakeVerbs {
 protected:
  /// PE `me` of `n` alone: as far as its address.
  std::vector<std::byte> start(const Settings& settings, Pe n = 2, Pe me = 0,
                               std::vector<std::string> nics = {}) {
    const std::vector<std::int32_t> one_host(static_cast<std::size_t>(n), 0);
    transport::Context context;
    context.my_pe = me;
    context.n_pes = n;
    context.host_of = context.node_of = one_host;
    context.segment = memory::Segment::create(kPairSegmentBytes);
    context.settings = &settings;
    context.wanted.resize(static_cast<std::size_t>(n), true);
    context.wanted[static_cast<std::size_t>(me)] = false;
    context.nics = std::move(nics);
    return module->make(context)->address();
  }
  void expect_refusal(const Settings& settings, std::vector<std::string_view> parts, Pe n = 2,
                      std::vector<std::string> nics = {}) {
    try {
      start(settings, n, 0, std::move(nics));
      ADD_FAILURE() << "no error with " << parts[0];
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::unsupported);
      for (const std::string_view part : parts)
        EXPECT_NE(std::string_view(error.what()).find(part), std::string_view::npos)
            << "\"" << part << "\" is not in: " << error.what();
    }
    EXPECT_EQ(counts().objects_left, 0u) << "what was made before the error remains";
  }
};

TEST_F(VerbsStart, CreatesQueuePairsInTheChosenOrder) {
  Settings chosen = settings();
  chosen.verbs_queue_pairs = 2;
  for (const char* order : {"rotated", "naive"}) {
    chosen.verbs_queue_order = order;
    const std::vector<std::byte> address = start(chosen, 5, 3);
    // Queue pairs get ascending numbers; the address has them by PE.
    constexpr std::size_t kEngine = 16;
    const std::byte* const table = address.data() + kEngine +
                                   sizeof(transport::verbs::AddressHeader) +
                                   sizeof(transport::verbs::PortAddress);
    std::vector<std::pair<std::uint32_t, Place>> created;
    for (Pe pe = 0; pe < 5; ++pe)
      for (std::size_t q = 0; q < 2; ++q) {
        transport::verbs::QueueAddress queue;
        std::memcpy(&queue, table + (static_cast<std::size_t>(pe) * 2 + q) * sizeof queue,
                    sizeof queue);
        if (queue.number != 0) created.push_back({queue.number, {pe, q}});
      }
    std::ranges::sort(created, {}, &std::pair<std::uint32_t, Place>::first);
    std::vector<Place> places;
    for (const auto& [number, place] : created) places.push_back(place);
    EXPECT_EQ(places, creation_order(5, 3, 2, order == std::string("rotated"))) << order;
  }
}

TEST_F(VerbsStart, AMissingLibraryNamesTheSetting) {
  Settings chosen = settings();
  chosen.verbs_library = "libibverbs-is-not-here.so";
  expect_refusal(
      chosen, {"libibverbs cannot be loaded", "libibverbs-is-not-here.so", "SHOAL_VERBS_LIBRARY"});
  chosen.verbs_library = "libm.so.6";
  expect_refusal(
      chosen, {"libm.so.6 is no libibverbs: it lacks ibv_get_device_list", "SHOAL_VERBS_LIBRARY"});
  const transport::Probe probe = module->probe(chosen);
  expect_parts(probe.missing, {"is no libibverbs"});
}

TEST_F(VerbsStart, AMachineWithoutPortsSaysSo) {
  reset({.devices = 0});
  expect_refusal(settings(), {"finds no RDMA device"});
  expect_parts(module->probe(settings()).missing, {"finds no RDMA device"});
  reset({.active = false});
  expect_refusal(settings(), {"no RDMA port is active: fake_0:1 (not active)"});
  reset({.atomics = false});
  expect_refusal(settings(), {"fake_0:1 has no RDMA atomics"});
  reset({.devices = 2});
  const transport::Probe probe = module->probe(settings());
  EXPECT_EQ(probe.missing, "");
  expect_parts(probe.library, {"fake_0:1, fake_1:1"});
}

TEST_F(VerbsStart, UsesThePortsOfTheNicPlan) {
  reset({.devices = 3});
  start(settings(), 2, 0, {"fake_2", "fake_0:1"});
  EXPECT_EQ(counts().numbers.size(), 2u);
  reset({.devices = 3});
  start(settings(), 2, 0, {"eth0"});  // the plan knows no RDMA port: the first one
  EXPECT_EQ(counts().numbers.size(), 1u);
  Settings chosen = settings();
  chosen.nic_list = "eth0";
  expect_refusal(
      chosen,
      {"none of the NICs eth0 is an active RDMA port", "fake_0:1, fake_1:1", "SHOAL_NIC_LIST"}, 2,
      {"eth0"});
}

TEST_F(VerbsStart, LimitsOfTheDeviceAreNamedWithTheSetting) {
  Settings chosen = settings();
  reset({.max_qp_wr = 100});
  expect_refusal(chosen, {"SHOAL_VERBS_DEPTH is 512", "fake_0:1 have at most 100 requests"});
  reset({.max_qp = 6});
  chosen.verbs_queue_pairs = 2;
  expect_refusal(
      chosen, {"8 queue pairs are needed; fake_0:1 has at most 6", "SHOAL_VERBS_QUEUE_PAIRS"}, 5);
  reset({.create_limit = 3});
  expect_refusal(
      chosen,
      {"queue pair 1 of 2 for PE 4 on fake_0:1 (PE 0) cannot be created", "Cannot allocate memory",
       "3 others exist (device: at most 1000)", "SHOAL_VERBS_QUEUE_PAIRS"},
      5);
  reset({.inline_limit = 64});
  expect_refusal(chosen, {"Invalid argument", "inline 128 bytes", "SHOAL_VERBS_INLINE"});
  reset({.max_atomics = 0});
  expect_refusal(chosen, {"allows no reads and atomics in flight"});
  reset({.devices = 3});
  chosen.verbs_queue_pairs = 16;
  expect_refusal(chosen, {"16 queue pairs for each peer on each of 3 ports are more than 32"}, 2,
                 {"fake_0", "fake_1", "fake_2"});
}

TEST_F(VerbsStart, EveryQueuePairNeedsRoomInTheCompletionQueueAndAnAtomic) {
  Settings chosen = settings();
  chosen.verbs_queue_pairs = 2;
  reset({.max_cqe = 15});
  expect_refusal(chosen,
                 {"the completion queue of fake_0:1 has 15 entries",
                  "8 queue pairs need at least "
                  "16",
                  "SHOAL_VERBS_QUEUE_PAIRS (2)"},
                 5);
  reset({.max_cqe = 16});
  start(chosen, 5);
  reset({.most_reads_and_atomics = 7});
  expect_refusal(chosen,
                 {"fake_0:1 serves 7 reads and atomics at a time; 8 queue pairs need one each",
                  "SHOAL_VERBS_QUEUE_PAIRS (2)"},
                 5);
  reset({.most_reads_and_atomics = 8});
  start(chosen, 5);
}

TEST(VerbsRequirements, ShortfallsNameNeedLimitAndSetting) {
  using transport::verbs::Demand;
  Demand demand{.port = "mlx5_0:1",
                .network_depth = 256,
                .depth = 512,
                .queue_pairs = 6,
                .most_depth = 32'768,
                .completions = 6 * 512};
  EXPECT_EQ(transport::verbs::required_depth(256), 386u);
  EXPECT_TRUE(shortfalls(demand).empty());  // the defaults
  demand.depth = 385;
  ASSERT_EQ(shortfalls(demand).size(), 1u);
  EXPECT_EQ(
      shortfalls(demand)[0],
      "SHOAL-N398: send queues of mlx5_0:1 have 385 requests, SHOAL_NETWORK_DEPTH=256 fills 386, "
      "so calls wait for room: set SHOAL_VERBS_DEPTH=386 (device: at most 32768)");
  demand.most_depth = 385;
  expect_parts(shortfalls(demand)[0], {"the device has at most 385: set SHOAL_VERBS_DEPTH=385 and "
                                       "a smaller SHOAL_NETWORK_DEPTH"});
  demand.depth = 512;
  demand.completions = 6 * 386 - 1;
  ASSERT_EQ(shortfalls(demand).size(), 1u);
  expect_parts(shortfalls(demand)[0], {"has 2315 entries, the most of the device; 6 queue pairs "
                                       "fill 2316"});
}

TEST(VerbsRequirements, LoadsOfAPeerAreCutAndSpread) {
  using transport::Load;
  using transport::verbs::PeerQueues;
  using transport::verbs::required_depth;
  const PeerQueues one{
      .piece_bytes = 262'144, .depth = 16, .most_depth = 32'768, .network_depth = 256};
  PeerQueues four = one;
  four.queue_pairs = 4;
  // 4 chunks of 3 pieces; each of 8 signals is two requests; and 2 more.
  const Load chunks{"normal mode", 4, 786'432, 8};
  EXPECT_EQ(requests_of(chunks, one), 12u);
  EXPECT_EQ(required_depth(chunks, one), 12u + 16 + 2);
  EXPECT_EQ(requests_of(chunks, four), 16u) << "a piece for every queue pair";
  EXPECT_EQ(required_depth(chunks, four), 4u + 16 + 2);
  const Load rows{"low_latency_combine", 32, 2047, 6};
  EXPECT_EQ(required_depth(rows, one), required_depth(rows, four)) << "short puts are not spread";
  EXPECT_EQ(required_depth({"", 0, 0, 1000}, one), 2u * 64 + 2) << "a ring of messages";
}

TEST(VerbsRequirements, ShortfallsOfLoadsNameCallNeedLimitAndSetting) {
  using transport::Load;
  transport::verbs::PeerQueues queues{
      .piece_bytes = 4096, .depth = 218, .most_depth = 1024, .network_depth = 200};
  const std::vector<Load> loads{{"low_latency_dispatch", 2, 409'600, 8}};
  const auto found = [&] { return shortfalls(queues, loads); };
  EXPECT_TRUE(found().empty()) << found()[0];
  queues.depth = 217;
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(
      found()[0],
      "SHOAL-N398: low_latency_dispatch has 218 requests on one queue pair in flight, send "
      "queues have 217, so it waits for room: set SHOAL_VERBS_DEPTH=218 (device: at most 1024)");
  queues.most_depth = 217;
  ASSERT_EQ(found().size(), 1u);
  expect_parts(found()[0], {"the device has at most 217: set a larger SHOAL_VERBS_QUEUE_PAIRS or "
                            "SHOAL_NETWORK_CHUNK"});
  queues.depth = 218;
  queues.network_depth = 199;
  ASSERT_EQ(found().size(), 1u);
  EXPECT_EQ(
      found()[0],
      "SHOAL-N398: low_latency_dispatch has 200 requests for one PE in flight, "
      "SHOAL_NETWORK_DEPTH=199 allows fewer, so it waits for room: set SHOAL_NETWORK_DEPTH=200 and a "
      "SHOAL_VERBS_DEPTH that fits, or a larger SHOAL_NETWORK_CHUNK");
}

TEST(VerbsRequirements, ReadsAndAtomicsAreShared) {
  using transport::verbs::atomics_of;
  EXPECT_EQ(atomics_of({.queue_pairs = 6, .most_atomics = 100}, 16), 16u);
  EXPECT_EQ(atomics_of({.queue_pairs = 10, .most_atomics = 100}, 16), 10u);
  EXPECT_EQ(atomics_of({.queue_pairs = 10, .most_atomics = 0}, 16), 16u);
  EXPECT_EQ(atomics_of({.queue_pairs = 101, .most_atomics = 100}, 16), 0u);
}

TEST_F(VerbsStart, StateChangesNameTheAttributesAndTheirLimits) {
  reset({.refused_state = IBV_QPS_INIT});
  expect_refusal(settings(),
                 {"queue pair 1 of 1 for PE 1 on fake_0:1 (PE 0) does not change to INIT",
                  "Invalid argument", "port 1", "atomic capability 1). Setting: SHOAL_NIC_LIST"});
  for (const auto& [state, text, remedy] :
       {std::tuple{IBV_QPS_RTR,
                   "does not change to RTR: Invalid argument; path MTU 4096 (port: 4096)",
                   "Settings: SHOAL_VERBS_GID_INDEX, SHOAL_VERBS_SERVICE_LEVEL, SHOAL_NIC_LIST"},
        std::tuple{IBV_QPS_RTS, "does not change to RTS: Invalid argument; timeout 16 (at most 31)",
                   "Settings: SHOAL_VERBS_TIMEOUT, SHOAL_VERBS_RETRIES"}}) {
    reset({.refused_state = state});
    run_unconnected_pair(
        module->make, settings(), settings(),
        [&, parts = std::array{text, remedy}](const std::string& reason) {
          const bool first = reason.find("for PE 1 on fake_0:1 (PE 0)") != std::string::npos;
          const bool second = reason.find("for PE 0 on fake_0:1 (PE 1)") != std::string::npos;
          EXPECT_NE(first, second) << "the PEs are not named: " << reason;
          for (const char* part : parts) expect_parts(reason, {part});
        });
  }
}

TEST_F(VerbsStart, BadGidsAreNamed) {
  reset({.ethernet = true});
  Settings chosen = settings();
  chosen.verbs_gid_index = 2;
  expect_refusal(chosen,
                 {"entry 2 of the GID table of fake_0:1 is empty", "SHOAL_VERBS_GID_INDEX"});
  chosen.verbs_gid_index = 9;
  expect_refusal(chosen, {"SHOAL_VERBS_GID_INDEX is 9; fake_0:1 has entries 0 to 3"});
}

// PEs that make different numbers of queue pairs, or are on different networks, do not connect.
TEST_F(VerbsStart, PesThatDisagreeSayHow) {
  Settings two = settings();
  two.verbs_queue_pairs = 2;
  run_unconnected_pair(module->make, settings(), two, [](const std::string& reason) {
    expect_parts(reason, {"queue pairs per peer, this PE"});
  });
}

}  // namespace
}  // namespace shoal::test
#endif
