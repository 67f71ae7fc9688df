// SPDX-License-Identifier: Apache-2.0
// Put and get take any contiguous range as local side: vectors, arrays, spans; only memory that may
// be written is a target.
#include <gtest/gtest.h>

#include <array>
#include <span>
#include <utility>
#include <vector>

#include "checks/world/operations.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"

namespace shoal::test {
namespace {

template <typename Operations, typename Local>
concept Gets = requires(const Operations& on, Local local, RemoteSpan<int> remote) {
  on.get(std::forward<Local>(local), remote);
};
template <typename Operations, typename Local>
concept Puts = requires(const Operations& on, Local local, RemoteSpan<int> remote) {
  on.put(remote, std::forward<Local>(local));
};
template <typename Operations>
constexpr bool takes_ranges() {
  static_assert(Gets<Operations, std::vector<int>&> && Gets<Operations, std::span<int>> &&
                Gets<Operations, std::array<int, 2>&> && Gets<Operations, int(&)[2]> &&
                Gets<Operations, std::span<int, 2>>);
  static_assert(!Gets<Operations, const std::vector<int>&> &&
                !Gets<Operations, std::span<const int>> &&
                !Gets<Operations, const std::array<int, 2>&> &&
                !Gets<Operations, std::vector<int>> && !Gets<Operations, std::vector<float>&>);
  static_assert(Puts<Operations, const std::vector<int>&> &&
                Puts<Operations, std::span<const int>> && Puts<Operations, std::span<int>> &&
                Puts<Operations, const std::array<int, 2>&> && Puts<Operations, const int(&)[2]> &&
                Puts<Operations, std::vector<int>>);
  static_assert(!Puts<Operations, const std::vector<float>&>);
  return true;
}
static_assert(takes_ranges<World>() && takes_ranges<cuda::StreamOperations>());

TEST(WorldOfThreads, PutsAndGetsAnyContiguousRange) {
  run_threads(2, world_settings(), [](World& world) {
    auto box = world.heap().allocate<int>(2);
    const Pe other = 1 - world.my_pe();
    const std::vector<int> sent = {world.my_pe(), 7};
    world.put(box.on(other), sent);
    barrier(world.team());

    std::vector<int> vector(2);
    world.get(vector, box.on(other));
    EXPECT_EQ(vector, sent) << "what this PE has put there";
    std::array<int, 2> array{};
    world.get(array, box.on(other));
    EXPECT_EQ(array, (std::array{world.my_pe(), 7}));
    int plain[2] = {};
    world.get_nbi(plain, box.on(other));
    world.quiet();
    EXPECT_EQ(plain[1], 7);
    world.get(std::span(vector).first(1), box.on(world.my_pe()).subspan(0, 1));
    EXPECT_EQ(vector[0], other);
    barrier(world.team());
    world.put(box.on(other), plain);
    const std::array last{9};
    world.put_nbi(box.on(other)[1], last);
    barrier(world.team());
    EXPECT_EQ(box[1], 9);
    EXPECT_THROW(world.get(vector, box.on(other)[0]), Error) << "the counts differ";
  });
}

}  // namespace
}  // namespace shoal::test
