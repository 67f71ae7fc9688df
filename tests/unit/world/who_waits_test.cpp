// SPDX-License-Identifier: Apache-2.0
// The rank at the end of each chain of waits.
#include <gtest/gtest.h>

#include "shoal/observe.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using namespace observe;

/// A rank of a group of four in dispatch 7. `awaited`: -1: it does not wait.
PeRecord rank(std::int32_t rank, std::size_t n_phases, std::int32_t awaited,
              std::string state = "started", std::uint64_t epoch = 7) {
  OperationRecord op;
  op.id = op.epoch = epoch;
  op.operation = "dispatch";
  op.state = std::move(state);
  op.start_ns = 1'000'000'000;
  const char* const names[] = {"notify", "send", "receive"};
  for (std::size_t i = 0; i < n_phases; ++i) op.phases.push_back({names[i], 1'500'000'000});
  op.awaited = awaited;
  op.waiting = awaited >= 0;
  if (op.state != "started") op.end_ns = 2'000'000'000;
  GroupRecord group;
  group.number = 1;
  group.rank = rank;
  group.pes = {0, 1, 2, 3};
  group.operations = {op};
  PeRecord pe;
  pe.world = 5;
  pe.pe = rank;
  pe.n_pes = 4;
  pe.pid = 100 + rank;
  pe.host = "alpha";
  pe.read_ns = 4'500'000'000;
  pe.groups = {group};
  return pe;
}

/// A rank whose kernels run dispatch 7 and may wait; its calls are `ahead` operations ahead.
PeRecord kernel_rank(std::int32_t me, const char* phase, std::int32_t awaited,
                     std::uint64_t ahead = 0) {
  PeRecord pe = rank(me, 0, awaited, awaited >= 0 ? "started" : "queued");
  auto& operations = pe.groups[0].operations;
  operations[0].phases = {{"queued", 1'100'000'000}};
  if (awaited >= 0) operations[0].phases.push_back({phase, 1'500'000'000});
  for (std::uint64_t i = 0; i < ahead; ++i) {
    operations.push_back(rank(me, 0, -1, "queued", 8 + i).groups[0].operations[0]);
    operations.back().phases = {{"queued", 1'200'000'000}};
  }
  return pe;
}

TEST(WhoWaits, FollowsAChainToItsEnd) {
  const auto text =
      who_waits({rank(0, 3, 1), rank(1, 1, 2), rank(2, 0, -1, "completed", 6), rank(3, 1, 2)});
  expect_parts(text,
               {"rank 2 (PE 2) is behind: ranks 0, 1 and 3 wait for it",
                "it completed dispatch 6, 2.500 s ago, and is outside of the library",
                "rank 0 (PE 0, pid 100 on alpha): dispatch 7, phase receive, waits for rank 1 "
                "since 3.000 s"});
}

TEST(WhoWaits, ARankWithoutARecordIsNamed) {
  const auto text =
      who_waits({rank(0, 3, 3, "failed"), rank(1, 3, 3, "failed"), rank(2, 3, 3, "failed")});
  expect_parts(text, {"rank 3 (PE 3) is behind: ranks 0, 1 and 2 wait for it",
                      "it has no record here", "and gave up"});
}

TEST(WhoWaits, ARankThatIsStoppedInAWaitIsBehind) {
  // Rank 1 was stopped while it waited for the notice of rank 0, which has arrived.
  const auto text = who_waits({rank(0, 3, 1), rank(1, 1, 0), rank(2, 3, 1), rank(3, 3, 1)});
  expect_parts(text, {"rank 1 (PE 1) is behind: ranks 0, 2 and 3 wait for it",
                      "it is in dispatch 7, phase notify, for 3.500 s; rank 0 has arrived"});
}

// Rank 0 waits for rows of rank 1, which waits for chunks of rank 3, whose calls are ahead of its
// kernels.
TEST(WhoWaits, FollowsAChainOfKernels) {
  const auto text = who_waits({kernel_rank(0, "receive", 1), kernel_rank(1, "rail", 3),
                               kernel_rank(2, "notify", 3), kernel_rank(3, "", -1, 2)});
  expect_parts(text, {"rank 3 (PE 3) is behind: ranks 0, 1 and 2 wait for it",
                      "dispatch 7, phase receive, waits for rank 1"});
}

TEST(WhoWaits, KernelsThatHaveComeAreNotAwaited) {
  // Rank 1 waits in a later phase; rank 3 has ended the dispatch.
  PeRecord ended = kernel_rank(3, "", -1);
  ended.groups[0].launches = {{7, "dispatch", {{"notify", 1}}, 2}};
  const auto text = who_waits(
      {kernel_rank(0, "notify", 1), kernel_rank(1, "rail", 2), kernel_rank(2, "", -1), ended});
  expect_parts(text, {"rank 2 (PE 2) is behind: rank 1 waits for it"});
  EXPECT_EQ(text.find("rank 0 (PE 0"), std::string::npos) << text;
  EXPECT_EQ(who_waits({kernel_rank(0, "rail", 3), ended}).find("is behind"), std::string::npos);
  // Rail peers that wait for chunks of each other.
  expect_parts(who_waits({kernel_rank(0, "rail", 1), kernel_rank(1, "rail", 0)}),
               {"ranks 0 and 1 wait for each other"});
}

TEST(WhoWaits, RanksThatWaitForEachOtherAreReported) {
  PeRecord other = rank(1, 1, 0);
  other.groups[0].operations[0].operation = "combine";  // the ranks disagree about the operation
  expect_parts(who_waits({rank(0, 1, 1), other}), {"ranks 0 and 1 wait for each other"});
}

TEST(WhoWaits, GroupsAndWorldsAreApart) {
  PeRecord of_other = rank(0, 1, 1);
  of_other.world = 6;
  const auto text = who_waits({rank(0, 0, -1, "completed"), of_other});
  expect_parts(text, {"world 0000000000000005, group 1 of 4 ranks\n  no rank waits for another",
                      "world 0000000000000006, group 1 of 4 ranks\n  rank 1 (PE 1) is behind"});
  EXPECT_EQ(who_waits({}), "no groups\n");
}

TEST(WhoWaits, WaitsOutsideOfGroupsAreReported) {
  PeRecord pe = rank(0, 0, -1, "completed");
  pe.activity = "barrier 4";
  pe.active = true;
  pe.awaited = 2;
  expect_parts(who_waits({pe}), {"world 0000000000000005: PE 0 waits for PE 2 in barrier 4"});
}

}  // namespace
}  // namespace shoal::test
