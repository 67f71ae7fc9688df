// SPDX-License-Identifier: Apache-2.0
// Maps of a group's memory: regions lie where the layouts say, do not overlap and leave no gaps but
// alignment; places name row, token and byte.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <algorithm>

#include <fmt/format.h>

#include "base/align.hpp"
#include "ep/host/group/regions.hpp"
#include "shoal/memory_map.hpp"
#include "support/expect_error.hpp"
#ifdef SHOAL_WITH_CUDA
#include "ep/cuda/layout/regions.hpp"
#endif

namespace shoal::ep {
namespace {

using observe::MemoryMap;
using observe::MemoryRegion;

GroupOptions options(bool masks = false) {
  return {.max_tokens = 40,
          .hidden = 512,
          .top_k = 6,
          .experts = 24,
          .low_latency_max_tokens = 24,
          .mask_failed = masks};
}

MemoryMap map_of(std::vector<MemoryRegion> regions, std::size_t bytes) {
  MemoryMap map;
  map.world = 0x12;
  map.pe = 1;
  map.pid = 77;
  map.group = 3;
  map.memory = "heap";
  map.offset = 4096;
  map.bytes = bytes;
  map.pes = {4, 5, 6};
  map.addresses = {0x10000000, 0, 0x30000000};
  map.regions = std::move(regions);
  return map;
}

/// Gaps are smaller than a page, and each array is as long as its entries.
void expect_covered(const MemoryMap& map) {
  std::uint64_t end = 0;
  for (const MemoryRegion& region : map.regions) {
    EXPECT_GE(region.offset, end) << region.name;
    EXPECT_LT(region.offset - end, 2 * kPageBytes) << region.name;
    end = region.offset + region.bytes;
    if (region.dimensions.empty()) continue;
    EXPECT_EQ(region.bytes, region.dimensions[0].count * region.dimensions[0].stride)
        << region.name;
    for (std::size_t i = 1; i < region.dimensions.size(); ++i)
      EXPECT_EQ(region.dimensions[i - 1].stride,
                region.dimensions[i].count * region.dimensions[i].stride)
          << region.name;
  }
  EXPECT_LE(end, map.bytes);
  EXPECT_LT(map.bytes - end, 2 * kPageBytes);
}

TEST(EpRegions, OfTheHostCoverTheBlock) {
  for (const std::int32_t nodes : {1, 2}) {
    const detail::Shape shape = detail::make_shape(options(), 4, nodes);
    const host::GroupLayout layout(shape);
    const MemoryMap map = map_of(host::regions_of(layout, shape), layout.total);
    expect_covered(map);
    EXPECT_EQ(
        observe::describe_offset(map, layout.slot(1, 3, 17, shape) + 5),
        fmt::format("slots: parity 1, source rank 3, slot 17, byte 5 of {}", layout.slot_bytes));
    EXPECT_EQ(observe::describe_offset(map, layout.combine_row(4, 2, 95, shape) + 1023),
              fmt::format("combine_rows: parity 0, local expert 2, row 95, byte 1023 of {}",
                          layout.combine_row_stride));
    EXPECT_EQ(observe::describe_offset(map, layout.notice(3, 2, shape)),
              fmt::format("notices: parity 1, source rank 2, byte 0 of {}", layout.notice_bytes));
    EXPECT_EQ(observe::describe_offset(map, layout.arena + 99),
              fmt::format("receive_arena: byte 99 of {}", layout.arena_bytes));
    if (nodes == 1) continue;
    EXPECT_EQ(observe::describe_offset(map, layout.chunk(layout.chunks_in, 1, 6) + 8),
              fmt::format("chunks_in: node 1, chunk {}, byte 8 of {}", 6 % layout.chunk_depth,
                          layout.chunk_bytes));
    EXPECT_EQ(observe::describe_offset(map, layout.remote_sum(1, 1, 23, shape)),
              fmt::format("remote_sums: parity 1, remote rank 1, token 23, byte 0 of {}",
                          layout.combine_row_stride));
  }
}

#ifdef SHOAL_WITH_CUDA
TEST(EpRegions, OfGpusCoverTheBlock) {
  for (const bool masks : {false, true}) {
    detail::Shape shape = detail::make_shape(options(masks), 4);
    for (const bool internode : {false, true}) {
      shape.internode = internode;
      const detail::DeviceLayout layout(shape);
      const MemoryMap map = map_of(detail::regions_of(layout, shape), layout.total);
      expect_covered(map);
      const std::size_t slot = ((1 * 4 + 2) * 24 + 7) * layout.slot_bytes;
      EXPECT_EQ(
          observe::describe_offset(map, layout.slots + slot + 33),
          fmt::format("slots: parity 1, source rank 2, token 7, byte 33 of {}", layout.slot_bytes));
      const std::size_t own = layout.own_combine_rows;
      if (layout.rank_combine_rows != 0)
        EXPECT_EQ(
            observe::describe_offset(
                map, layout.combine_rows + (own + 24 + 5) * layout.combine_row_bytes),
            fmt::format("combine_rows: parity 0, rank {}, row of a token {}, token 5, byte 0 "
                        "of {}",
                        1 / static_cast<int>(layout.rank_combine_rows),
                        1 % static_cast<int>(layout.rank_combine_rows), layout.combine_row_bytes));
      if (layout.token_combine_rows != 0)
        EXPECT_EQ(observe::describe_offset(
                      map, layout.combine_rows +
                               (3 * layout.token_combine_rows + 2) * layout.combine_row_bytes + 1),
                  fmt::format("combine_rows_shared: parity 0, token 3, top-k slot 2, byte 1 of {}",
                              layout.combine_row_bytes));
    }
  }
}

TEST(EpRegions, OfInternodeKernelsCoverTheBlock) {
  detail::Shape shape = detail::make_shape(options(), 4, 2);
  shape.low_latency_max_tokens = 0;
  const detail::DeviceLayout normal(shape);
  const detail::RailLayout rails(shape, normal.notice_bytes, normal.total, 8192, 5);
  const MemoryMap map = map_of(detail::regions_of(normal, rails, shape), rails.end);
  expect_covered(map);
  EXPECT_EQ(observe::describe_offset(map, rails.in + rails.slot(1, 8, rails.chunk_bytes) + 3),
            fmt::format("rail_in: node 1, chunk 3, byte 3 of {}", rails.chunk_bytes));
  EXPECT_EQ(observe::describe_offset(map, rails.read + rails.slot(1, 4, 8)),
            "rail_read: node 1, chunk 4, byte 0 of 8");
  shape = detail::make_shape(options(), 4, 2);
  shape.max_tokens = 0;
  shape.combine_staging = false;
  shape.internode = true;
  const detail::DeviceLayout layout(shape);
  const MemoryMap with = map_of(detail::regions_of(layout, 2, shape), 3 * layout.total);
  expect_covered(with);
  EXPECT_EQ(observe::describe_offset(with, 2 * layout.total + 17),
            fmt::format("outboxes: outbox 1, byte 17 of {}", layout.total));
}
#endif

TEST(MemoryMap, LocatesAddressesAndOffsets) {
  MemoryMap group = map_of({{"slots", 256, 1024, {{"rank", 4, 256}}}}, 2048);
  MemoryMap heap;
  heap.world = 0x12;
  heap.memory = "heap";
  heap.bytes = 1 << 20;
  heap.pes = {0};
  heap.addresses = {0x2ffff000};
  heap.regions = {{"allocation", 4096, 2048, {}}};
  const std::vector<MemoryMap> maps = {heap, group};
  EXPECT_EQ(
      observe::locate_address(maps, 0x30000000 + 256 + 700),
      (std::vector<std::string>{
          "allocation: byte 956 of 2048, in the heap of PE 0 of world 0000000000000012, as PE "
          "0 (pid 0) sees it",
          "slots: rank 2, byte 188 of 256, in group 3 of rank 2 (PE 6) of world "
          "0000000000000012, as PE 1 (pid 77) sees it"}));
  EXPECT_EQ(observe::locate_address(maps, 0x10000000 + 2047),
            (std::vector<std::string>{"unused, byte 2047 of 2048, in group 3 of rank 0 (PE 4) of "
                                      "world 0000000000000012, as PE 1 (pid 77) sees it"}));
  EXPECT_TRUE(observe::locate_address(maps, 0x10000000 + 2048).empty());
  EXPECT_TRUE(observe::locate_address(maps, 0).empty());
  EXPECT_EQ(observe::locate_offset(maps, 4096 + 256),
            (std::vector<std::string>{
                "allocation: byte 256 of 2048, in the heap of world 0000000000000012",
                "slots: rank 0, byte 0 of 256, in group 3 of world 0000000000000012"}));
  EXPECT_TRUE(observe::locate_offset(maps, 1 << 20).empty());
  const std::string text = observe::to_text(group);
  test::expect_parts(text, {"slots[rank 4]", "of PE 6 at 0x30000000"});
  EXPECT_EQ(nlohmann::json::parse(observe::to_json(group)),
            nlohmann::json::parse(
                R"({"shoal_memory":1,"world":"0000000000000012","pe":1,"pid":77,"group":3,)"
                R"("memory":"heap","offset":4096,"bytes":2048,"pes":[4,5,6],)"
                R"("addresses":[268435456,0,805306368],"regions":[{"name":"slots","offset":256,)"
                R"("bytes":1024,"dimensions":[{"name":"rank","count":4,"stride":256}]}]})"));
}

}  // namespace
}  // namespace shoal::ep
