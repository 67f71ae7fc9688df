// SPDX-License-Identifier: Apache-2.0
// The pure parts under teams: placement of PEs, team indices, the control block.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>

#include "base/wait_point.hpp"
#include "pe/agreement.hpp"
#include "pe/control.hpp"
#include "pe/placement.hpp"
#include "shoal/error.hpp"
#include "support/expect_error.hpp"
#include "team/slots.hpp"
#include "team/teams.hpp"
#include "topology/identity.hpp"

namespace shoal {
namespace {

using topology::HostIdentity;
using topology::HostMap;

std::vector<HostIdentity> hosts(std::string_view letters) {
  std::vector<HostIdentity> result;
  for (const char letter : letters) result.push_back({std::string(1, letter), "same-name"});
  return result;
}

// Block, round-robin or neither.
TEST(HostMap, FollowsTheHostsInAnyOrder) {
  const HostMap block = topology::place(hosts("aabb"), 0);
  EXPECT_EQ(block.pes_per_node, 2);
  EXPECT_EQ(block.nodes, (std::vector<std::vector<Pe>>{{0, 1}, {2, 3}}));
  EXPECT_EQ(block.index_on_node, (std::vector<Pe>{0, 1, 0, 1}));
  const HostMap round_robin = topology::place(hosts("abab"), 0);
  EXPECT_EQ(round_robin.nodes, (std::vector<std::vector<Pe>>{{0, 2}, {1, 3}}));
  EXPECT_EQ(round_robin.index_on_node, (std::vector<Pe>{0, 0, 1, 1}));
  EXPECT_EQ(topology::place(hosts("abbaab"), 0).nodes,
            (std::vector<std::vector<Pe>>{{0, 3, 4}, {1, 2, 5}}));
}

TEST(HostMap, PesOfOneNetworkNamespaceShareALoopbackInterface) {
  auto all = hosts("aaabb");
  for (const std::size_t pe : {0u, 2u, 3u}) all[pe].network = "net:[1]";
  all[1].network = all[4].network = "net:[2]";
  all.push_back({"b", "same-name", "net:[1]"});
  const HostMap map = topology::place(all, 0);
  EXPECT_EQ(map.host_of, (std::vector<std::int32_t>{0, 0, 0, 1, 1, 1}));
  EXPECT_EQ(map.network_of, (std::vector<std::int32_t>{0, 1, 0, 2, 3, 2})) << "of each host";
}

TEST(HostMap, SplitsHostsIntoEmulatedNodes) {
  const HostMap split = topology::place(hosts("abababab"), 2);
  EXPECT_EQ(split.nodes, (std::vector<std::vector<Pe>>{{0, 2}, {4, 6}, {1, 3}, {5, 7}}));
  EXPECT_EQ(split.index_on_node, (std::vector<Pe>{0, 0, 1, 1, 0, 0, 1, 1}));
  EXPECT_EQ(split.index_on_host, (std::vector<Pe>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(split.host_of, (std::vector<std::int32_t>{0, 1, 0, 1, 0, 1, 0, 1}));
  EXPECT_EQ(split.node_of, (std::vector<std::int32_t>{0, 2, 0, 2, 1, 3, 1, 3}));
}

TEST(HostMap, RefusesWhatIsUneven) {
  for (const auto& [letters, size, text] :
       {std::tuple{"aab", 0, "host same-name (PE 2) has 1 PEs, host same-name (PE 0) has 2"},
        std::tuple{"aaabbb", 2, "SHOAL_NODE_SIZE is 2, which does not divide the 3 PEs"},
        std::tuple{"aa", 4, "SHOAL_NODE_SIZE is 4"}}) {
    try {
      topology::place(hosts(letters), size);
      FAIL() << letters;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      test::expect_parts(error.what(), {text});
    }
  }
}

TEST(HostIdentity, IsMoreThanAName) {
  const HostIdentity real = topology::read_host_identity("");
  EXPECT_NE(real.id, real.name);
  EXPECT_EQ(real.id, topology::read_host_identity("").id);
  EXPECT_NE(topology::read_host_identity("x").id, real.id);
}

TEST(TeamSlots, HandsOutTheLowestThatIsFree) {
  for (const std::int64_t count : {8, 63, 64, 65, 128}) {
    detail::TeamSlots slots(count);
    for (std::int32_t i = 0; i < count; ++i) {
      EXPECT_EQ(detail::TeamSlots::lowest(slots.free_words()), i);
      slots.take(i);
    }
    EXPECT_EQ(detail::TeamSlots::lowest(slots.free_words()), std::nullopt);
    EXPECT_EQ(slots.used(), count);
    slots.release(static_cast<std::int32_t>(count - 1));
    EXPECT_EQ(detail::TeamSlots::lowest(slots.free_words()), count - 1);
  }
}

// No two areas of the control block overlap, for any size of world.
TEST(ControlLayout, KeepsEverythingApart) {
  for (const Pe n : {1, 2, 7, 40}) {
    for (const std::int64_t teams : {8, 65, 128}) {
      const detail::ControlLayout layout(n, teams);
      std::vector<std::pair<std::size_t, std::size_t>> ranges{
          {layout.progress(), sizeof(detail::ProgressEntry)},
          {layout.alerts(), 8},
          {layout.wait_point(), sizeof(WaitPoint)}};
      for (Pe pe = 0; pe < n; ++pe) {
        ranges.emplace_back(layout.status(pe), sizeof(detail::StatusEntry));
        ranges.emplace_back(
            layout.join_entry(pe),
            sizeof(detail::JoinEntry) + static_cast<std::size_t>((teams + 63) / 64) * 8);
        ranges.emplace_back(layout.join_acknowledged(pe), 8);
      }
      for (std::int32_t team = 0; team < teams; ++team)
        for (std::size_t pe = 0; pe < static_cast<std::size_t>(n); ++pe)
          for (const std::uint64_t parity : {0u, 1u}) {
            const std::size_t entry = layout.entry(team, parity, pe);
            ranges.emplace_back(entry, sizeof(detail::ExchangeEntry));
            EXPECT_EQ(entry % 64, 0u);
            if (n > 32)
              ranges.emplace_back(layout.flag(team, parity, pe), 64);
            else
              EXPECT_EQ(layout.flag(team, parity, pe), entry) << "the first word of the entry";
          }
      std::sort(ranges.begin(), ranges.end());
      for (std::size_t i = 0; i + 1 < ranges.size(); ++i)
        ASSERT_LE(ranges[i].first + ranges[i].second, ranges[i + 1].first);
      ASSERT_LE(ranges.back().first + ranges.back().second, layout.bytes());
      EXPECT_EQ(layout.bytes() % (2u << 20), 0u);
    }
  }
}

TEST(Agreement, GroupsPesByWhatTheySay) {
  const std::vector<std::string> texts{"x", "y", "x"};
  const std::vector<Pe> pes{4, 5, 9};
  EXPECT_EQ(detail::group_by_text(texts, pes), "PE 4, 9: x; PE 5: y");
}

// The same answer on all PEs of a team. PEs with the same letter share a host, and those with the
// same digit memory.
TEST(Teams, MeetAtTheFirstPeWhereTheyShareMemoryAndCores) {
  using enum detail::Meeting;
  detail::Placement placement;
  const auto meeting = [&](const std::string& letters, const std::string& digits,
                           std::int32_t cores) {
    static_cast<HostMap&>(placement) = topology::place(hosts(letters), 0);
    placement.n_pes = static_cast<Pe>(letters.size());
    placement.cores_on_host = cores;
    const std::vector<std::int32_t> domains(digits.begin(), digits.end());
    std::vector<Pe> all(letters.size());
    std::iota(all.begin(), all.end(), 0);
    std::set<detail::Meeting> answers;
    for (placement.my_pe = 0; placement.my_pe < placement.n_pes; ++placement.my_pe)
      answers.insert(detail::meeting_of(placement, domains, all));
    EXPECT_EQ(answers.size(), 1u);
    return *answers.begin();
  };
  const auto of_one_host = [&](std::size_t pes, std::int32_t cores) {
    return meeting(std::string(pes, 'a'), std::string(pes, '0'), cores);
  };
  EXPECT_EQ(of_one_host(32, 64), at_all);
  EXPECT_EQ(of_one_host(33, 64), in_rounds);
  EXPECT_EQ(of_one_host(8, 2), at_all);
  EXPECT_EQ(of_one_host(9, 2), at_first);
  EXPECT_EQ(of_one_host(256, 2), at_first);

  const std::string one_host(40, 'a'), two_hosts = std::string(20, 'a') + std::string(20, 'b');
  const std::string halves = std::string(20, '0') + std::string(20, '1');
  EXPECT_EQ(meeting(one_host, halves, 2), in_rounds);
  EXPECT_EQ(meeting(two_hosts, halves, 2), in_rounds);
  EXPECT_EQ(meeting("aaaaaaaaa", "012345678", 2), at_all) << "SHOAL_TRANSPORT_INSIDE=ofi";
}

}  // namespace
}  // namespace shoal
