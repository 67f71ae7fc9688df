// SPDX-License-Identifier: Apache-2.0 Values, dtypes and shapes of EP that the random cases omit:
// rounding, and the tensors that are sent with the rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>

#include "checks/ep/normal.hpp"
#include "shoal/numeric.hpp"
#include "shoal/world.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

float load(const ConstTensorView& tensor, std::int64_t i) {
  return tensor.dtype == DataType::float32 ? tensor.as<float>()[i]
                                           : float_from_float16(tensor.as<std::uint16_t>()[i]);
}
void store(const TensorView& tensor, std::int64_t i, float value) {
  if (tensor.dtype == DataType::float32)
    tensor.as<float>()[i] = value;
  else
    tensor.as<std::uint16_t>()[i] = float16_from_float(value);
}
float rounded(DataType dtype, float value) {
  return dtype == DataType::float32 ? value : float_from_float16(float16_from_float(value));
}

/// A number in [1, 2) or (-2, -1] that uses every bit of a float's mantissa.
float full_mantissa(std::uint64_t seed) {
  std::uint64_t h = (seed + 1) * 0x9e3779b97f4a7c15ULL;
  h = (h ^ (h >> 29)) * 0xbf58476d1ce4e5b9ULL;
  const float magnitude = 1.0F + static_cast<float>(h >> 41) * 0x1p-23F;
  return h & 1 ? -magnitude : magnitude;
}
float value_of(DataType dtype, std::int32_t rank, std::int64_t token, std::int64_t channel) {
  return rounded(dtype,
                 full_mantissa((static_cast<std::uint64_t>(rank) << 40) + (token << 20) + channel));
}
float rank_factor(std::int32_t rank) {
  return 0.3F + 0.7F * static_cast<float>(rank);
}

Tensor bias_tensor(DataType dtype, std::int64_t tokens, std::int64_t hidden, std::uint64_t seed) {
  Tensor bias = Tensor::empty(dtype, {tokens, hidden});
  for (std::int64_t i = 0; i < bias.size(); ++i)
    store(bias, i, full_mantissa(seed * 1'000'000 + i));
  return bias;
}

/// The result of combine for one channel: biases, then the ranks' expert output in the given order,
/// in float32.
template <typename Ranks>
float sum_of(DataType dtype, const std::vector<ConstTensorView>& biases, std::int64_t at, float x,
             const Ranks& ranks) {
  float sum = 0;
  for (const ConstTensorView& bias : biases) sum += load(bias, at);
  for (const std::int32_t rank : ranks) sum += rounded(dtype, rank_factor(rank) * x);
  return sum;
}

class EpFloats : public ::testing::TestWithParam<DataType> {};
INSTANTIATE_TEST_SUITE_P(Formats, EpFloats, ::testing::Values(DataType::float16, DataType::float32),
                         [](const auto& format) { return std::string(name_of(format.param)); });

// Sums in float32, in a fixed order.
TEST_P(EpFloats, RowsArriveAsTheyWereAndSumsAreRoundedOnce) {
  const DataType dtype = GetParam();
  const EpCase c = small_case(5, 17);
  std::atomic<int> order_shows = 0, steps_show = 0;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.dtype = dtype;
    ep::Group group(world.team(), options);
    const std::int32_t me = world.my_pe();
    const Inputs in(c, me);
    const std::int64_t tokens = c.tokens(me);
    Tensor x = Tensor::empty(dtype, {tokens, c.hidden});
    for (std::int64_t i = 0; i < x.size(); ++i)
      store(x, i, value_of(dtype, me, i / c.hidden, i % c.hidden));

    const ep::Dispatched got = group.dispatch(x, group.route(in.topk_idx));
    const ExpectedDispatch wanted = expected_dispatch(c, me);
    ASSERT_EQ(got.rows, static_cast<std::int64_t>(wanted.source_token.size()));
    Tensor y = Tensor::empty(dtype, {*got.rows, c.hidden});
    for (std::int64_t i = 0; i < y.size(); ++i) {
      const std::int64_t row = i / c.hidden;
      ASSERT_EQ(load(got.x, i),
                value_of(dtype, wanted.source_rank[row], wanted.source_token[row], i % c.hidden));
      store(y, i, rank_factor(me) * load(got.x, i));
    }

    const Tensor bias0 = bias_tensor(dtype, tokens, c.hidden, 1),
                 bias1 = bias_tensor(dtype, tokens, c.hidden, 2);
    const std::vector<std::int64_t> topk_idx = c.topk(me);
    for (const std::vector<ConstTensorView>& biases :
         {std::vector<ConstTensorView>{}, {bias0}, {bias0, bias1}}) {
      const ep::Combined back = group.combine(y, got.handle, {.bias = biases});
      ASSERT_EQ(back.x.dtype, dtype);
      for (std::int64_t i = 0; i < tokens * c.hidden; ++i) {
        auto ranks = ranks_of(c, topk_idx.data() + i / c.hidden * c.top_k);
        const float sum = sum_of(dtype, biases, i, load(x, i), ranks);
        ASSERT_EQ(load(back.x, i), rounded(dtype, sum))
            << "element " << i << ", " << biases.size() << " biases";
        std::reverse(ranks.begin(), ranks.end());
        order_shows += sum_of(dtype, biases, i, load(x, i), ranks) != sum;
        float stepwise = 0;
        for (const ConstTensorView& bias : biases)
          stepwise = rounded(dtype, stepwise + load(bias, i));
        for (const std::int32_t rank : ranks)
          stepwise = rounded(dtype, stepwise + rounded(dtype, rank_factor(rank) * load(x, i)));
        steps_show += stepwise != rounded(dtype, sum);
      }
    }
  });
  // Sums of float16 are exact in float32, whatever the order; sums of float32 round at each step.
  EXPECT_GT(dtype == DataType::float32 ? order_shows : steps_show, 100)
      << "these values would not reveal a wrong order";
}

Tensor as_int32(const Tensor& wide) {
  Tensor narrow = Tensor::empty(DataType::int32, {wide.shape[0], wide.shape[1]});
  for (std::int64_t i = 0; i < wide.size(); ++i)
    narrow.as<std::int32_t>()[i] = static_cast<std::int32_t>(wide.as<std::int64_t>()[i]);
  return narrow;
}

TEST(EpValues, Int32IndicesMeanTheSameAsInt64) {
  const EpCase c = small_case(4, 19);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    Inputs in(c, world.my_pe());
    const Tensor narrow = as_int32(in.topk_idx);
    const ep::Routing wide_routing = group.route(in.topk_idx), routing = group.route(narrow);
    EXPECT_EQ(routing.topk_idx.dtype, DataType::int64);
    expect_same("topk_idx", routing.topk_idx.data, in.topk_idx.data, in.topk_idx.bytes(), 8);
    EXPECT_EQ(routing.counts->tokens_per_rank, wide_routing.counts->tokens_per_rank);
    EXPECT_EQ(routing.counts->tokens_per_expert, wide_routing.counts->tokens_per_expert);
    const ep::Dispatched got = group.dispatch(in.x, routing, {.weights = in.weights});
    const ep::Combined back = group.combine(expert_output_of(c, world.my_pe(), got), got.handle);
    const auto wanted = expected_combine(c, world.my_pe());
    expect_same("combined", back.x.data, wanted.data(), wanted.size() * 2, 2);

    const auto wanted_low_latency = expected_low_latency(c, world.my_pe(), ep::Reduction::per_rank);
    for (const auto& [dispatched, combined] :
         {std::pair{narrow, narrow}, std::pair{narrow, in.topk_idx},
          std::pair{in.topk_idx, narrow}}) {
      const ep::LowLatencyReceived rows =
          group.low_latency_dispatch(in.x, dispatched, {.quantize = ep::Quantize::none}).receive();
      check_low_latency_received(c, world.my_pe(), rows);
      const Tensor y =
          Tensor::empty(DataType::bfloat16, {c.local_experts(), rows.x.shape[1], c.hidden});
      write_low_latency_expert_output(c, world.my_pe(), rows, y);
      const Tensor out = group.low_latency_combine(y, combined, in.weights, rows.handle).receive();
      expect_same("low-latency result", out.data, wanted_low_latency.data(),
                  wanted_low_latency.size() * 2, 2);
    }
  });
}

/// Payload of a token that no float32 arithmetic would leave alone: among them are signalling NaNs.
std::int32_t payload(std::int32_t rank, std::int64_t token, std::int64_t i) {
  return static_cast<std::int32_t>(0x7f800001U +
                                   static_cast<std::uint32_t>(rank * 1'000'003 + token * 8191 + i));
}

TEST(EpValues, Int32ScalesAreCopiedBitByBit) {
  EpCase c = small_case(4, 21);
  constexpr std::int64_t kScales = 5;  // one per 128 channels would be 1
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.max_scales = kScales;
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const std::int64_t tokens = c.tokens(world.my_pe());
    Tensor scales = Tensor::empty(DataType::int32, {tokens, kScales});
    for (std::int64_t i = 0; i < scales.size(); ++i)
      scales.as<std::int32_t>()[i] = payload(world.my_pe(), i / kScales, i % kScales);
    for (const std::int64_t n : {kScales, std::int64_t{2}}) {
      TensorView view = scales;
      view.shape[1] = n;  // rows stay kScales apart
      const ep::Dispatched got = group.dispatch(in.x, group.route(in.topk_idx), {.scales = view});
      const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
      ASSERT_EQ(got.scales->describe(),
                TensorView(nullptr, DataType::int32, {*got.rows, n}).describe());
      ASSERT_TRUE(got.scales->contiguous());
      for (std::int64_t i = 0; i < *got.rows * n; ++i)
        ASSERT_EQ(got.scales->as<std::int32_t>()[i],
                  payload(wanted.source_rank[i / n], wanted.source_token[i / n], i % n));
    }
    const Tensor wide = Tensor::empty(DataType::int32, {tokens, kScales + 1});
    EXPECT_THROW(group.dispatch(in.x, group.route(in.topk_idx), {.scales = wide}), Error);
  });
}

// Each token names every rank many times.
void check_every_topk_slot(std::int32_t top_k, std::int32_t experts) {
  EpCase c = small_case(3, 23);
  c.experts = experts;
  c.top_k = top_k;
  c.hidden = 272;
  c.max_tokens = 8;
  c.holes = 0;
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    for (std::uint64_t seed = 23; seed < 26; ++seed) {
      EpCase now = c;
      now.seed = seed;
      check_normal(group, now);
      for (const auto reduction : {ep::Reduction::per_rank, ep::Reduction::exact}) {
        check_low_latency(group, now, reduction, seed % 2 == 0);
        check_low_latency_quantized(group, now, ep::Quantize::fp8, reduction);
        check_low_latency_quantized(group, now, ep::Quantize::fp8_ue8m0, reduction);
      }
    }
  });
}

TEST(EpValues, EveryTopkSlotOfTheLargestTopK) {
  check_every_topk_slot(32, 96);  // the most of the kernels for few slots
  check_every_topk_slot(ep::kMaxTopK, 384);
}

TEST(EpValues, TheSmallestRows) {
  EpCase c = small_case(3, 27);
  for (const std::int64_t hidden : {8, 16}) {
    c.hidden = hidden;
    run_threads(c.ranks, ep_settings(), [&](World& world) {
      ep::Group group(world.team(), options_for(c));
      check_normal(group, c);
      check_low_latency(group, c, ep::Reduction::exact, true);
      if (hidden == 8) {  // float8 rows of 8 bytes
        const Inputs in(c, world.my_pe());
        EXPECT_THROW(group.low_latency_dispatch(in.x, in.topk_idx), Error);
        return;
      }
      check_low_latency_formats(group, c);
      ep::GroupOptions options = options_for(c);
      options.dtype = DataType::float8_e4m3;
      ep::Group codes(world.team(), options);
      const Inputs in(c, world.my_pe());
      const Tensor x = Tensor::empty(DataType::float8_e4m3, {c.tokens(world.my_pe()), c.hidden});
      for (std::int64_t i = 0; i < x.size(); ++i)
        x.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(world.my_pe() * 64 + i);
      const ep::Dispatched got = codes.dispatch(x, codes.route(in.topk_idx));
      const ExpectedDispatch wanted = expected_dispatch(c, world.my_pe());
      ASSERT_EQ(got.rows, static_cast<std::int64_t>(wanted.source_token.size()));
      for (std::int64_t i = 0; i < *got.rows * hidden; ++i)
        ASSERT_EQ(got.x.as<std::uint8_t>()[i],
                  static_cast<std::uint8_t>(wanted.source_rank[i / hidden] * 64 +
                                            wanted.source_token[i / hidden] * hidden + i % hidden));
    });
  }
}

TEST(EpValues, ThreeLiveResultsOfAnySizes) {
  const EpCase c = small_case(3, 29);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::GroupOptions options = options_for(c);
    options.live_results = 3;
    ep::Group group(world.team(), options);
    const Inputs in(c, world.my_pe());
    const ep::Routing routing = group.route(in.topk_idx);
    const std::int64_t largest = c.ranks * c.max_tokens;
    std::mt19937 random(5);  // the same numbers on all ranks
    std::vector<ep::Dispatched> held;
    for (int i = 0; i < 300; ++i) {  // two results at any addresses leave room for one more
      while (held.size() > 2) held.erase(held.begin() + random() % held.size());
      held.push_back(
          group.dispatch(in.x, routing, {.worst_case_rows = random() % 2 ? largest : 0}));
      for (const ep::Dispatched& result : held)
        expect_same("held rows", result.x.data, held[0].x.data, *held[0].rows * c.hidden * 2, 2);
    }
    expect_error(Code::exhausted, "live_results", [&] {
      for (int i = 0; i < 20; ++i)
        held.push_back(group.dispatch(in.x, routing, {.worst_case_rows = largest}));
    });
    held.clear();
    check_normal(group, c);
  });
}

/// One way to call dispatch with a cached handle.
struct CachedCall {
  bool weights, scales, copy_out;
  std::int64_t worst_case_rows;
};

TEST(EpValues, CachedHandleTakesEveryOption) {
  const EpCase c = small_case(4, 31);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group group(world.team(), options_for(c));
    const std::int32_t me = world.my_pe();
    const Inputs in(c, me);
    const std::int64_t tokens = c.tokens(me), most = c.ranks * c.max_tokens;
    const ep::Handle handle = group.dispatch(in.x, group.route(in.topk_idx)).handle;
    const ExpectedDispatch wanted = expected_dispatch(c, me);
    const auto rows = static_cast<std::int64_t>(wanted.source_token.size());
    // Other rows than the first dispatch had.
    const Tensor x = Tensor::empty(DataType::bfloat16, {tokens, c.hidden}),
                 scales = Tensor::empty(DataType::int32, {tokens, 1});
    EpCase other = c;
    other.seed = 77;
    for (std::int64_t t = 0; t < tokens; ++t) {
      scales.as<std::int32_t>()[t] = payload(me, t, 0);
      for (std::int64_t ch = 0; ch < c.hidden; ++ch)
        x.as<std::uint16_t>()[t * c.hidden + ch] = other.value(me, t, ch);
    }
    for (const CachedCall& call :
         {CachedCall{true, false, false, 0}, CachedCall{false, true, false, 0},
          CachedCall{false, false, true, 0}, CachedCall{false, false, false, most},
          CachedCall{true, true, true, most}, CachedCall{true, true, false, 0}}) {
      const ep::Dispatched got =
          group.dispatch(x, handle,
                         {.weights = call.weights ? TensorView(in.weights) : TensorView(),
                          .scales = call.scales ? TensorView(scales) : TensorView(),
                          .worst_case_rows = call.worst_case_rows,
                          .copy_out = call.copy_out});
      EXPECT_EQ(got.rows, rows);
      EXPECT_EQ(got.x.shape[0], std::max(rows, call.worst_case_rows));
      EXPECT_EQ(got.rows_per_source, wanted.rows_per_source);
      EXPECT_FALSE(got.topk_idx.has_value() || got.source_token.has_value());
      EXPECT_EQ(got.topk_weights.has_value(), call.weights);
      EXPECT_EQ(got.scales.has_value(), call.scales);
      for (std::int64_t i = 0; i < rows; ++i) {
        const std::int32_t source = wanted.source_rank[i], token = wanted.source_token[i];
        for (std::int64_t ch = 0; ch < c.hidden; ++ch)
          ASSERT_EQ(got.x.as<std::uint16_t>()[i * c.hidden + ch], other.value(source, token, ch));
        if (call.scales) ASSERT_EQ(got.scales->as<std::int32_t>()[i], payload(source, token, 0));
      }
      if (call.weights)
        expect_same("weights", got.topk_weights->data, wanted.weights.data(),
                    wanted.weights.size() * 4, 4);
      // Each copy returns unchanged: x times the number of ranks, rounded once.
      const ep::Combined back = group.combine(got.x, got.handle);
      const auto topk_idx = c.topk(me);
      for (std::int64_t i = 0; i < x.size(); ++i) {
        const auto copies =
            static_cast<float>(ranks_of(c, topk_idx.data() + i / c.hidden * c.top_k).size());
        ASSERT_EQ(back.x.as<std::uint16_t>()[i],
                  bf16_of(copies * float_of_bf16(x.as<std::uint16_t>()[i])));
      }
    }
  });
}

TEST(EpValues, HandlesOfAnotherGroupAreRefused) {
  const EpCase c = small_case(2, 33);
  run_threads(c.ranks, ep_settings(), [&](World& world) {
    ep::Group mine(world.team(), options_for(c)), other(world.team(), options_for(c));
    const Inputs in(c, world.my_pe());
    const ep::Dispatched got = other.dispatch(in.x, other.route(in.topk_idx));
    const ep::LowLatencyReceived rows =
        other.low_latency_dispatch(in.x, in.topk_idx, {.quantize = ep::Quantize::none}).receive();
    const auto refused = [](const std::function<void()>& call) {
      expect_error(Code::invalid_argument, "of this group", call);
    };
    refused([&] { mine.dispatch(in.x, got.handle); });
    refused([&] { mine.dispatch(in.x, ep::Handle{}); });
    refused([&] { mine.combine(got.x, got.handle); });
    refused([&] { mine.combine(got.x, ep::Handle{}); });
    refused([&] { mine.low_latency_combine(rows.x, in.topk_idx, in.weights, rows.handle); });
    refused(
        [&] { mine.low_latency_combine(rows.x, in.topk_idx, in.weights, ep::LowLatencyHandle{}); });
    other.low_latency_combine(rows.x, in.topk_idx, in.weights, rows.handle).receive();
    check_normal(mine, c);
    check_normal(other, c);
    check_low_latency(mine, c, ep::Reduction::exact, false);
    check_low_latency(other, c, ep::Reduction::exact, false);
  });
}

}  // namespace
}  // namespace shoal::test
