// SPDX-License-Identifier: Apache-2.0
// Pure parts of EP: sizes and offsets, routing, the receive arena, the choice of
// stores.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "checks/ep/case.hpp"
#include "ep/host/group/layout.hpp"
#include "ep/host/rows/store_choice.hpp"
#include "ep/plan/arena.hpp"
#include "ep/plan/routing.hpp"
#include "shoal/detail/access.hpp"
#include "support/expect_error.hpp"

namespace shoal::ep {
namespace {

using test::EpCase;

TEST(EpLayout, SizesFollowExpertsRanksAndTokens) {
  const SizeHint base = size_hint(test::deepseek_options(), 8);
  GroupOptions more = test::deepseek_options();
  more.low_latency_max_tokens *= 2;
  EXPECT_NEAR(static_cast<double>(size_hint(more, 8).low_latency) / base.low_latency, 2.0, 0.01);
  EXPECT_EQ(size_hint(more, 8).normal, base.normal);
  more = test::deepseek_options();
  more.max_tokens = 0;
  EXPECT_EQ(size_hint(more, 8).normal, 0U);
  EXPECT_EQ(low_latency_size_hint(128, 7168, 8, 256), base.low_latency);
  // Headers per (source, token), rows per token and one combine row per (expert, source, token),
  // all twice. Computed by hand.
  const double slots = 2.0 * 8 * 128 * (4 + 8 * 4 + 4), outbox = 2.0 * 128 * 7168 * 2;
  const double combine_rows = 2.0 * 256 * 128 * (7168 * 2 + 56 * 4);
  EXPECT_NEAR(static_cast<double>(base.low_latency), slots + outbox + combine_rows, 64 * 1024);
}

TEST(EpLayout, PartsDoNotOverlapAndLieInOrder) {
  const detail::Shape shape = detail::make_shape(test::deepseek_options(), 8);
  const host::GroupLayout layout(shape);
  const std::size_t starts[] = {
      layout.entered,         layout.finished,      layout.slots_sent,
      layout.slots_read,      layout.combine_ready, layout.combine_read,
      layout.failed,          layout.notices,       layout.dispatch_notices,
      layout.combine_notices, layout.arena,         layout.staging,
      layout.staging_weights, layout.slots,         layout.outbox,
      layout.combine_rows,    layout.total};
  for (std::size_t i = 1; i < std::size(starts); ++i) EXPECT_LT(starts[i - 1], starts[i]) << i;
  EXPECT_LE(layout.notice(1, 7, shape) + layout.notice_bytes, layout.dispatch_notices);
  EXPECT_LE(layout.slot(1, 7, 127, shape) + layout.slot_bytes, layout.outbox);
  EXPECT_LE(layout.outbox_row(1, 127, shape) + layout.outbox_bytes, layout.combine_rows);
  EXPECT_LE(layout.combine_row(1, 31, 1023, shape) + layout.combine_row_stride, layout.total);
}

TEST(EpLayout, BadOptionsNameTheFieldAndItsLimits) {
  const auto message = [](auto change, std::int32_t ranks) -> std::string {
    GroupOptions options = test::deepseek_options();
    change(options);
    try {
      size_hint(options, ranks);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::invalid_argument);
      return error.what();
    }
    return "";
  };
  test::expect_parts(message([](auto& o) { o.top_k = 129; }, 8),
                     {"top_k is 129; allowed: 1 to 128"});
  test::expect_parts(message([](auto& o) { o.hidden = 0; }, 8), {"hidden is 0"});
  test::expect_parts(message([](auto& o) { o.hidden = 4; }, 8), {"multiple of 16 bytes"});
  test::expect_parts(message([](auto& o) { o.first_expert = {0, 9}; }, 8),
                     {"first_expert has 2 numbers; allowed: none, 8"});
  EXPECT_EQ(message([](auto&) {}, 7), "");
  test::expect_parts(message([](auto& o) { o.max_tokens = -1; }, 8), {"max_tokens is -1"});
  test::expect_parts(message([](auto& o) { o.max_tokens = o.low_latency_max_tokens = 0; }, 8),
                     {"at least one"});
  test::expect_parts(message([](auto& o) { o.dtype = DataType::int8; }, 8), {"dtype is int8"});
  test::expect_parts(message([](auto& o) { o.live_results = 0; }, 8), {"live_results is 0"});
  test::expect_parts(message([](auto& o) { o.chunk_bytes = 4095; }, 8),
                     {"chunk_bytes is 4095; allowed: 4096 to 1073741824"});
  test::expect_parts(message([](auto& o) { o.chunks_in_flight = 1025; }, 8),
                     {"chunks_in_flight is 1025; allowed: 0 to 1024"});
}

TEST(EpLayout, TopkSlotsOfKernels) {
  GroupOptions options = test::deepseek_options();
  for (const std::int32_t top_k : {32, 33, kMaxTopK}) {
    options.top_k = top_k;
    EXPECT_GT(size_hint(options, 8, DeviceKind::cuda).total(), size_hint(options, 8).total() / 8);
  }
}

// The options of a group go before the settings of its world.
TEST(EpLayout, ChunksOfAGroup) {
  GroupOptions options = test::deepseek_options();
  Settings settings;
  settings.ep_chunk = std::size_t{1} << 20;
  settings.ep_depth = 7;
  const host::GroupLayout usual(detail::make_shape(options, 8, 2), settings);
  EXPECT_EQ(usual.chunk_bytes, std::size_t{1} << 20);
  EXPECT_EQ(usual.chunk_depth, 7U);
  const std::size_t hint = size_hint(options, 8, DeviceKind::cuda, 2).normal;
  options.chunk_bytes = 256 << 10;
  options.chunks_in_flight = 3;
  const host::GroupLayout own(detail::make_shape(options, 8, 2), settings);
  EXPECT_EQ(own.chunk_bytes, std::size_t{256} << 10);
  EXPECT_EQ(own.chunk_depth, 3U);
  EXPECT_EQ(own.chunks_in - own.chunks_out, 2 * 3 * own.chunk_bytes);
  EXPECT_LT(size_hint(options, 8, DeviceKind::cuda, 2).normal, hint);
}

TEST(EpLayout, KernelsHaveMoreChunksInFlightUnlessTheNumberIsGiven) {
  EXPECT_EQ(detail::chunk_depth(0, 0, true), 16U);
  EXPECT_EQ(detail::chunk_depth(0, 0, false), 4U);
  EXPECT_EQ(detail::chunk_depth(0, 7, true), 7U);
  EXPECT_EQ(detail::chunk_depth(3, 7, false), 3U);
  const host::GroupLayout usual(detail::make_shape(test::deepseek_options(), 8, 2), Settings{});
  EXPECT_EQ(usual.chunk_depth, 4U);
}

TEST(EpLayout, SizesThatExceed64BitsAreRejected) {
  const auto rejected = [](const GroupOptions& options, std::int32_t ranks) {
    for (const DeviceKind heap : {DeviceKind::host, DeviceKind::cuda}) {
      test::expect_error(Code::invalid_argument, "exceeds 2^64 - 1 bytes",
                         [&] { (void)size_hint(options, ranks, heap); });
    }
  };
  GroupOptions normal;
  normal.max_tokens = 16'775'176;
  normal.hidden = 767'596;
  normal.top_k = 1;
  normal.experts = 128;
  normal.dtype = DataType::float32;
  normal.live_results = 700;
  normal.max_scales = 1 << 20;
  rejected(normal, 128);
}

TEST(EpRouting, MatchesNaiveCountsAndOrder) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    EpCase c;
    c.ranks = 1 + static_cast<std::int32_t>(seed % 7);
    c.experts = c.ranks * (1 + static_cast<std::int32_t>(seed % 9));
    if (seed % 3 == 1) c.experts = 1 + static_cast<std::int32_t>(seed);
    if (seed % 3 == 2)
      for (std::int32_t rank = 0; rank < c.ranks; ++rank)
        c.first_expert.push_back(rank * static_cast<std::int32_t>(seed) % c.experts);
    std::ranges::sort(c.first_expert);
    c.top_k = 1 + static_cast<std::int32_t>(seed * 5 % 32);
    c.max_tokens = 40;
    c.seed = seed;
    GroupOptions options;
    options.max_tokens = c.max_tokens;
    options.hidden = 64;
    options.top_k = c.top_k;
    options.experts = c.experts;
    options.first_expert = c.first_expert;
    const detail::Shape shape = detail::make_shape(options, c.ranks);
    const auto topk_idx = c.topk(0);
    const auto state = detail::make_routing(
        detail::checked_topk(
            ConstTensorView(topk_idx.data(), DataType::int64, {c.tokens(0), c.top_k}), shape,
            c.max_tokens, "test"),
        shape);
    auto routing = shoal::detail::Access::make<Routing>(state);
    routing.topk_idx = state->topk_idx;
    std::vector<std::int32_t> per_rank(c.ranks), per_expert(c.experts);
    std::vector<std::int32_t> node_of(c.ranks), per_node(2);  // even ranks, odd ranks
    for (std::int32_t rank = 0; rank < c.ranks; ++rank) node_of[rank] = rank % 2;
    for (std::int64_t t = 0; t < c.tokens(0); ++t) {
      for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
        bool here = false;
        for (std::int32_t k = 0; k < c.top_k; ++k)
          here |= topk_idx[t * c.top_k + k] >= 0 && c.rank_of(topk_idx[t * c.top_k + k]) == rank;
        EXPECT_EQ(routing.is_token_in_rank(t, rank), here);
        per_rank[rank] += here;
      }
      for (std::int32_t node = 0; node < 2; ++node) {
        bool here = false;
        for (std::int32_t rank = node; rank < c.ranks; rank += 2)
          here |= routing.is_token_in_rank(t, rank);
        per_node[node] += here;
      }
      std::int32_t last = -1;  // copies are ordered by the last top-k slot of their rank
      for (const detail::Copy& copy : shoal::detail::state_of(routing)->copies_of(t)) {
        std::int32_t topk_slot = -1;
        for (std::int32_t k = 0; k < c.top_k; ++k)
          if (topk_idx[t * c.top_k + k] >= 0 && c.rank_of(topk_idx[t * c.top_k + k]) == copy.rank)
            topk_slot = k;
        EXPECT_GT(topk_slot, last);
        last = topk_slot;
      }
    }
    for (std::int64_t expert : topk_idx)
      if (expert >= 0) ++per_expert[expert];
    EXPECT_EQ(state->tokens_per_rank, per_rank);
    EXPECT_EQ(state->tokens_per_expert, per_expert);
    EXPECT_EQ(detail::count_by_node(*state, node_of, 2), per_node);
  }
}

// Duplicate experts of a token are rejected.
TEST(EpRouting, RejectsBadIndicesByToken) {
  GroupOptions options = test::deepseek_options();
  options.top_k = 2;
  const detail::Shape shape = detail::make_shape(options, 8);
  const auto message = [&](std::vector<std::int64_t> topk_idx,
                           DataType dtype = DataType::int64) -> std::string {
    try {
      detail::checked_topk(
          TensorView(topk_idx.data(), dtype, {static_cast<std::int64_t>(topk_idx.size()) / 2, 2}),
          shape, 4, "route");
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({0, 255, -1, -1}), "");
  test::expect_parts(message({0, 1, 2, 256}), {"topk_idx[1, 1] is 256; allowed: 0 to 255"});
  test::expect_parts(message({0, 1, 2, -2}), {"is -2"});
  test::expect_parts(message({0, 1, 7, 7}), {"topk_idx[1] names expert 7 twice"});
  test::expect_parts(message(std::vector<std::int64_t>(10, -1)), {"at most 4"});
  test::expect_parts(message({0, 1}, DataType::float32), {"float32"});
}

TEST(EpArena, TakesShrinksAndReturnsWithoutOverlap) {
  constexpr std::size_t kSize = 64 * 4096;
  detail::Arena arena(kSize);
  std::mt19937 random(7);
  std::map<std::size_t, std::size_t> held;
  int refused = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (random() % 2 == 0) {
      const std::size_t bytes = random() % (20 * 4096);
      const auto at = arena.take(bytes);
      if (!at) {
        ++refused;
        continue;
      }
      EXPECT_LE(*at + bytes, kSize);
      for (const auto& [start, length] : held)
        EXPECT_TRUE(*at + bytes <= start || start + length <= *at || bytes == 0 || length == 0);
      const std::size_t kept = bytes - (bytes > 0 ? random() % bytes : 0);
      arena.shrink(*at, kept);
      EXPECT_TRUE(held.emplace(*at, kept).second) << "two regions start at the same offset";
    } else if (!held.empty()) {
      auto it = std::next(held.begin(), random() % held.size());
      arena.release(it->first);
      held.erase(it);
    }
    EXPECT_EQ(arena.regions(), held.size());
  }
  EXPECT_GT(refused, 0);
  for (const auto& [start, length] : held) arena.release(start);
  EXPECT_TRUE(arena.take(kSize).has_value());
}

// GroupOptions.live_results.
TEST(EpArena, HoldsAsManyResultsAsPromisedWhereverTheyLie) {
  GroupOptions options = test::deepseek_options();
  options.live_results = 2;
  const detail::Shape shape = detail::make_shape(options, 8);
  const std::size_t largest = host::ReceiveLayout(shape.max_received(), shape.max_row_bytes,
                                                  shape.max_scales * 4, shape.top_k)
                                  .total;
  detail::Arena arena(host::GroupLayout(shape).arena_bytes);
  const auto first = arena.take(largest);
  arena.shrink(*first, largest / 2);
  const auto second = arena.take(largest);
  arena.release(*first);
  EXPECT_TRUE(arena.take(largest).has_value()) << "one result is held, at " << *second;
}

// GroupOptions.live_results on GPUs.
TEST(EpArena, TightHoldsExactlyAsManyOfTheLargestAsPromised) {
  constexpr std::size_t kPage = 4096, kLargest = 10 * kPage;
  for (const std::size_t most : {1, 2}) {
    EXPECT_EQ(detail::Arena::bytes_for(most, kLargest - 5), most * kLargest);
    detail::Arena arena(detail::Arena::bytes_for(most, kLargest), most);
    // Against a model: a region is granted exactly when fewer than `most` are held, whatever their
    // sizes and the order of takes and releases. It never overlaps held regions, nor the size to
    // which they may grow back.
    std::mt19937 random(static_cast<unsigned>(most));
    std::map<std::size_t, std::size_t> held;
    int granted = 0, refused = 0;
    for (int step = 0; step < 20'000; ++step) {
      if (random() % 2 == 0) {
        const std::size_t bytes = random() % 4 == 0 ? kLargest : random() % (kLargest + 1);
        const auto at = arena.take(bytes);
        ASSERT_EQ(at.has_value(), held.size() < most)
            << "step " << step << ", " << bytes << " bytes";
        if (!at) {
          ++refused;
          continue;
        }
        ++granted;
        ASSERT_LE(*at + bytes, most * kLargest);
        ASSERT_EQ(*at % kPage, 0U);
        for (const auto& [start, length] : held)
          ASSERT_TRUE(*at + bytes <= start || start + length <= *at) << "step " << step;
        if (random() % 3 == 0) {
          const std::size_t kept = random() % (bytes + 1);
          arena.shrink(*at, kept);
          held[*at] = kept;
        } else {
          held[*at] = bytes;
        }
      } else if (!held.empty()) {
        const auto gone =
            std::next(held.begin(), static_cast<std::ptrdiff_t>(random() % held.size()));
        arena.release(gone->first);
        held.erase(gone);
      }
      ASSERT_EQ(arena.regions(), held.size());
    }
    EXPECT_GT(granted, 1000);
    EXPECT_GT(refused, 1000);
  }
}

TEST(EpArena, OnlyOneAndTwoResultsAreTight) {
  constexpr std::size_t kPage = 4096;
  for (const std::size_t results : {3, 4, 7}) {
    EXPECT_EQ(detail::Arena::bytes_for(results, 3 * kPage), (2 * results - 1) * 3 * kPage);
    detail::Arena arena(detail::Arena::bytes_for(results, 3 * kPage), results);
    std::size_t count = 0;
    while (arena.take(3 * kPage)) ++count;
    EXPECT_EQ(count, 2 * results - 1) << "a larger arena holds more results";
  }
  detail::Arena tight(detail::Arena::bytes_for(1, 3 * kPage), 1);
  EXPECT_FALSE(tight.take(3 * kPage + 1).has_value());
  EXPECT_TRUE(tight.take(0).has_value());
  EXPECT_FALSE(tight.take(0).has_value());
}

TEST(EpStore, StreamsOnlyWhatTheCacheCannotHold) {
  using host::choose_store;
  using host::Store;
  EXPECT_EQ(choose_store(1 << 20, 8, 32 << 20), Store::cached);
  EXPECT_EQ(choose_store(5 << 20, 8, 32 << 20), Store::streamed);
}

}  // namespace
}  // namespace shoal::ep
