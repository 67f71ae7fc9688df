// SPDX-License-Identifier: Apache-2.0
// Values of normal mode on GPUs: PEs are threads on the available GPUs, and each result is compared
// bit by bit with the naive reference. Every result is poisoned before the next one takes its
// place.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "checks/ep/formats.hpp"
#include "checks/ep/gpu_normal.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using Body = std::function<void(GpuGroup&)>;

void run_group(const EpCase& c, const Body& body, ep::GroupOptions options) {
  SCOPED_TRACE(c.describe());
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, options);
    body(group);
  });
}

ep::GroupOptions normal_options(const EpCase& c) {
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  return options;
}

/// Two rounds use both halves of the notice buffers, and the second result overwrites the first.
void run_rounds(EpCase c, const GpuCall& call) {
  ep::GroupOptions options = normal_options(c);
  if (call.columns == 0) options.dtype = call.dtype;
  if (call.output_dtype == DataType::float32) options.dtype = DataType::float32;
  options.max_scales = std::max<std::int64_t>(call.scales, 0);
  run_group(
      c,
      [&](GpuGroup& group) {
        for (std::uint64_t round = 0; round < 2; ++round) {
          EpCase now = c;
          now.seed += 100 * round;
          GpuRound(group, now, call).run();
        }
      },
      options);
}

class EpGpu : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpu, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpGpu, SmallDispatchAndCombine) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (std::uint64_t seed = 1; seed <= 3; ++seed) run_rounds(small_case(GetParam(), seed), {});
}

TEST_P(EpGpu, SmallUnevenExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  std::vector<EpCase> cases{uneven_case(GetParam(), 41)};
  if (GetParam() > 2) cases.push_back(gap_case(GetParam(), 42));
  for (const EpCase& c : cases) {
    run_rounds(c, {.dispatch = {.expert_alignment = 8}});
    run_rounds(c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens},
                   .place = OutputPlace::in_place});
  }
}

TEST_P(EpGpu, SmallNoTokensIdleRanksAndOneHotExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small_case(GetParam());
    c.load = load;
    run_rounds(c, {});
    run_rounds(c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens},
                   .place = OutputPlace::in_place});
  }
}

TEST_P(EpGpu, SmallWorstCaseRowsAlignmentAndCopyOut) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(GetParam(), 5);
  const std::int64_t most = c.ranks * c.max_tokens;
  for (const std::int32_t alignment : {16, 128, 224, 256})
    run_rounds(c, {.dispatch = {.expert_alignment = alignment}});
  run_rounds(c, {.dispatch = {.worst_case_rows = most}});
  run_rounds(c, {.dispatch = {.copy_out = true}});
  run_rounds(c, {.scales = 3,
                 .dispatch = {.expert_alignment = 8, .worst_case_rows = most, .copy_out = true}});
}

TEST(EpGpuNormal, SmallPlacesOfExpertOutputBiasesAndOut) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 11);
  run_group(
      c,
      [&](GpuGroup& group) {
        for (const OutputPlace place :
             {OutputPlace::staged, OutputPlace::in_place, OutputPlace::heap})
          for (const int biases : {0, 1, 2})
            GpuRound(group, reseeded(c, 3 * biases),
                     {.place = place, .biases = biases, .out = biases != 1})
                .run();
      },
      normal_options(c));
}

TEST(EpGpuNormal, SmallWithoutWeights) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_rounds(small_case(3, 2), {.weights = false});
  run_rounds(small_case(3, 3), {.combine_weights = false});
  run_rounds(small_case(3, 4), {.int32_topk = true});
  run_rounds(small_case(3, 5),
             {.weights = false, .int32_topk = true, .dispatch = {.copy_out = true}});
}

// Expert output is encoded wherever it lies.
TEST_P(EpGpu, SmallEncodedCombines) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(GetParam(), 9);
  for (const std::int64_t hidden : {32, 1056, 2048}) {
    c.hidden = hidden;
    for (const ep::Quantize quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8})
      for (const OutputPlace place :
           {OutputPlace::in_place, OutputPlace::heap, OutputPlace::staged})
        run_rounds(c, {.place = place, .biases = 1, .out = true, .combine_quantize = quantize});
  }
}

TEST_P(EpGpu, SmallRowsInEveryFormat) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(GetParam(), 6);
  for (const std::int64_t hidden : {64, 192, 448, 1088}) {
    c.hidden = hidden;
    run_group(
        c,
        [&](GpuGroup& group) {
          EXPECT_EQ(check_normal_formats(group.group, c, mover(group)), GetParam() < 3 ? 1 : 2);
        },
        normal_options(c));
  }
}

TEST(EpGpuNormal, SmallFormatsThatDifferAreRefused) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(3, 8);
  c.hidden = 128;
  run_group(
      c, [&](GpuGroup& group) { check_refused_formats(group.group, c, mover(group)); },
      normal_options(c));
}

TEST(EpGpuNormal, SmallRowTypes) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const DataType dtype : {DataType::bfloat16, DataType::float16, DataType::float32,
                               DataType::float8_e4m3, DataType::int8, DataType::uint8}) {
    SCOPED_TRACE(name_of(dtype));
    EpCase c = small_case(4, 13);
    c.hidden = 272;
    GpuCall call{.dtype = dtype};
    if (dtype == DataType::float16 || dtype == DataType::float32) call.output_dtype = dtype;
    if (dtype == DataType::int8) call.columns = 112;   // slightly more than half a byte per channel
    if (dtype == DataType::uint8) call.columns = 544;  // as many bytes as a bfloat16 row
    run_rounds(c, call);
    if (call.output_dtype == dtype) {
      call.place = OutputPlace::in_place;
      call.biases = 2;
      run_rounds(c, call);
    }
  }
}

/// NVFP4 rows: two channels per byte, opaque to a group, and a float8 scale per 16 channels, four
/// in an int32. The expert output is bfloat16.
TEST(EpGpuNormal, SmallNvfp4RowsWithTheirScales) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {288, 2048, 7168}) {
    EpCase c = small_case(4, 14 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    GpuCall call{.dtype = DataType::uint8,
                 .columns = hidden / 2,
                 .scale_dtype = DataType::int32,
                 .scales = (hidden + 63) / 64};
    for (const ScaleOrder order : {ScaleOrder::contiguous, ScaleOrder::columns}) {
      call.scale_order = order;
      call.dispatch.worst_case_rows = order == ScaleOrder::columns ? c.ranks * c.max_tokens : 0;
      run_rounds(c, call);
    }
  }
}

TEST(EpGpuNormal, SmallFloat32GroupTakesShorterRowsAndExpertOutput) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 15);
  ep::GroupOptions options = normal_options(c);
  options.dtype = DataType::float32;
  run_group(
      c,
      [&](GpuGroup& group) {
        GpuRound(group, c,
                 {.dtype = DataType::float32, .output_dtype = DataType::float16, .biases = 1})
            .run();
        GpuRound(group, c,
                 {.dtype = DataType::bfloat16, .output_dtype = DataType::float32, .out = true})
            .run();
        GpuRound(group, c,
                 {.dtype = DataType::float8_e4m3, .scales = 1, .output_dtype = DataType::bfloat16})
            .run();
      },
      options);
}

TEST(EpGpuNormal, SmallScalesOfAllLayouts) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(3, 17);
  c.hidden = 128;
  ep::GroupOptions options = normal_options(c);
  options.dtype = DataType::float8_e4m3;
  options.max_scales = 56;
  run_group(
      c,
      [&](GpuGroup& group) {
        for (const DataType dtype : {DataType::float32, DataType::int32})
          for (const ScaleOrder order :
               {ScaleOrder::contiguous, ScaleOrder::padded, ScaleOrder::columns})
            for (const std::int64_t scales : {1, 2, 3, 4, 7, 8, 56})
              GpuRound(group, reseeded(c, scales),
                       {.dtype = DataType::float8_e4m3,
                        .scale_dtype = dtype,
                        .scales = scales,
                        .scale_order = order})
                  .run();
      },
      options);
}

TEST(EpGpuNormal, CachedHandleGivesTheSameLayout) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t worst : {0, 4 * 24}) {
    const EpCase c = small_case(4, 3);
    const GpuCall call{
        .scales = 2, .dispatch = {.worst_case_rows = worst}, .place = OutputPlace::in_place};
    ep::GroupOptions options = normal_options(c);
    options.max_scales = 2;
    run_group(
        c,
        [&](GpuGroup& group) {
          GpuRound round(group, c, call);
          ep::Dispatched first = round.dispatch(round.route());
          round.check(first);
          const ep::Handle handle = first.handle;
          first = {};  // the handle outlives the rows of its dispatch
          for (std::uint64_t repeat = 0; repeat < 3; ++repeat) {
            round.change_rows(100 + repeat);
            const ep::Dispatched again = round.dispatch(handle);
            round.check(again, true, worst > 0);
            round.write_expert_output(again);
            round.check(round.combine(again));
            round.poison(again);
          }
        },
        options);
  }
}

TEST(EpGpuNormal, SmallShareOfSms) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t sms : {1, 2, 4, 8})
    run_rounds(small_case(4, 19), {.dispatch = {.launch = {.sms = sms}}, .combine = {.sms = sms}});
}

TEST(EpGpuNormal, EveryTopK) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t ranks : {1, 3, 8})
    for (const std::int32_t top_k : {1, 2, 3, 5, 8, 9, 16, 31, 32, 33, 64, 100, 128}) {
      EpCase c = small_case(ranks, 23 + top_k);
      c.top_k = top_k;
      // Sometimes fewer than top_k: top-k slots stay empty.
      c.experts = ranks * (top_k > 32 ? 40 : 6);
      run_rounds(c, {.biases = 1});
    }
}

TEST(EpGpuNormal, ManyExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t experts : {8, 72, 256, 1024}) {
    EpCase c = small_case(8, 29);
    c.experts = experts;
    c.top_k = 8;
    c.max_tokens = 100;
    run_rounds(c, {});
  }
}

TEST(EpGpuNormal, RowsFrom16BytesTo64KiB) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {8, 16, 24, 248, 256, 264, 520, 2048, 5128, 7168, 16384}) {
    EpCase c = small_case(3, 31 + hidden);
    c.hidden = hidden;
    run_rounds(c, {.place = OutputPlace::in_place});
  }
  EpCase c = small_case(2, 37);
  c.hidden = 16384;
  run_rounds(c, {.dtype = DataType::float32, .scales = 128, .output_dtype = DataType::float32});
}

TEST(EpGpuNormal, MoreTokensThanWarps) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small_case(4, 41);
  c.experts = 64;
  // A block of the route kernel takes 1024 tokens at a time and a rank has at most eight blocks.
  // The first case needs several blocks, the second several steps of a block.
  for (const auto& [tokens, hidden] : {std::pair{3000, 512}, {9500, 64}}) {
    c.max_tokens = tokens;
    c.hidden = hidden;
    run_rounds(c, {.place = OutputPlace::in_place, .samples = 200});
  }
}

TEST(EpGpuNormal, SeveralResultsLiveAtOnce) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t live : {1, 2, 3}) {
    const EpCase c = small_case(3, 43);
    ep::GroupOptions options = normal_options(c);
    options.live_results = live;
    run_group(
        c,
        [&](GpuGroup& group) {
          GpuRound round(group, c, {.place = OutputPlace::in_place});
          const ep::Routing routing = round.route();
          std::vector<ep::Dispatched> held;
          for (std::int32_t i = 0; i < live; ++i) held.push_back(round.dispatch(routing));
          for (const ep::Dispatched& got : held) round.check(got);
          for (std::size_t i = held.size(); i-- > 0;) {  // combined in reverse order
            round.write_expert_output(held[i]);
            round.check(round.combine(held[i]));
          }
          held.erase(held.begin());  // the memory of results released in any order is reused
          held.push_back(round.dispatch(routing));
          round.check(held.back());
        },
        options);
  }
}

TEST(EpGpuNormal, OwnStreamsAndEvents) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 47);
  run_group(
      c,
      [&](GpuGroup& group) {
        const auto event = [] {
          cudaEvent_t made = nullptr;
          EXPECT_EQ(cudaEventCreateWithFlags(&made, cudaEventDisableTiming), cudaSuccess);
          return std::shared_ptr<CUevent_st>(made,
                                             [](cudaEvent_t e) { (void)cudaEventDestroy(e); });
        };
        CUstream_st *const first = group.tensors.new_stream(), *const second =
                                                                   group.tensors.new_stream();
        const auto routed = event(), dispatched = event(), combined = event();
        // Each call uses another stream. The group keeps their order; the events order the caller's
        // work.
        for (std::uint64_t seed = 47; seed < 50; ++seed) {
          EpCase now = c;
          now.seed = seed;
          GpuRound round(
              group, now,
              {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens,
                            .launch = {.stream = first,
                                       .after = routed.get(),
                                       .done = dispatched.get()}},
               .place = OutputPlace::in_place,
               .combine = {.stream = second, .after = dispatched.get(), .done = combined.get()}});
          const ep::Routing routing = round.route({.done = routed.get()});
          const ep::Dispatched got = round.dispatch(routing);
          round.check(got);
          round.write_expert_output(got);
          const ep::Combined back = round.combine(got);
          EXPECT_EQ(cudaEventSynchronize(combined.get()), cudaSuccess);
          round.check(back);
          EXPECT_EQ(cudaEventQuery(dispatched.get()), cudaSuccess);
          group.group.synchronize();
        }
        GpuRound(group, c, {}).run();  // again on the group's stream
      },
      normal_options(c));
}

TEST(EpGpuNormal, AfterHoldsACallBack) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Events after slow work: dispatch must send the rows that this work writes.
  const EpCase c = small_case(3, 53);
  run_group(
      c,
      [&](GpuGroup& group) {
        CUstream_st* const producer = group.tensors.new_stream();
        cudaEvent_t ready = nullptr;
        ASSERT_EQ(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming), cudaSuccess);
        const std::int64_t tokens = c.tokens(group.me);
        const std::size_t bytes = std::max<std::int64_t>(tokens * c.hidden * 2, 16);
        const Tensor big = group.tensors.empty(DataType::uint8, {std::int64_t{256} << 20});
        const Tensor x = group.tensors.empty(DataType::bfloat16, {tokens, c.hidden});
        const auto topk_idx = c.topk(group.me);
        const Tensor topk = group.tensors.upload(
            ConstTensorView(topk_idx.data(), DataType::int64, {tokens, c.top_k}));
        const ep::Routing routing = group.group.route(topk);
        for (int value = 1; value <= 3; ++value) {
          for (int i = 0; i < 4; ++i) {
            ASSERT_EQ(
                cudaMemsetAsync(big.data, value, static_cast<std::size_t>(big.shape[0]), producer),
                cudaSuccess);
          }
          ASSERT_EQ(cudaMemsetAsync(x.data, value, bytes, producer), cudaSuccess);
          ASSERT_EQ(cudaEventRecord(ready, producer), cudaSuccess);
          const ep::Dispatched got = group.group.dispatch(x, routing, {.launch = {.after = ready}});
          const Tensor rows = group.tensors.download(got.x);
          for (std::size_t i = 0; i < rows.bytes(); ++i)
            ASSERT_EQ(rows.as<std::uint8_t>()[i], value) << i;
        }
        (void)cudaEventDestroy(ready);
      },
      normal_options(c));
}

TEST(EpGpuNormal, AsynchronousCalls) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 59);
  run_group(
      c,
      [&](GpuGroup& group) {
        GpuRound round(group, c, {.place = OutputPlace::in_place, .combine_weights = false});
        const ep::Routing routing = round.route();
        auto first = group.group.dispatch_async(round.x(), routing, round.dispatch_options());
        auto second = group.group.dispatch_async(round.x(), routing,
                                                 round.dispatch_options());  // without a combine
        ep::Dispatched a = first.get(), b = second.get();
        round.check(a);
        round.check(b);
        round.write_expert_output(a);
        std::promise<void> computed;
        auto combined =
            group.group.combine_async(round.y(), a.handle, {}, computed.get_future().share());
        EXPECT_EQ(combined.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout)
            << "ran before its event";
        computed.set_value();
        round.check(combined.get());
        a = b = {};                    // a group of two results has no room for a third
        GpuRound(group, c, {}).run();  // a call without a stream waits for what is queued
      },
      normal_options(c));
}

TEST(EpGpuNormal, SmallTwoGroupsOnHalvesOfTheWorld) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2, 61);
  run_threads(4, gpu_settings(), [&](World& world) {
    const Team half = world.team().split_2d(2).first;
    DeviceTensors tensors(world);
    ep::Group group(half, normal_options(c));
    tensors.follow(group.stream());
    const Inputs in(c, half.my_pe());
    const Tensor x = tensors.upload(in.x), topk = tensors.upload(in.topk_idx);
    const ExpectedDispatch wanted = expected_dispatch(c, half.my_pe());
    for (int i = 0; i < 5; ++i) {
      const ep::Dispatched got = group.dispatch(x, group.route(topk));
      ASSERT_EQ(got.rows, static_cast<std::int64_t>(wanted.source_token.size()));
      const Tensor rows = tensors.download(got.x);
      for (std::int64_t r = 0; r < got.rows; ++r)
        for (std::int64_t ch = 0; ch < c.hidden; ++ch)
          ASSERT_EQ(rows.as<std::uint16_t>()[r * c.hidden + ch],
                    c.value(wanted.source_rank[r], wanted.source_token[r], ch));
      tensors.poison(got.x);
    }
    tensors.unfollow(group.stream());
    group.close();
  });
}

TEST(EpGpuNormal, GroupsOneAfterAnotherInTheSameMemory) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 67);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    const std::size_t before = world.heap().used();
    for (int i = 0; i < 5; ++i) {
      ep::GroupOptions options = normal_options(c);
      options.preinitialize = i % 2 == 1;
      GpuGroup group(world, options);
      GpuRound(group, c, {.biases = i % 3}).run();
      if (i == 4) group.group.warmup();
      EXPECT_EQ(group.group.statistics().dispatches, 1U);
      group.group.close();
      EXPECT_EQ(world.heap().used(), before);
    }
  });
}

TEST(EpGpuNormal, StatisticsCountTheRowsOfAllDispatches) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(3, 69);
  run_group(
      c,
      [&](GpuGroup& group) {
        GpuRound exact(group, c, {});
        GpuRound worst(group, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
        const auto counted = [&] {
          group.group.synchronize();
          return group.group.statistics();
        };
        ep::Dispatched got = exact.dispatch(exact.route());
        const auto rows = static_cast<std::uint64_t>(*got.rows);
        EXPECT_EQ(counted().rows_received, rows);
        ep::Handle handle = got.handle;
        got = {};
        exact.write_expert_output(got = exact.dispatch(handle));
        EXPECT_EQ(counted().rows_received, 2 * rows) << "a cached handle knows the sizes";
        exact.combine(got);
        got = {};
        got = worst.dispatch(worst.route());
        handle = got.handle;
        got = {};
        got = worst.dispatch(handle);
        EXPECT_EQ(counted().rows_received, 4 * rows) << "also where the sizes stay on the GPU";
        EXPECT_EQ(counted().dispatches, 4U);
        EXPECT_EQ(counted().combines, 1U);
        EXPECT_EQ(counted().rows_sent % 4, 0U);
        EXPECT_GT(counted().wait_time.count(), 0);
        EXPECT_GT(counted().dispatch_time.count(), 0);
        EXPECT_GT(counted().combine_time.count(), 0);
      },
      normal_options(c));
}

TEST(EpGpuNormal, CloseWaitsForWhatIsQueued) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(4, 71);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    for (int i = 0; i < 5; ++i) {
      GpuGroup group(world, normal_options(c));
      GpuRound round(group, c, {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}});
      {
        ep::Dispatched got = round.dispatch(round.route());
        round.write_expert_output(got);
        round.combine(got);
      }
      group.group
          .close();  // kernels of other ranks may still run; the next group gets the same memory
    }
  });
}

TEST(EpGpuNormal, SmallRoutingsAnswerOnTheHost) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small_case(2);
  ep::GroupOptions options = options_for(c);
  run_group(
      c,
      [&](GpuGroup& group) {
        GpuRound round(group, c, {});
        const ep::Routing routing = round.route();
        const std::int32_t me = group.group.team().my_pe();
        const auto topk = c.topk(me);
        for (std::int64_t t = 0; t < c.tokens(me); ++t) {
          const auto ranks = ranks_of(c, topk.data() + t * c.top_k);
          for (std::int32_t rank = 0; rank < c.ranks; ++rank)
            EXPECT_EQ(routing.is_token_in_rank(t, rank),
                      std::find(ranks.begin(), ranks.end(), rank) != ranks.end());
        }
        expect_error(Code::invalid_argument, "is_token_in_rank(token",
                     [&] { (void)routing.is_token_in_rank(c.tokens(me), 0); });
      },
      options);
}

}  // namespace
}  // namespace shoal::test
