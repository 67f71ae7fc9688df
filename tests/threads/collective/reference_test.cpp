// SPDX-License-Identifier: Apache-2.0
// Every collective against a naive reference, among threads, on one node and on emulated nodes.
// @traits slow
#include <gtest/gtest.h>

#include <atomic>
#include <ostream>

#include "checks/collective/reference.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"

namespace shoal {
namespace {

using test::CollectiveCheck;

struct Shape {
  Pe n_pes;
  std::int64_t node_size;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.n_pes << "Pes";
  if (shape.node_size != 0) *out << "NodesOf" << shape.node_size;
}

class Collective : public ::testing::TestWithParam<Shape> {
 protected:
  static void run(const std::function<void(World&)>& body) {
    Settings settings;
    settings.symmetric_size = 32 << 20;
    settings.timeout = std::chrono::milliseconds(20'000);
    settings.node_size = GetParam().node_size;
    run_threads(GetParam().n_pes, settings, body);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, Collective,
                         ::testing::Values(Shape{1, 0}, Shape{2, 0}, Shape{3, 0}, Shape{5, 0},
                                           Shape{8, 0}, Shape{4, 2}, Shape{8, 2}),
                         testing::PrintToStringParamName());

constexpr std::size_t kSizes[] = {0, 1, 7, 64, 1000, 70'000};

TEST_P(Collective, MovesBlocksOfEverySize) {
  run([](World& world) {
    const Team team = world.team();
    const auto n = static_cast<std::size_t>(team.size());
    CollectiveCheck check(world, n * 70'003);
    for (std::size_t bytes : kSizes) {
      SCOPED_TRACE(bytes);
      for (Pe root = 0; root < team.size(); ++root)
        check.broadcast(team, bytes, root, bytes + 1, root % 2 == 1);
      check.all_gather(team, bytes, bytes + 2);
      check.all_to_all(team, bytes, bytes + 3);
      check.all_to_all_v(team, bytes, bytes + 4);
    }
  });
}

TEST_P(Collective, ReducesEveryTypeWithEveryOperation) {
  run([](World& world) {
    const Team team = world.team();
    CollectiveCheck check(world, 8 * 9'001);
    for (DataType dtype : test::kReduceTypes) {
      for (ReduceOp op : test::kReduceOps) {
        if (test::is_bit_operation(op) && !test::is_integer(dtype)) continue;
        SCOPED_TRACE(::testing::Message()
                     << name_of(dtype) << ", operation " << static_cast<int>(op));
        for (std::size_t count : {0, 1, op == ReduceOp::sum ? 9'001 : 333}) {
          check.reduce(team, dtype, op, count, count + 1, false);
          check.reduce(team, dtype, op, count, count + 2, true);
          check.reduce_scatter(team, dtype, op, count / 8, count + 3, false);
          check.reduce_scatter(team, dtype, op, count / 8, count + 4, true);
        }
      }
    }
  });
}

TEST_P(Collective, ReducesMoreThanOneStagingBuffer) {
  run([](World& world) {
    CollectiveCheck check(world, 4 * 140'000);
    check.reduce(world.team(), DataType::float32, ReduceOp::sum, 140'000, 1, true);
  });
}

TEST_P(Collective, KeepsOverlappingTeamsApart) {
  run([](World& world) {
    CollectiveCheck check(world, 8 * 4096);
    const Pe n = world.n_pes();
    const Team lower = world.team().split_strided(0, 1, (n + 1) / 2);
    const Team even = world.team().split_strided(0, 2, (n + 1) / 2);
    const Team reversed = world.team().split_strided(n - 1, -1, n);
    for (std::uint64_t round = 1; round <= 20; ++round) {
      for (const Team& team :
           {lower, even, reversed, world.team(), world.node_team(), world.same_index_team()}) {
        if (!team.valid()) continue;
        check.all_gather(team, 100 * round, round);
        check.reduce(team, DataType::int64, ReduceOp::sum, 50 * round, round);
      }
    }
  });
}

TEST_P(Collective, BarrierCompletesPutsAndSyncWaitsForAll) {
  std::atomic<int> arrived = 0;
  run([&arrived](World& world) {
    auto box = world.heap().allocate<int>(1);
    const Pe n = world.n_pes(), right = (world.my_pe() + 1) % n, left = (world.my_pe() + n - 1) % n;
    for (int round = 1; round <= 50; ++round) {
      const int value = round * 100 + world.my_pe();
      world.put_nbi(box.on(right), std::span(&value, 1));
      ++arrived;
      barrier(world.team());
      EXPECT_EQ(box[0], round * 100 + left);
      EXPECT_GE(arrived, n * round);
      sync(world.team());
    }
  });
  EXPECT_EQ(arrived, GetParam().n_pes * 50);
}

// More PEs than one exchange of all_to_all_v describes, and than exchange in a single hop.
TEST(CollectiveOfMany, ThirtyFourPes) {
  Settings settings;
  settings.symmetric_size = 1 << 20;
  settings.timeout = std::chrono::milliseconds(20'000);
  run_threads(34, settings, [](World& world) {
    CollectiveCheck check(world, 34 * 200);
    check.all_gather(world.team(), 100, 1);
    check.all_to_all_v(world.team(), 100, 2);
    check.reduce(world.team(), DataType::bfloat16, ReduceOp::sum, 1500, 3, true);
    check.broadcast(world.team(), 1000, 33, 4);
  });
}

}  // namespace
}  // namespace shoal
