// SPDX-License-Identifier: Apache-2.0
// The choice of transports, and operations on mapped memory.

#include "transport/transport.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <numeric>

#include "fabric/connectivity.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"
#include "transport/self/self.hpp"

namespace shoal {
namespace {

using detail::Connectivity;
using transport::Capabilities;
namespace capability = transport::capability;

constexpr Capabilities kAll = capability::all_operations;
constexpr Capabilities kNear = kAll | capability::load_store;

/// A map of n PEs and the transports "near" and "far".
Connectivity make_map(std::size_t n_pes,
                      const std::function<Capabilities(Pe, Pe, int)>& capabilities) {
  Connectivity map;
  map.names = {"near", "far"};
  map.n_pes = n_pes;
  for (std::size_t a = 0; a < n_pes; ++a)
    for (std::size_t b = 0; b < n_pes; ++b)
      for (const int t : {0, 1})
        map.map.push_back(capabilities(static_cast<Pe>(a), static_cast<Pe>(b), t));
  map.reasons.assign(n_pes, {"too far", "no network"});
  return map;
}

TEST(Connectivity, PrefersTheFirstThatDoesEverything) {
  Connectivity map = make_map(4, [](Pe a, Pe b, int t) {
    return t == 1 ? kAll : a / 2 == b / 2 ? kNear : Capabilities{0};
  });
  detail::choose_transports(map, 2);
  EXPECT_EQ(map.transport_of, (std::vector<std::size_t>{1, 1, 0, 0}));
  EXPECT_EQ(map.capabilities, (std::vector<Capabilities>{kAll, kAll, kNear, kNear}));
  EXPECT_EQ(detail::load_store_peers(map, 2), (std::vector<Pe>{2, 3}));
}

// Both PEs of a pair choose alike, even where only one of them reaches the other.
TEST(Connectivity, NeedsBothDirections) {
  const auto capabilities = [](Pe a, Pe b, int t) {
    return t == 0 && a == 0 && b == 1 ? capability::put : kAll;
  };
  for (const Pe me : {0, 1}) {
    Connectivity map = make_map(2, capabilities);
    detail::choose_transports(map, me);
    EXPECT_EQ(map.transport_of[static_cast<std::size_t>(1 - me)], 1u);
    EXPECT_EQ(map.transport_of[static_cast<std::size_t>(me)], 0u);
  }
}

TEST(Connectivity, NamesThePairThatNothingConnects) {
  const auto capabilities = [](Pe a, Pe b, int t) {
    return a + b == 3 && a != b ? capability::put : t == 0 ? kNear : kAll;
  };
  for (const Pe me : {0, 1, 2}) {
    Connectivity map = make_map(3, capabilities);
    try {
      detail::choose_transports(map, me);
      FAIL() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::unsupported);
      const std::string text = error.what();
      test::expect_parts(text, {"near offers put"});
      EXPECT_EQ(text.find("too far") != std::string::npos, me != 0) << text;
    }
  }
}

/// Four PEs on two nodes, with "shm" inside a node. `network`: what "ofi" and "ucx" offer, where
/// `names` has them.
Connectivity two_nodes(std::vector<std::string> names,
                       const std::function<Capabilities(Pe, Pe, int)>& network = {}) {
  Connectivity map;
  map.names = std::move(names);
  map.n_pes = 4;
  map.node_of = {0, 0, 1, 1};
  for (Pe a = 0; a < 4; ++a)
    for (Pe b = 0; b < 4; ++b)
      for (int t = 0; t < static_cast<int>(map.names.size()); ++t)
        map.map.push_back(t > 0 ? network(a, b, t) : a / 2 == b / 2 ? kNear : Capabilities{0});
  map.reasons.assign(4, std::vector<std::string>(map.names.size(), "far"));
  detail::read_preferences(map, Settings{}, detail::kHostTransports);
  return map;
}
constexpr std::string_view kNetworks[] = {"ofi", "ucx"};

// Networks are loaded on demand.
TEST(Connectivity, ANetworkIsTriedWhereAPairNeedsIt) {
  Connectivity map = two_nodes({"shm"});
  EXPECT_EQ(detail::next_network(map, kNetworks), "ofi");
  EXPECT_TRUE(detail::wants(map, 0, 2, "ofi"));
  EXPECT_FALSE(detail::wants(map, 0, 1, "ofi"));
  map.node_of = {0, 0, 0, 0};
  for (auto& capabilities : map.map) capabilities = kNear;
  EXPECT_EQ(detail::next_network(map, kNetworks), "");
}

TEST(Connectivity, ANetworkThatFailsForOnePairIsDroppedForAll) {
  const auto all_but_one = [](Pe a, Pe b, int t) {
    return t == 1 && a == 1 && b == 3 ? Capabilities{0} : kAll;
  };
  Connectivity map = two_nodes({"shm", "ofi"}, all_but_one);
  detail::drop_where_broken(map, "ofi");
  test::expect_parts(map.dropped[1], {"PE 1 and PE 3"});
  EXPECT_EQ(detail::next_network(map, kNetworks), "ucx");

  map = two_nodes({"shm", "ofi", "ucx"}, all_but_one);
  detail::drop_where_broken(map, "ofi");
  detail::drop_where_broken(map, "ucx");
  EXPECT_EQ(map.dropped[2], "");
  EXPECT_EQ(detail::next_network(map, kNetworks), "");
  detail::choose_transports(map, 0);
  EXPECT_EQ(map.transport_of, (std::vector<std::size_t>{0, 0, 2, 2}));
  EXPECT_EQ(detail::load_store_domains(map), (std::vector<std::int32_t>{0, 0, 1, 1}));
}

TEST(Connectivity, ANetworkThatWorksWhereItIsNeededIsKept) {
  Connectivity map = two_nodes(
      {"shm", "ofi"}, [](Pe a, Pe b, int) { return a / 2 == b / 2 ? Capabilities{0} : kAll; });
  detail::drop_where_broken(map, "ofi");
  EXPECT_EQ(map.dropped[1], "");
}

TEST(Connectivity, TheAutomaticOrderBeginsWithVerbsWhereAllHaveAnActivePort) {
  Connectivity map = two_nodes({"shm"});
  using Names = std::vector<std::string>;
  const auto read = [&](const char* between, bool rdma) {
    Settings settings;
    settings.transport_between = between;
    detail::read_preferences(map, settings, detail::kHostTransports, rdma);
    return map.between;
  };
  EXPECT_EQ(read("automatic", true), (Names{"shm", "verbs", "ucx", "ofi"}));
  EXPECT_EQ(map.inside, map.between);
  EXPECT_EQ(read("automatic", false), (Names{"shm", "ofi", "ucx", "verbs"}));
  EXPECT_EQ(read("verbs,network", true), (Names{"verbs", "ucx", "ofi"}));
  EXPECT_EQ(read("verbs,network", false), (Names{"verbs", "ofi", "ucx"}));
  EXPECT_EQ(read("network,shm,staged", false), (Names{"ofi", "ucx", "verbs", "shm"}));
  EXPECT_EQ(read("staged", true), (Names{"shm", "verbs", "ucx", "ofi"}));
  test::expect_error(Code::invalid_argument, "names ofi twice", [&] { read("network,ofi", true); });
  Settings settings;
  settings.transport_inside = "network,shm,staged";
  detail::read_preferences(map, settings, detail::kHeapTransports, true);
  EXPECT_EQ(map.inside, Names{"staged"});
  EXPECT_EQ(map.between, (Names{"cuda_p2p", "staged"}));
}

// One fault makes other PEs fail too, so the text has those of several PEs, but not of all.
TEST(Connectivity, ADroppedNetworkNamesTheFaults) {
  Connectivity map = two_nodes({"shm", "ofi"}, [](Pe, Pe, int) { return Capabilities{0}; });
  const std::string faults[] = {"", "PE 1 to PE 2: cut", "PE 2 to PE 1: lost",
                                "PE 3 to PE 0: late"};
  detail::drop_where_broken(map, "ofi", faults);
  EXPECT_EQ(map.dropped[1],
            "dropped for all, since between PE 0 and PE 2 it offers nothing; PE 1 to PE 2: cut; "
            "PE 2 to PE 1: lost; PE 3 to PE 0: late");
  map.dropped[1].clear();
  const std::vector<std::string> many(4, "a fault");
  detail::drop_where_broken(map, "ofi", many);
  EXPECT_TRUE(map.dropped[1].ends_with("nothing; a fault; a fault; a fault")) << map.dropped[1];
}

// The error of a lost connection names other transports that were tried and work, networks that
// both PEs have, and the setting of the pair.
TEST(Connectivity, NamesTheOtherTransportsOfAPair) {
  Connectivity map = two_nodes({"shm", "ofi"}, [](Pe, Pe, int) { return kAll; });
  const auto others = [&](Pe a, Pe b) { return detail::other_transports(map, kNetworks, a, b); };
  EXPECT_EQ(others(0, 2),
            "; the two PEs have no other transport. Setting: SHOAL_TRANSPORT_BETWEEN");
  map.installed = {3, 3, 3, 1};  // PE 3 lacks ucx
  EXPECT_EQ(others(0, 2), "; both PEs also have ucx (not tried). Setting: SHOAL_TRANSPORT_BETWEEN");
  EXPECT_EQ(others(0, 3),
            "; the two PEs have no other transport. Setting: SHOAL_TRANSPORT_BETWEEN");
  EXPECT_EQ(others(0, 1),
            "; both PEs also have ofi, ucx (not tried). Setting: SHOAL_TRANSPORT_INSIDE");
  map.dropped = {"", "dropped for all"};
  EXPECT_EQ(others(0, 1), "; both PEs also have ucx (not tried). Setting: SHOAL_TRANSPORT_INSIDE");
}

TEST(Connectivity, SettingsLimitTheChoice) {
  Connectivity map = two_nodes({"shm"});
  Settings settings;
  settings.transport_inside = "libfabric,shm";
  settings.transport_between = "ucx";
  detail::read_preferences(map, settings, detail::kHostTransports);
  EXPECT_EQ(detail::next_network(map, kNetworks), "ucx");  // between nodes first
  EXPECT_TRUE(detail::wants(map, 0, 1, "ofi"));            // rather than shm
  settings.transport_between = "shm,infiniband";
  test::expect_error(Code::invalid_argument, "\"infiniband\" is no transport",
                     [&] { detail::read_preferences(map, settings, detail::kHostTransports); });
  settings.transport_between = "ofi,libfabric";
  test::expect_error(Code::invalid_argument, "names ofi twice",
                     [&] { detail::read_preferences(map, settings, detail::kHostTransports); });
}

TEST(Connectivity, SharedTeamsAreEquivalences) {
  // 0 and 1, 1 and 2, but not 0 and 2.
  Connectivity map = make_map(3, [](Pe a, Pe b, int t) {
    return t == 1 ? kAll : std::abs(a - b) <= 1 ? kNear : Capabilities{0};
  });
  for (const Pe me : {0, 1, 2}) EXPECT_EQ(detail::load_store_peers(map, me), std::vector<Pe>{me});
}

TEST(Transport, DescribesCapabilities) {
  EXPECT_EQ(transport::describe(kNear), "load-store put get atomics signals");
  EXPECT_EQ(transport::describe(capability::get | capability::signals), "get signals");
  EXPECT_EQ(transport::describe(0), "nothing");
  EXPECT_FALSE(transport::factories().empty());
}

class SelfTransport : public testing::Test {
 protected:
  void SetUp() override {
    transport::Context context;
    context.n_pes = 1;
    context.segment = memory::Segment::create(4096);
    bytes_ = context.segment->base();
    self_ = transport::make_self(context);
  }
  template <typename T>
  T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, bytes_ + offset, sizeof value);
    return value;
  }
  std::byte* bytes_ = nullptr;
  std::unique_ptr<transport::Transport> self_;
};

TEST_F(SelfTransport, CopiesAtAnyAlignment) {
  for (const std::size_t size : {1u, 3u, 4u, 8u, 9u, 100u}) {
    for (const std::size_t offset : {64u, 65u, 68u}) {
      std::vector<std::byte> out(size, std::byte{0x5a});
      std::memset(bytes_, 0, 4096);
      self_->put(0, offset, out.data(), size);
      EXPECT_EQ(at<std::byte>(offset - 1), std::byte{0});
      EXPECT_EQ(at<std::byte>(offset + size), std::byte{0});
      std::vector<std::byte> in(size);
      self_->get(in.data(), 0, offset, size);
      EXPECT_EQ(in, out);
    }
  }
}

TEST_F(SelfTransport, MovesOverlappingRanges) {
  std::iota(reinterpret_cast<unsigned char*>(bytes_),
            reinterpret_cast<unsigned char*>(bytes_) + 100, static_cast<unsigned char>(0));
  self_->put(0, 10, bytes_, 90);
  for (std::size_t i = 0; i < 90; ++i) EXPECT_EQ(at<unsigned char>(10 + i), i);
}

TEST_F(SelfTransport, UpdatesAtomically) {
  constexpr std::uint64_t kNone = 0;
  EXPECT_EQ(self_->atomic(0, AtomicOp::set, 0, 5, kNone, 8), 0u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::add, 0, 3, kNone, 8), 5u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::bit_xor, 0, 1, kNone, 8), 8u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::bit_or, 0, 6, kNone, 8), 9u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::bit_and, 0, 12, kNone, 8), 15u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::compare_swap, 0, 99, 11, 8), 12u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::compare_swap, 0, 99, 12, 8), 12u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::swap, 0, 1, kNone, 8), 99u);
  EXPECT_EQ(self_->atomic(0, AtomicOp::fetch, 0, 0, kNone, 8), 1u);
  // A 4-byte word wraps and leaves its neighbour alone.
  self_->atomic(0, AtomicOp::set, 16, 0xffffffff, kNone, 4);
  EXPECT_EQ(self_->atomic(0, AtomicOp::add, 16, 2, kNone, 4), 0xffffffffu);
  EXPECT_EQ(at<std::uint64_t>(16), 1u);
}

TEST_F(SelfTransport, Signals) {
  const int data = 7;
  self_->put_signal(0, 128, &data, sizeof data, 0, SignalOp::set, 3);
  self_->signal(0, 0, SignalOp::add, 4);
  self_->fence(0);
  self_->quiet();
  EXPECT_EQ(at<std::uint64_t>(0), 7u);
  EXPECT_EQ(at<int>(128), 7);
}

}  // namespace
}  // namespace shoal
