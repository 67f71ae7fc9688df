// SPDX-License-Identifier: Apache-2.0
// The memory layout of a group in GPU memory: pure functions of the options, without a GPU.
// @traits one_thread
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "checks/ep/case.hpp"
#include "ep/cuda/layout/device_layout.hpp"
#include "ep/cuda/layout/rail_layout.hpp"
#include "ep/cuda/layout/result_memory.hpp"
#include "ep/plan/arena.hpp"
#include "ep/plan/row_format.hpp"
#include "shoal/error.hpp"
#include "support/draws.hpp"

namespace shoal::ep {
namespace {

using detail::DeviceLayout;
using detail::RegionLayout;
using detail::SideRecord;

struct Part {
  std::string name;
  std::size_t start, bytes, alignment;
};

/// Every part with the bytes that its users access, computed from the contents that
/// device_layout.hpp states.
std::vector<Part> parts_of(const DeviceLayout& layout, const detail::Shape& shape) {
  const std::size_t ranks = shape.ranks, tokens = shape.low_latency_max_tokens, top_k = shape.top_k;
  const std::size_t lines = ranks * detail::kLine;
  const std::size_t notice = sizeof(detail::DeviceNotice) + (ranks + shape.local_experts) * 4;
  const std::size_t staged = shape.combine_staging ? shape.max_received() : 0;
  const bool in_arena = layout.stages_in_arena;
  return {
      {"entered", layout.entered, lines, 64},
      {"finished", layout.finished, lines, 64},
      {"dispatch_read", layout.dispatch_read, lines, 64},
      {"combine_read", layout.combine_read, lines, 64},
      {"failed", layout.failed, lines, 64},
      {"notices", layout.notices, (2 * ranks - 1) * layout.notice_bytes + notice, 8},
      {"low_latency_notices", layout.low_latency_notices, 2 * lines, 8},
      {"slot_headers", layout.slot_headers,
       2 * ranks * tokens * layout.packets * detail::kPacketBytes, 16},
      {"slot_counts", layout.slot_counts, tokens > 0 ? 2 * ranks * shape.local_experts * 8 : 0, 8},
      {"slot_ready", layout.slot_ready, 2 * ranks * tokens * 8, 8},
      {"combine_flags", layout.combine_flags, layout.combine_places * 8, 8},
      {"staged_flags", layout.staged_flags, ranks * layout.staged_pieces * 8, 8},
      {"staged_counts", layout.staged_counts, ranks * layout.staged_pieces * 4, 4},
      {"arena", layout.arena, layout.arena_bytes, 4096},
      {"staging", layout.staging, in_arena ? 0 : staged * shape.max_combine_row_bytes, 128},
      {"staging_weights", layout.staging_weights, in_arena ? 0 : staged * top_k * 4, 16},
      {"slot_weights", layout.slot_weights, 2 * ranks * tokens * top_k * 4, 16},
      {"slots", layout.slots, 2 * ranks * tokens * layout.slot_bytes, 128},
      {"combine_weights", layout.combine_weights, 2 * ranks * tokens * top_k * 8, 16},
      {"combine_rows", layout.combine_rows, layout.combine_places * layout.combine_row_bytes, 128}};
}

void expect_apart(const DeviceLayout& layout, const detail::Shape& shape) {
  const auto parts = parts_of(layout, shape);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(parts[i].start % parts[i].alignment, 0U) << parts[i].name;
    const std::size_t end = parts[i].start + parts[i].bytes;
    EXPECT_LE(end, layout.total) << parts[i].name;
    for (std::size_t j = 0; j < i; ++j)
      EXPECT_TRUE(parts[i].bytes == 0 || parts[j].bytes == 0 ||
                  parts[j].start + parts[j].bytes <= parts[i].start || end <= parts[j].start)
          << parts[i].name << " and " << parts[j].name;
    const bool control = i < 13;
    EXPECT_TRUE(parts[i].bytes == 0 ||
                (control ? end <= layout.control_end : parts[i].start >= layout.control_end))
        << parts[i].name << ": only the control part is zeroed when a group starts";
  }
  EXPECT_LE(layout.control_end, layout.normal_end);
  EXPECT_LE(layout.normal_end, layout.total);
  const std::size_t staged_rows = shape.combine_staging ? shape.max_received() : 0;
  EXPECT_EQ(layout.stages_in_arena, staged_rows > 0 && shape.live_results == 1);
  EXPECT_GE(layout.staging_bytes, staged_rows * shape.max_combine_row_bytes);
  EXPECT_GE(layout.staging_weight_bytes, staged_rows * shape.top_k * 4);
  if (layout.stages_in_arena)
    EXPECT_GE(layout.arena_bytes, 2 * std::max(layout.largest_result,
                                               layout.staging_bytes + layout.staging_weight_bytes));
  EXPECT_GE(layout.notice_bytes,
            sizeof(detail::DeviceNotice) + (shape.ranks + shape.local_experts) * 4);
  EXPECT_EQ(layout.notice_bytes % 64, 0U);
  EXPECT_GE(layout.packets * detail::kTopkSlotsPerPacket, static_cast<std::size_t>(shape.top_k));
  // One combine row per top-k slot. If ranks may be masked, each rank has room for as many rows
  // as a token can have top-k slots with experts of that rank.
  const auto rank_rows = static_cast<std::size_t>(std::min(shape.top_k, shape.local_experts));
  const std::size_t token_rows = layout.token_combine_rows;
  if (shape.mask_failed || !shape.internode)
    EXPECT_EQ(layout.rank_combine_rows, shape.mask_failed ? rank_rows : 0U);
  // Between nodes, ranks have places of their own in as much memory again, all where these suffice.
  if (!shape.mask_failed && shape.internode) {
    EXPECT_GE(layout.rank_combine_rows, 1U);
    EXPECT_LE(shape.ranks * layout.rank_combine_rows,
              std::max<std::size_t>(2 * shape.top_k, shape.top_k + shape.ranks) + shape.ranks);
  }
  EXPECT_EQ(token_rows,
            layout.rank_combine_rows == rank_rows ? 0U : static_cast<std::size_t>(shape.top_k));
  const auto tokens = static_cast<std::size_t>(shape.low_latency_max_tokens);
  EXPECT_EQ(layout.own_combine_rows, 2 * tokens * token_rows);
  EXPECT_EQ(layout.combine_places,
            2 * tokens * (token_rows + shape.ranks * layout.rank_combine_rows));
  // A slot holds a row of any format, in 16-byte vectors.
  const std::size_t groups = (shape.hidden + 127) / 128;
  for (const Quantize quantize : detail::kQuantizations)
    EXPECT_GE(layout.slot_bytes, detail::RowFormat(quantize).wire_bytes(shape.hidden));
  EXPECT_EQ(layout.slot_bytes % 16, 0U);
  EXPECT_GE(layout.combine_row_bytes, static_cast<std::size_t>(shape.hidden) * 2 + groups * 4);
  EXPECT_EQ(layout.combine_row_bytes % 16, 0U);
}

TEST(EpDeviceLayout, PartsDoNotOverlap) {
  expect_apart(DeviceLayout(detail::make_shape(test::deepseek_options(), 8)),
               detail::make_shape(test::deepseek_options(), 8));
  test::Draws draws(5);
  for (int i = 0; i < 500; ++i) {
    const auto ranks = static_cast<std::int32_t>(draws.pick(1, detail::kMaxDeviceRanks));
    GroupOptions options;
    options.max_tokens = draws.pick(0, 3) == 0 ? 0 : draws.pick(1, 8192);
    options.low_latency_max_tokens =
        options.max_tokens == 0 || draws.pick(0, 1) == 1 ? draws.pick(1, 512) : 0;
    options.hidden = 16 * draws.pick(1, 1024);
    options.top_k = static_cast<std::int32_t>(draws.pick(1, kMaxTopK));
    options.experts = static_cast<std::int32_t>(draws.pick(1, 16 * ranks));
    options.live_results = static_cast<std::int32_t>(draws.pick(1, 4));
    options.max_scales = draws.pick(0, 200);
    options.combine_staging = draws.pick(0, 1) == 1;
    options.mask_failed = draws.pick(0, 1) == 1;
    options.dtype = draws.pick(0, 1) == 1 ? DataType::bfloat16 : DataType::float8_e4m3;
    detail::Shape shape = detail::make_shape(options, ranks);
    shape.internode = true;
    expect_apart(DeviceLayout(shape), shape);
    shape.internode = false;
    const DeviceLayout layout(shape);
    expect_apart(layout, shape);
    const SizeHint hint = size_hint(options, ranks, DeviceKind::cuda);
    EXPECT_EQ(hint.total(), layout.total);
    EXPECT_EQ(hint.control, layout.control_end);
    if (::testing::Test::HasFailure()) FAIL() << "case " << i << ", ranks " << ranks;
  }
}

TEST(EpDeviceLayout, SizesFollowTheOptions) {
  const SizeHint base = size_hint(test::deepseek_options(), 8, DeviceKind::cuda);
  const auto changed = [](auto change, std::int32_t ranks = 8) {
    GroupOptions options = test::deepseek_options();
    change(options);
    return size_hint(options, ranks, DeviceKind::cuda);
  };
  EXPECT_GT(changed([](auto& o) { o.max_tokens *= 2; }).normal, base.normal * 19 / 10);
  EXPECT_GT(changed([](auto& o) { o.hidden *= 2; }).normal, base.normal * 3 / 2);
  EXPECT_GT(changed([](auto& o) { o.live_results = 3; }).normal, base.normal);
  EXPECT_LT(changed([](auto& o) { o.live_results = 1; }).normal, base.normal);
  EXPECT_LT(changed([](auto& o) { o.combine_staging = false; }).normal, base.normal);
  EXPECT_GT(changed([](auto& o) { o.mask_failed = true; }).low_latency, base.low_latency);
  EXPECT_EQ(changed([](auto& o) { o.mask_failed = true; }).normal, base.normal);
  EXPECT_GT(changed([](auto& o) { o.max_scales = 1000; }).normal, base.normal);
  EXPECT_EQ(changed([](auto& o) { o.max_tokens = 0; }).normal, 0U);
  EXPECT_EQ(changed([](auto& o) { o.low_latency_max_tokens = 0; }).low_latency, 0U);
  EXPECT_GT(changed([](auto& o) { o.experts *= 4; }).control, base.control);
  EXPECT_GT(changed([](auto&) {}, 16).normal, base.normal * 19 / 10);
  const SizeHint twice = changed([](auto& o) { o.low_latency_max_tokens *= 2; });
  EXPECT_NEAR(static_cast<double>(twice.low_latency) / static_cast<double>(base.low_latency), 2.0,
              0.01);
  EXPECT_EQ(low_latency_size_hint(128, 7168, 8, 256, 8, DeviceKind::cuda), base.low_latency);
  // With one live result there is room for the largest result: its rows and their side records.
  const std::size_t row = 7168 * 2 + SideRecord(56 * 4, 8).bytes;
  const SizeHint one = changed([](auto& o) { o.live_results = 1, o.combine_staging = false; });
  EXPECT_NEAR(static_cast<double>(one.normal), static_cast<double>(8 * 4096 * row), 64.0 * 1024);
}

// Two results in FP8, or one in bfloat16.
TEST(EpDeviceLayout, LowLatencyOf128TokensFitsInto530Megabytes) {
  GroupOptions options = test::deepseek_options();
  options.max_tokens = 0;
  const SizeHint hint = size_hint(options, 2, DeviceKind::cuda);
  EXPECT_LE(hint.total() + hint.results, 530'000'000U);
  EXPECT_GE(hint.results, 2 * 256 * 128 * std::size_t{7168});
  EXPECT_EQ(size_hint(options, 2, DeviceKind::host).results, 0U);
  options.low_latency_max_tokens = 0;
  options.max_tokens = 128;
  EXPECT_EQ(size_hint(options, 2, DeviceKind::cuda).results, 0U);
}

/// Blocks of memory that a ResultMemory took, in order.
struct Taken {
  std::vector<std::size_t> bytes;
  std::shared_ptr<void> operator()(std::size_t size) {
    bytes.push_back(size);
    return std::make_unique<std::byte[]>(size);
  }
};

TEST(EpResultMemory, OneInBfloat16OrTwoInOthersUntilOneIsHeld) {
  GroupOptions options = test::deepseek_options();
  options.hidden = 256, options.experts = 4;
  const detail::ResultSizes sizes(detail::make_shape(options, 2));
  Taken taken;
  cuda::ResultMemory memory(sizes, std::ref(taken));
  const void* const one = memory.take(true).get();
  EXPECT_EQ(memory.take(true).get(), one);  // released, so it lies there again
  std::shared_ptr<void> first = memory.take(false), second = memory.take(false);
  const auto* const start = static_cast<const std::byte*>(one);
  EXPECT_EQ(first.get(), start);
  EXPECT_EQ(second.get(), start + sizes.narrow);
  first.reset();
  second.reset();
  EXPECT_EQ(memory.take(false).get(), start);  // in turn, also when both are released
  EXPECT_EQ(memory.take(false).get(), start + sizes.narrow);
  EXPECT_EQ(taken.bytes, std::vector{sizes.first()});

  first = memory.take(true);
  second = memory.take(true);
  EXPECT_NE(second.get(), one);
  EXPECT_EQ(taken.bytes, (std::vector{sizes.first(), sizes.second()}));
  const std::shared_ptr<void> third = memory.take(true);  // over the one before the last
  EXPECT_EQ(third.get(), one);
  EXPECT_EQ(memory.take(false).get(), second.get()) << "not over the last one";
}

TEST(EpResultMemory, AFailedOrUndoneTakeLeavesTheResultBefore) {
  GroupOptions options = test::deepseek_options();
  options.hidden = 256, options.experts = 4;
  const detail::ResultSizes sizes(detail::make_shape(options, 2));
  Taken taken;
  bool exhausted = true;
  cuda::ResultMemory memory(sizes, [&](std::size_t size) {
    if (exhausted && !taken.bytes.empty()) throw Error(Code::exhausted, "no memory");
    return taken(size);
  });
  std::shared_ptr<void> held = memory.take(true);
  EXPECT_THROW((void)memory.take(true), Error);
  EXPECT_THROW((void)memory.take(false), Error);
  exhausted = false;
  const void* const second = memory.take(true).get();
  EXPECT_NE(second, held.get());
  memory.undo();
  EXPECT_EQ(memory.take(true).get(), second) << "the result before the undone one is still held";
  memory.undo();
  const void* const first = held.get();
  held.reset();
  EXPECT_EQ(memory.take(true).get(), second);  // the place that was not used for longest
  EXPECT_EQ(memory.take(true).get(), first);
}

// Results of both kinds in any order: none lies where the one before it is held, and the blocks do
// not become more.
TEST(EpResultMemory, KeepsTheLastResultAndWhatIsHeld) {
  test::Draws draws(7);
  for (const std::int64_t hidden : {64, 512, 7168}) {
    GroupOptions options = test::deepseek_options();
    options.hidden = hidden, options.experts = 2, options.low_latency_max_tokens = 4;
    const detail::ResultSizes sizes(detail::make_shape(options, 2));
    Taken taken;
    cuda::ResultMemory memory(sizes, std::ref(taken));
    struct Held {
      std::shared_ptr<void> memory;
      std::size_t bytes;
    };
    std::vector<Held> held;
    const auto apart = [](const Held& a, const Held& b) {
      const auto* const x = static_cast<const std::byte*>(a.memory.get());
      const auto* const y = static_cast<const std::byte*>(b.memory.get());
      return x + a.bytes <= y || y + b.bytes <= x;
    };
    for (int i = 0; i < 2000; ++i) {
      const bool wide = draws.pick(0, 1) == 1;
      const Held next{memory.take(wide), wide ? sizes.wide : sizes.narrow};
      std::memset(next.memory.get(), i, next.bytes);  // stays inside its block
      if (!held.empty()) {
        ASSERT_TRUE(apart(held.back(), next)) << "number " << i;
      }
      held.push_back(next);
      while (held.size() > static_cast<std::size_t>(draws.pick(0, 2))) held.erase(held.begin());
    }
    EXPECT_EQ(taken.bytes.size(), 2U);
  }
}

// A result, and one in flight or a copy of expert output.
TEST(EpDeviceLayout, OneResultOf4096TokensFitsInto245MegabytesOnTwoGpus) {
  GroupOptions options = test::deepseek_options();
  options.low_latency_max_tokens = 0;
  options.live_results = 1;
  EXPECT_LE(size_hint(options, 2, DeviceKind::cuda).total(), 245'000'000U);
  EXPECT_LE(size_hint(options, 4, DeviceKind::cuda).total(), 490'000'000U);
}

TEST(EpDeviceLayout, TheTrainingShapeFitsInto1200Megabytes) {
  GroupOptions options = test::deepseek_options();
  options.live_results = 1;
  EXPECT_LE(size_hint(options, 8, DeviceKind::cuda).total(), 1'200'000'000U);
  options.low_latency_max_tokens = 0;
  options.combine_staging = false;
  EXPECT_LE(size_hint(options, 8, DeviceKind::cuda).total(), 600'000'000U);
}

TEST(EpDeviceLayout, SideRecordsHoldTheFieldsOfARow) {
  for (std::uint32_t scales = 0; scales <= 200; ++scales)
    for (std::uint32_t top_k = 1; top_k <= kMaxTopK; ++top_k) {
      const SideRecord record(scales * 4, top_k);
      ASSERT_GE(record.topk_idx, scales * 4);
      ASSERT_GE(record.weights, record.topk_idx + top_k * 8);
      ASSERT_GE(record.source_token, record.weights + top_k * 4);
      ASSERT_GE(record.bytes, record.source_token + 4);
      for (const std::uint32_t offset :
           {record.topk_idx, record.weights, record.source_token, record.bytes})
        ASSERT_EQ(offset % 16, 0U) << scales << " scales, top_k " << top_k;
      ASSERT_LE(record.bytes, scales * 4 + top_k * 12 + 4 + 4 * 15) << "more than padding is lost";
    }
}

TEST(EpDeviceLayout, RegionsHoldRowsThenRecords) {
  for (const std::uint64_t rows : {0, 1, 7, 100, 32768})
    for (const std::uint64_t row_bytes : {16, 48, 14336, 65536}) {
      const SideRecord record(224, 8);
      const RegionLayout region(rows, row_bytes, record.bytes);
      EXPECT_GE(region.records, rows * row_bytes);
      EXPECT_EQ(region.records % 128, 0U);
      EXPECT_GE(region.total, region.records + rows * record.bytes);
      EXPECT_EQ(region.total % 4096, 0U);
      EXPECT_LT(region.total, rows * (row_bytes + record.bytes) + 128 + 4096);
    }
  // Any dispatch with valid options fits into the region of the largest one, whatever its rows and
  // scales.
  const detail::Shape shape = detail::make_shape(test::deepseek_options(), 8);
  const RegionLayout largest(
      shape.max_received(), shape.max_row_bytes,
      SideRecord(static_cast<std::uint32_t>(shape.max_scales * 4), shape.top_k).bytes);
  for (const std::uint64_t row_bytes :
       {std::uint64_t{16}, shape.max_row_bytes - 16, shape.max_row_bytes})
    for (const std::int64_t scales : {std::int64_t{0}, std::int64_t{1}, shape.max_scales})
      EXPECT_LE(RegionLayout(shape.max_received(), row_bytes,
                             SideRecord(static_cast<std::uint32_t>(scales * 4), shape.top_k).bytes)
                    .total,
                largest.total);
}

// GroupOptions.live_results.
TEST(EpDeviceLayout, LiveResultsFitIntoTheArena) {
  for (const std::int32_t live : {1, 2, 3, 5}) {
    GroupOptions options = test::deepseek_options();
    options.live_results = live;
    const detail::Shape shape = detail::make_shape(options, 8);
    const DeviceLayout layout(shape);
    const std::size_t largest =
        RegionLayout(
            shape.max_received(), shape.max_row_bytes,
            SideRecord(static_cast<std::uint32_t>(shape.max_scales * 4), shape.top_k).bytes)
            .total;
    detail::Arena arena(layout.arena_bytes, live, layout.stages_in_arena ? 1 : 0);
    std::vector<std::size_t> held;
    for (std::int32_t i = 0; i < live; ++i) {
      const auto at = arena.take(largest);
      ASSERT_TRUE(at.has_value()) << "result " << i + 1 << " of " << live;
      EXPECT_EQ(*at % 4096, 0U);
      held.push_back(*at);
    }
    for (std::size_t i = 0; i < held.size(); ++i) {  // the memory of any released result is reused
      arena.release(held[i]);
      const auto at = arena.take(largest);
      ASSERT_TRUE(at.has_value());
      held[i] = *at;
    }
  }
}

// Rings hold a token and a sum at least, the words of a slot are apart, and nothing overlaps.
TEST(EpRailLayout, PartsOfAllGroupsAreApart) {
  for (const std::int32_t nodes : {2, 4, 16})
    for (const std::size_t chunk : {std::size_t{1}, std::size_t{512} << 10})
      for (const std::uint32_t depth : {1U, 4U, 1000U}) {
        detail::Shape shape = detail::make_shape(test::deepseek_options(), nodes * 4, nodes);
        const DeviceLayout device(shape);
        const detail::RailLayout rail(shape, device.notice_bytes, device.total, chunk, depth);
        const auto slots = static_cast<std::size_t>(nodes) * rail.depth;
        EXPECT_GE(rail.depth, detail::kMinRailDepth);
        EXPECT_LE(rail.depth, detail::kMaxRailDepth);
        EXPECT_GE(rail.arrived, device.total);
        EXPECT_GE(rail.read, rail.arrived + slots * 8);
        EXPECT_GE(rail.control_end, rail.read + slots * 8);
        EXPECT_GE(rail.notices, rail.control_end);
        EXPECT_GE(rail.out,
                  rail.notices + 2 * static_cast<std::size_t>(shape.ranks) * device.notice_bytes);
        EXPECT_GE(rail.in, rail.out + slots * rail.chunk_bytes);
        EXPECT_GE(rail.end, rail.in + slots * rail.chunk_bytes);
        EXPECT_EQ(rail.slot(nodes - 1, rail.depth - 1, rail.chunk_bytes),
                  (slots - 1) * rail.chunk_bytes);
        EXPECT_GE(rail.chunk_bytes, chunk);
        const auto top_k = static_cast<std::uint32_t>(shape.top_k);
        EXPECT_GE(rail.chunk_bytes,
                  detail::RailToken(static_cast<std::uint32_t>(shape.max_row_bytes),
                                    static_cast<std::uint32_t>(shape.max_scales * 4), top_k, true)
                      .total);
        EXPECT_GE(
            rail.chunk_bytes,
            detail::RailSum(static_cast<std::uint32_t>(shape.max_combine_row_bytes), top_k, true)
                .total);
      }
}

// The bytes that docs/internals/protocol/normal-internode.md states.
TEST(EpRailLayout, MessagesOfTheTrainingShape) {
  EXPECT_EQ(detail::RailToken(7168 * 2, 0, 8, true).total, 14448U);
  EXPECT_EQ(detail::RailSum(7168 * 2, 8, true).total, 14368U);
}

}  // namespace
}  // namespace shoal::ep
