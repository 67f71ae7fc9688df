// SPDX-License-Identifier: Apache-2.0
// Groups on several (emulated) nodes, with PEs as threads, bit by bit against the naive reference:
// the same results as on one node, except for the rounding of a node's sum.
// @traits slow
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <thread>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/formats.hpp"
#include "checks/ep/normal.hpp"
#include "checks/ep/rounds.hpp"
#include "checks/world/waits.hpp"
#include "shoal/collective.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"
#include "support/wait_for.hpp"
#include "support/world/ofi.hpp"
#include "world/state.hpp"

namespace shoal::test {
namespace {

struct Grid {
  std::int32_t ranks, nodes;
};
void PrintTo(const Grid& grid, std::ostream* out) {
  *out << grid.ranks << " ranks on " << grid.nodes << " nodes";
}

EpCase small(const Grid& grid, std::uint64_t seed = 1) {
  return {.ranks = grid.ranks,
          .experts = grid.ranks * 3,
          .top_k = 4,
          .hidden = 96,
          .max_tokens = 24,
          .seed = seed,
          .nodes = grid.nodes};
}

Settings settings_for(const EpCase& c) {
  Settings settings = ep_settings();
  settings.node_size = c.ranks / c.nodes;
  return settings;
}

/// Chunks into which rows between nodes are split.
struct Chunks {
  std::size_t bytes = Settings{}.ep_chunk;
  std::int64_t depth = Settings{}.ep_depth;
};

void run_case(const EpCase& c, const std::function<void(World&, ep::Group&)>& body,
              const Chunks& chunks = {}, std::int32_t threads = 0, bool mask_failed = false) {
  SCOPED_TRACE(c.describe());
  Settings settings = settings_for(c);
  settings.ep_chunk = chunks.bytes;
  settings.ep_depth = chunks.depth;
  run_threads(c.ranks, settings, [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.threads = threads;
    options.mask_failed = mask_failed;
    ep::Group group(world.team(), options);
    body(world, group);
    group.close();
    world.close();
  });
}

/// A low-latency dispatch of the rows as they are, with their weights.
ep::LowLatencyReceived received_bfloat16(ep::Group& group, const Inputs& in,
                                         bool early_weights = true) {
  ep::LowLatencyDispatchOptions options{.quantize = ep::Quantize::none};
  if (early_weights) options.weights = in.weights;
  return group.low_latency_dispatch(in.x, in.topk_idx, options).receive();
}

class EpNodes : public ::testing::TestWithParam<Grid> {};
INSTANTIATE_TEST_SUITE_P(Grids, EpNodes,
                         ::testing::Values(Grid{2, 2}, Grid{4, 2}, Grid{3, 3}, Grid{6, 2},
                                           Grid{6, 3}, Grid{8, 4}, Grid{5, 5}));

TEST_P(EpNodes, NormalModeMatchesTheReference) {
  for (std::uint64_t seed = 1; seed <= 3; ++seed)
    run_case(small(GetParam(), seed),
             [&](World&, ep::Group& group) { check_normal(group, small(GetParam(), seed)); });
}

TEST_P(EpNodes, ChunksOfOneTokenAndSeveralThreads) {
  EpCase c = small(GetParam(), 4);
  c.hidden = 2048;
  run_case(c, [&](World&, ep::Group& group) { check_normal(group, c); }, {.bytes = 4096});
  run_case(c, [&](World&, ep::Group& group) { check_normal(group, c); }, {.bytes = 3 * 4096}, 3);
  for (const std::int64_t depth : {1, 9})
    run_case(c, [&](World&, ep::Group& group) { check_normal(group, c); },
             {.bytes = 4096, .depth = depth});
}

// The sum of a node travels encoded, and that of the node of the source passes through the
// encoding.
TEST_P(EpNodes, EncodedCombinesOfNormalMode) {
  EpCase c = small(GetParam(), 12);
  c.hidden = 384;
  c.mixed_magnitudes = true;
  const ExpertMajorCall call{.alignment = 3, .biases = 1};
  run_case(
      c,
      [&](World& world, ep::Group& group) {
        ep::Group blocks(world.team(), expert_major_options(c, call));
        for (const auto quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8}) {
          for (const std::uint64_t seed : {0, 1})
            check_normal(group, reseeded(c, seed), {}, quantize);
          ExpertMajorCall encoded = call;
          encoded.combine_quantize = quantize;
          check_expert_major(blocks, c, encoded, host_tensors());
        }
        check_normal(group, c);
        blocks.close();
      },
      {.bytes = 4096}, 3);
}

/// Options of a group go before the settings of its world, which groups of the same world keep.
TEST_P(EpNodes, GroupsHaveTheirOwnChunks) {
  EpCase c = small(GetParam(), 6);
  c.hidden = 2048;
  run_threads(c.ranks, settings_for(c), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    ep::Group usual(world.team(), options);
    options.chunk_bytes = 4096;
    options.chunks_in_flight = 2;
    ep::Group small_chunks(world.team(), options);
    EXPECT_EQ(small_chunks.options().chunks_in_flight, 2);
    for (ep::Group* const group : {&usual, &small_chunks}) check_normal(*group, c);
    small_chunks.close();
    usual.close();
  });
}

TEST_P(EpNodes, NoTokensIdleRanksAndOneHotExpert) {
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small(GetParam());
    c.load = load;
    run_case(c, [&](World&, ep::Group& group) {
      for (int twice = 0; twice < 2; ++twice) {
        check_normal(group, c);
        check_low_latency(group, c, ep::Reduction::per_rank, false, twice == 1);
      }
    });
  }
}

TEST_P(EpNodes, WorstCaseRowsAlignmentAndCopyOut) {
  const EpCase c = small(GetParam(), 5);
  run_case(c, [&](World&, ep::Group& group) {
    check_normal(group, c, {.expert_alignment = 16});
    check_normal(group, c, {.worst_case_rows = c.ranks * c.max_tokens});
    check_normal(group, c, {.worst_case_rows = c.ranks * c.max_tokens, .copy_out = true});
  });
}

TEST_P(EpNodes, ExpertMajorLayoutScalesBiasesAndCachedHandles) {
  const EpCase c = small(GetParam(), 7);
  for (const ExpertMajorCall& call :
       {ExpertMajorCall{.alignment = 16, .cached = 2},
        ExpertMajorCall{.alignment = 1, .worst_case = true, .biases = 2},
        ExpertMajorCall{.alignment = 8, .unsummed = true, .in_place = true, .cached = 1},
        ExpertMajorCall{.dtype = DataType::float16,
                        .output_dtype = DataType::float16,
                        .weights = false,
                        .unsummed = true},
        ExpertMajorCall{
            .dtype = DataType::float8_e4m3, .scales = 3, .scale_columns = true, .alignment = 8},
        ExpertMajorCall{.dtype = DataType::float32,
                        .output_dtype = DataType::float32,
                        .weights = false,
                        .biases = 1}}) {
    run_threads(c.ranks, settings_for(c), [&](World& world) {
      ep::Group group(world.team(), expert_major_options(c, call));
      check_expert_major(group, c, call, host_tensors());
      group.close();
    });
  }
}

TEST(EpNodesMode, RanksThatDifferInUnsummedAllGetAMismatch) {
  const EpCase c = small({4, 2}, 7);
  run_threads(c.ranks, settings_for(c), [&](World& world) {
    ep::Group group(world.team(), expert_major_options(c, {}));
    const Inputs in(c, world.my_pe());
    const ep::ExpertMajorDispatched got =
        group.dispatch_expert_major(in.x, group.route(in.topk_idx));
    expect_error(Code::mismatch, "PE 2 combine of bfloat16 unsummed rows",
                 [&] { group.combine(got.x, got.handle, {.unsummed = world.my_pe() == 2}); });
    check_expert_major(group, c, {.unsummed = true}, host_tensors());
    group.close();
  });
}

TEST_P(EpNodes, CachedHandlesCombineAgain) {
  const EpCase c = small(GetParam(), 3);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::Dispatched first =
        group.dispatch(in.x, group.route(in.topk_idx), {.weights = in.weights});
    for (int repeat = 0; repeat < 2; ++repeat) {
      const ep::Dispatched again = group.dispatch(in.x, first.handle);
      expect_same("cached rows", again.x.data, first.x.data, first.x.bytes(), 2);
      const ep::Combined combined =
          group.combine(expert_output_of(c, world.my_pe(), first), again.handle);
      const auto wanted = expected_combine(c, world.my_pe());
      expect_same("combined", combined.x.data, wanted.data(), wanted.size() * 2, 2);
    }
  });
}

TEST_P(EpNodes, LowLatencyModeGivesTheBitsOfOneNode) {
  EpCase c = small(GetParam(), 9);
  c.hidden = 384;
  run_case(c, [&](World&, ep::Group& group) {
    for (const auto reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
      for (const bool zero_copy : {false, true})
        for (const bool early_weights : {false, true})
          check_low_latency(group, c, reduction, zero_copy, early_weights);
    check_low_latency_unsummed(group, c);
    check_low_latency_formats(group, c);
    check_normal_formats(group, c);
  });
}

TEST_P(EpNodes, SkewedOperationsOfBothModesInTurn) {
  EpCase one = small(GetParam(), 11), other = small(GetParam(), 12);
  one.hidden = other.hidden = 64;
  run_case(one,
           [&](World& world, ep::Group& group) {
             const NormalRound normal[] = {{one, world.my_pe()}, {other, world.my_pe()}};
             const LowLatencyRound fast[] = {
                 {one, world.my_pe(), ep::Reduction::per_rank},
                 {other, world.my_pe(), ep::Reduction::exact},
                 {other, world.my_pe(), ep::Reduction::per_rank, {}, true}};
             for (int i = 0; i < 60; ++i) {
               if ((i * 7 + world.my_pe() * 3) % 11 == 0)
                 std::this_thread::sleep_for(std::chrono::microseconds(400));
               normal[i % 3 == 0].run(group);
               fast[i % 3].run(group, i % 2 == 0);
             }
           },
           {.bytes = 4096});
}

// A rank sends encoded sums where it has the weights. Where they did not travel, immediate
// receives give the same bits, unless the group masks ranks.
TEST_P(EpNodes, EncodedCombinesAndSeveralThreads) {
  EpCase c = small(GetParam(), 10);
  c.hidden = 384;
  c.mixed_magnitudes = true;
  for (const bool mask_failed : {false, true}) {
    const auto check = [&](ep::Group& group, const ep::LowLatencyCombineOptions options,
                           bool early) {
      const std::int32_t me = group.team().my_pe();
      const Inputs in(c, me);
      const ep::LowLatencyReceived got = received_bfloat16(group, in, early);
      Tensor y = Tensor::empty(DataType::bfloat16, {c.local_experts(), got.x.shape[1], c.hidden});
      write_low_latency_expert_output(c, me, got, y);
      const Tensor out =
          group.low_latency_combine(y, in.topk_idx, in.weights, got.handle, options).receive();
      const bool sums = early || !(options.defer_receive || mask_failed);
      const auto wanted = expected_low_latency(
          c, me, options.reduction, {},
          combine_travels(combine_encoding(options.log_fmt, options.quantize), sums));
      expect_same("combined", out.data, wanted.data(), wanted.size() * 2, 2);
    };
    const auto body = [&](World&, ep::Group& group) {
      check_low_latency(group, c, ep::Reduction::per_rank, true, true);
      for (const auto reduction : {ep::Reduction::per_rank, ep::Reduction::exact})
        for (const bool early_weights : {true, false})
          for (const bool defer : {true, false})
            for (const auto quantize : {ep::Quantize::none, ep::Quantize::fp8, ep::Quantize::mxfp8})
              check(group,
                    {.log_fmt = quantize == ep::Quantize::none,
                     .quantize = quantize,
                     .reduction = reduction,
                     .defer_receive = defer},
                    early_weights);
    };
    run_case(c, body, {}, 3, mask_failed);
  }
}

TEST_P(EpNodes, LowLatencyStatisticsAddUp) {
  EpCase c = small(GetParam(), 15);
  c.hidden = 384;
  std::atomic<const WaitPoint*> of_pe_0 = nullptr;
  std::atomic<int> sent{0};
  run_case(c, [&](World& world, ep::Group& group) {
    if (world.my_pe() == 0) of_pe_0 = &state_of(world).waits().wait_point();
    sync(world.team());
    const Inputs in(c, world.my_pe());
    std::vector<std::int32_t> counts(static_cast<std::size_t>(c.local_experts()));
    std::vector<std::int64_t> waited(static_cast<std::size_t>(c.ranks)), waited_back = waited;
    const auto statistics = [](auto& values, DataType type) {
      return TensorView(values.data(), type, {static_cast<std::int64_t>(values.size())});
    };
    const Pe late = c.ranks - 1;           // on another node than PE 0
    const auto be_late = [&](int calls) {  // until PE 0 waits for this PE alone
      if (world.my_pe() != late) return;
      while (sent < calls * late) std::this_thread::yield();
      await_block(*of_pe_0);
    };
    for (int i = 0; i < 3; ++i) {
      if (i == 0) be_late(1);
      ep::PendingDispatch dispatched =
          group.low_latency_dispatch(in.x, in.topk_idx,
                                     {.tokens_per_expert = statistics(counts, DataType::int32),
                                      .wait_ns = statistics(waited, DataType::int64)});
      if (i == 0) ++sent;
      const ep::LowLatencyReceived got = dispatched.receive();
      if (i == 0) be_late(2);
      ep::PendingCombine combined = group.low_latency_combine(
          group.next_combine_buffer(), in.topk_idx, in.weights, got.handle,
          {.zero_copy = true, .wait_ns = statistics(waited_back, DataType::int64)});
      if (i == 0) ++sent;
      combined.receive();
    }
    const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
    for (std::size_t e = 0; e < counts.size(); ++e)
      EXPECT_EQ(counts[e], 3 * wanted.tokens_per_expert[e]);
    if (world.my_pe() == 0) {
      EXPECT_GT(waited[static_cast<std::size_t>(late)], 0) << "PE " << late << "  was late";
      EXPECT_GT(waited_back[static_cast<std::size_t>(late)], 0) << "PE " << late << " was late";
    }
    EXPECT_GE(*std::min_element(waited.begin(), waited.end()), 0);
    EXPECT_GE(*std::min_element(waited_back.begin(), waited_back.end()), 0);
  });
}

// Ranks that round at different places would read sums as rows.
TEST(EpNodesMode, RanksThatRoundAtDifferentPlacesAreDistinguished) {
  const EpCase c = small({4, 2}, 13);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::LowLatencyReceived got = received_bfloat16(group, in);
    const auto reduction = world.my_pe() == 1 ? ep::Reduction::exact : ep::Reduction::per_rank;
    ep::PendingCombine sent = group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle,
                                                        {.reduction = reduction});
    expect_error(Code::mismatch, "once (exact)", [&] { sent.receive(); });
    check_low_latency(group, c, ep::Reduction::per_rank, false, true);
  });
}

TEST(EpNodesMode, WeightsThatChangeBetweenDispatchAndCombineAreRefused) {
  const EpCase c = small({4, 2}, 14);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    const ep::LowLatencyReceived got = received_bfloat16(group, in);
    Tensor other = Tensor::empty(DataType::float32, {c.tokens(world.my_pe()), c.top_k});
    std::fill_n(other.as<float>(), other.size(), 9.0F);
    if (other.size() > 0)
      expect_error(Code::invalid_argument, "weights differ",
                   [&] { group.low_latency_combine(got.x, in.topk_idx, other, got.handle); });
    group.low_latency_combine(got.x, in.topk_idx, in.weights, got.handle).receive();
    check_low_latency(group, c, ep::Reduction::per_rank, false, true);
  });
}

TEST(EpNodesMode, OperationsOnTheGroupsStream) {
  const EpCase c = small({4, 2}, 21);
  run_case(c, [&](World& world, ep::Group& group) {
    const Inputs in(c, world.my_pe());
    auto sent = group.dispatch_async(in.x, group.route(in.topk_idx), {.weights = in.weights});
    const ep::Dispatched got = sent.get();
    const ep::Combined combined =
        group.combine_async(expert_output_of(c, world.my_pe(), got), got.handle).get();
    const auto wanted = expected_combine(c, world.my_pe());
    expect_same("combined", combined.x.data, wanted.data(), wanted.size() * 2, 2);
  });
}

TEST(EpNodesMode, SeveralGroupsOfDifferentPes) {
  const EpCase all = small({4, 2}), pair = small({2, 2}, 31);
  run_threads(4, settings_for(all), [&](World& world) {
    ep::Group big(world.team(), options_for(all));
    ep::Group rail(world.same_index_team(), options_for(pair));  // a rail is a team
    check_normal(rail, pair);
    check_normal(big, all);
    check_low_latency(rail, pair, ep::Reduction::per_rank, true);
    check_normal(rail, pair);
  });
}

// Only the network connects the nodes.
TEST(EpNodesMode, EveryFormOverANetwork) {
  SHOAL_SKIP_WITHOUT_OFI();
  const EpCase c = small({4, 2}, 32);
  Settings settings = settings_for(c);
  settings.transport_between = "ofi";
  run_threads(c.ranks, settings, [&](World& world) {
    EXPECT_TRUE(world.describe_transport((world.my_pe() + 2) % 4).starts_with("ofi"))
        << world.my_pe();
    ep::Group group(world.team(), options_for(c));
    check_normal(group, c, {.expert_alignment = 16});
    check_normal(group, c, {.worst_case_rows = c.ranks * c.max_tokens, .copy_out = true});
    for (const bool early_weights : {false, true}) {
      check_low_latency(group, c, ep::Reduction::per_rank, false, early_weights);
      check_low_latency(group, c, ep::Reduction::per_rank, true, early_weights);
    }
    check_low_latency_formats(group, c);
    check_normal_formats(group, c);
    group.close();
  });
}

TEST(EpNodesMode, WarmUp) {
  const EpCase c = small({4, 2}, 33);
  run_case(c, [&](World&, ep::Group& group) {
    group.warmup();
    check_normal(group, c);
    check_low_latency_quantized(group, c, ep::Quantize::fp8);
  });
}

TEST(EpNodesMode, AMissingRankIsNamed) {
  const EpCase c = small({4, 2}, 35);
  Settings settings = settings_for(c);
  settings.timeout = std::chrono::milliseconds(1000);
  std::atomic<int> failed{0};
  run_threads(4, settings, [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    if (world.my_pe() == 2) EXPECT_TRUE(wait_for([&] { return failed == 3; }));
    try {
      group.dispatch(in.x, group.route(in.topk_idx));
      ADD_FAILURE() << "PE " << world.my_pe() << " got rows although PE 2 was late";
    } catch (const Error& error) {
      ++failed;
      if (world.my_pe() == 2) return;  // the others have timed out
      EXPECT_TRUE(error.code() == Code::timeout || error.code() == Code::peer_failed)
          << error.what();
      expect_parts(error.what(), {"PE 2"});
    }
  });
}

}  // namespace
}  // namespace shoal::test
