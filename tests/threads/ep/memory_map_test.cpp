// SPDX-License-Identifier: Apache-2.0
// The maps of live groups and heaps (shoal/memory_map.hpp): addresses of results and allocations
// are found, on this PE and as seen by others, and maps end with what they describe.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "checks/ep/normal.hpp"
#include "shoal/collective.hpp"
#include "shoal/memory_map.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using observe::MemoryMap;

/// The maps that a PE of this process shows.
std::vector<MemoryMap> maps_of(Pe pe) {
  std::vector<MemoryMap> maps = observe::read_process_memory();
  std::erase_if(maps, [&](const MemoryMap& map) { return map.pe != pe; });
  return maps;
}
std::vector<MemoryMap> own_maps(const World& world) {
  return maps_of(world.my_pe());
}

/// The only place of an address in groups, as this PE sees it.
std::string place_of(const World& world, const void* address) {
  std::vector<MemoryMap> maps = own_maps(world);
  std::erase_if(maps, [](const MemoryMap& map) { return map.group == 0; });
  const auto found = observe::locate_address(maps, reinterpret_cast<std::uintptr_t>(address));
  EXPECT_EQ(found.size(), 1U);
  return found.empty() ? "" : found[0];
}

TEST(EpMemoryMap, FindsResultsOfALiveGroup) {
  const EpCase c = small_case(3);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const std::int32_t me = world.my_pe();
    const std::string mine = "in group 1 of rank " + std::to_string(me);
    {
      const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx));
      if (got.rows > 0) expect_parts(place_of(world, got.x.data), {"receive_arena: byte ", mine});
      group.combine(got.x, got.handle);
    }
    const TensorView buffer = group.next_combine_buffer();
    const std::int64_t row_bytes = buffer.strides[1] * 2;
    const std::byte* const row = buffer.as<std::byte>() + 7 * row_bytes + 19;
    expect_parts(place_of(world, row),
                 {"combine_rows: parity ", "local expert 0, row 7, byte 19 of ", mine});
    // The same byte in the heap of another rank, by this rank's address of it.
    const Pe other = (me + 1) % world.n_pes();
    const auto* const there =
        static_cast<const std::byte*>(world.heap().peer_pointer(buffer.data, other));
    expect_parts(
        place_of(world, there + 7 * row_bytes + 19),
        {"local expert 0, row 7, byte 19 of ", "in group 1 of rank " + std::to_string(other)});
    // Its offset in the heap finds the row as well. It is the same everywhere.
    const auto by_offset = observe::locate_offset(own_maps(world), world.heap().offset_of(row));
    ASSERT_EQ(by_offset.size(), 2U);
    expect_parts(by_offset[0], {"allocation: byte ", "in the heap"});
    expect_parts(by_offset[1], {"local expert 0, row 7, byte 19", "in group 1"});
    sync(world.team());
    group.close();
    for (const MemoryMap& map : own_maps(world)) EXPECT_EQ(map.group, 0U);
    sync(world.team());
  });
}

TEST(MemoryMap, ShowsAllocationsWhileTheyLive) {
  run_threads(2, ep_settings(), [](World& world) {
    const auto allocations = [&] {
      for (const MemoryMap& map : own_maps(world))
        if (map.group == 0) return map.regions;
      return std::vector<observe::MemoryRegion>{};
    };
    const std::size_t before = allocations().size();
    void* const first = world.heap().malloc(1000);
    void* const second = world.heap().malloc(5000);
    auto now = allocations();
    ASSERT_EQ(now.size(), before + 2);
    const auto here = [&](const void* pointer) {
      return std::find_if(now.begin(), now.end(), [&](const auto& region) {
        return region.offset == world.heap().offset_of(pointer);
      });
    };
    ASSERT_NE(here(first), now.end());
    EXPECT_EQ(here(first)->bytes, 1024U);
    ASSERT_NE(here(second), now.end());
    world.heap().free(first);
    now = allocations();
    EXPECT_EQ(now.size(), before + 1);
    EXPECT_EQ(here(first), now.end());
    world.heap().free(second);
    EXPECT_EQ(allocations().size(), before);
    sync(world.team());
    const Pe me = world.my_pe();
    world.close();
    EXPECT_TRUE(maps_of(me).empty());
  });
}

}  // namespace
}  // namespace shoal::test
