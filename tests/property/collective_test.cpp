// SPDX-License-Identifier: Apache-2.0
// Random sequences of collectives on random, overlapping teams, with random delays on every PE.
// Consecutive operations must not mix.
// @traits slow
#include <gtest/gtest.h>

#include <ostream>

#include "checks/collective/reference.hpp"
#include "shoal/world.hpp"

namespace shoal {
namespace {

struct Shape {
  Pe n_pes;
  std::int64_t node_size;
};

void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.n_pes << "PesNodeSize" << shape.node_size;
}

class RandomCollectives : public ::testing::TestWithParam<Shape> {};

TEST_P(RandomCollectives, AgreeWithTheReference) {
  Settings settings;
  settings.symmetric_size = 32 << 20;
  settings.timeout = std::chrono::milliseconds(20'000);
  settings.node_size = GetParam().node_size;
  for (std::uint64_t seed : {1, 2, 3})
    run_threads(GetParam().n_pes, settings,
                [seed](World& world) { test::run_random_collectives(world, 200, seed); });
}

INSTANTIATE_TEST_SUITE_P(Shapes, RandomCollectives,
                         ::testing::Values(Shape{2, 0}, Shape{3, 0}, Shape{8, 0}, Shape{4, 2},
                                           Shape{8, 4}),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace shoal
