// SPDX-License-Identifier: Apache-2.0
// Values of low-latency mode on GPUs: PEs are threads on the available GPUs, and each result is
// compared bit by bit with the naive reference. Every result is poisoned before the next one takes
// its place. Receives are deferred, or queued directly after their sends.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <tuple>

#include "checks/ep/gpu_low_latency.hpp"
#include "ep/numeric/rows.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;
using Round = GpuLowLatencyRound;

/// Rounds in a separate group: enough to use both halves of every buffer twice.
void run_rounds(const EpCase& c, const GpuLowLatencyCall& call, int rounds = 4) {
  run_low_latency_group(c, [&](GpuGroup& group) {
    for (int i = 0; i < rounds; ++i)
      Round(group, reseeded(c, 100 * static_cast<std::uint64_t>(i)), call).run();
  });
}

/// run_rounds with deferred receives, then with immediate ones.
void run_rounds_of_both(const EpCase& c, GpuLowLatencyCall call, int rounds = 4) {
  for (const bool defer : kDeferrals) {
    call.defer_receive = defer;
    run_rounds(c, call, rounds);
  }
}

constexpr Quantize kQuantizes[] = {Quantize::none,      Quantize::fp8,   Quantize::fp8_power_of_two,
                                   Quantize::fp8_ue8m0, Quantize::mxfp8, Quantize::nvfp4};

/// Ranks, and whether receives are deferred.
class EpGpuLowLatency : public ::testing::TestWithParam<std::tuple<std::int32_t, bool>> {
 protected:
  static std::int32_t ranks() { return std::get<0>(GetParam()); }
  static bool deferred() { return std::get<1>(GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuLowLatency,
                         ::testing::Combine(::testing::Values(1, 2, 3, 5, 8), ::testing::Bool()),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) +
                                  (std::get<1>(tested.param) ? "_deferred" : "_immediate");
                         });

TEST_P(EpGpuLowLatency, SmallEveryFormAndReduction) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = wide_case(ranks());
  run_low_latency_group(c, [&](GpuGroup& group) {
    std::uint64_t seed = 0;
    for (const Quantize quantize : kQuantizes)
      for (const Reduction reduction : kReductions)
        for (const bool early : {false, true})
          Round(group, reseeded(c, ++seed),
                {.quantize = quantize,
                 .reduction = reduction,
                 .zero_copy = seed % 3 == 0,
                 .early_weights = early,
                 .defer_receive = deferred()})
              .run();
  });
}

TEST_P(EpGpuLowLatency, SmallNoTokensIdleRanksAndOneHotExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = wide_case(ranks(), 3);
    c.load = load;
    run_rounds(c, {.defer_receive = deferred()});
    run_rounds(c, {.reduction = Reduction::exact, .defer_receive = deferred()});
    run_rounds(c, {.quantize = Quantize::fp8,
                   .zero_copy = true,
                   .early_weights = true,
                   .defer_receive = deferred()});
  }
}

TEST_P(EpGpuLowLatency, LogFmt) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {8, 120, 512, 640, 1016, 1024, 5120, 7168, 7688, 15360}) {
    EpCase c = wide_case(ranks(), 5 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    c.max_tokens = 12;
    c.mixed_magnitudes = true;
    run_low_latency_group(c, [&](GpuGroup& group) {
      std::uint64_t seed = 0;
      for (const Reduction reduction : kReductions)
        for (const bool early : {false, true})
          Round(group, reseeded(c, ++seed),
                {.reduction = reduction,
                 .log_fmt = true,
                 .early_weights = early,
                 .defer_receive = deferred()})
              .run();
    });
  }
}

TEST(EpGpuLowLatencyMode, SmallRowsFrom16BytesOn) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden :
       {8, 16, 24, 48, 128, 144, 496, 512, 528, 640, 2560, 2688, 2944, 4112, 7168, 8208, 16400}) {
    EpCase c = wide_case(3, 7 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    c.max_tokens = 10;
    run_low_latency_group(c, [&](GpuGroup& group) {
      for (const Quantize quantize : kQuantizes) {
        const std::vector<Quantize> possible = quantizations_for(hidden);
        if (std::ranges::find(possible, quantize) == possible.end()) continue;
        for (const Reduction reduction : kReductions)
          for (const bool defer : kDeferrals)
            Round(
                group, c,
                {.quantize = quantize, .reduction = reduction, .out = true, .defer_receive = defer})
                .run();
      }
    });
  }
}

TEST(EpGpuLowLatencyMode, EveryTopKUpTo32) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t ranks : {1, 4})
    for (const std::int32_t top_k : {1, 2, 3, 7, 8, 9, 16, 31, 32}) {
      EpCase c = wide_case(ranks, 11 + static_cast<std::uint64_t>(top_k));
      c.top_k = top_k;
      c.experts = ranks * 10;  // sometimes fewer than top_k: top-k slots stay empty
      c.mixed_magnitudes = true;
      run_low_latency_group(c, [&](GpuGroup& group) {
        for (const Reduction reduction : kReductions)
          for (const bool log_fmt : {false, true})
            for (const bool defer : kDeferrals)
              Round(group, c,
                    {.reduction = reduction,
                     .log_fmt = log_fmt,
                     .int32_topk = top_k % 2 == 1,
                     .defer_receive = defer})
                  .run();
      });
    }
}

// More slots than a block reads at a time, more experts than SMs.
TEST(EpGpuLowLatencyMode, ManyTokensAndExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = wide_case(3, 13);
  c.hidden = 128;
  c.max_tokens = 700;
  c.experts = 9;
  run_rounds_of_both(c, {.quantize = Quantize::fp8, .early_weights = true}, 3);
  c = wide_case(4, 17);
  c.hidden = 64;
  c.experts = 4 * 200;
  c.top_k = 8;
  run_rounds_of_both(c, {}, 3);
}

// Launch.sms.
TEST(EpGpuLowLatencyMode, FewBlocks) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t sms : {1, 2, 7, 1000}) {
    const EpCase c = wide_case(3, 19);
    run_rounds_of_both(c, {.quantize = Quantize::fp8, .launch = {.sms = sms}});
    run_rounds_of_both(c, {.reduction = Reduction::exact, .launch = {.sms = sms}});
  }
}

TEST(EpGpuLowLatencyMode, FullSize) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c{.ranks = 8, .experts = 64, .top_k = 8, .hidden = 7168, .max_tokens = 16, .seed = 23};
  run_rounds_of_both(c, {.quantize = Quantize::fp8, .zero_copy = true, .early_weights = true}, 2);
  run_rounds_of_both(c, {.quantize = Quantize::fp8_ue8m0, .reduction = Reduction::exact}, 1);
}

TEST(EpGpuLowLatencyMode, EveryFiniteAndSpecialValueIsEncodedAsNumericDoes) {
  SHOAL_SKIP_WITHOUT_GPU();
  // One expert that gets rows of all bfloat16 values, in the order of their bits and shuffled:
  // groups of one magnitude, of all, of zeros, with infinities and NaN.
  constexpr std::int64_t kHidden = 4096, kTokens = 32;
  run_threads(1, gpu_settings(), [&](World& world) {
    GpuGroup group(
        world, {.hidden = kHidden, .top_k = 1, .experts = 1, .low_latency_max_tokens = kTokens});
    std::vector<std::uint16_t> values(kTokens * kHidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    std::shuffle(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end(),
                 std::mt19937(1));
    const std::vector<std::int32_t> experts(kTokens, 0);
    const Tensor x = group.tensors.upload(
        ConstTensorView(values.data(), DataType::bfloat16, {kTokens, kHidden}));
    const Tensor topk =
        group.tensors.upload(ConstTensorView(experts.data(), DataType::int32, {kTokens, 1}));
    for (const Quantize quantize : kQuantizes) {
      if (quantize == Quantize::none || quantize >= Quantize::mxfp8) continue;
      const auto got = group.group.low_latency_dispatch(x, topk, {.quantize = quantize}).receive();
      const Tensor codes = group.tensors.download(got.x),
                   scales = group.tensors.download(as_stored(*got.scales));
      const auto rounding = quantize == Quantize::fp8 ? ep::numeric::ScaleRounding::none
                                                      : ep::numeric::ScaleRounding::power_of_two;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        std::vector<std::uint8_t> wanted(kHidden);
        std::vector<float> inverse(kHidden / 128);
        ep::numeric::quantize_row(
            {reinterpret_cast<const ep::numeric::Bf16*>(values.data()) + t * kHidden,
             static_cast<std::size_t>(kHidden)},
            rounding, wanted, inverse);
        expect_same("codes", codes.as<std::uint8_t>() + t * kHidden, wanted.data(), kHidden, 1);
        for (std::int64_t g = 0; g < kHidden / 128; ++g) {
          std::uint32_t bits = 0, wanted_bits = 0;
          std::memcpy(&wanted_bits, &inverse[g], 4);
          if (quantize == Quantize::fp8_ue8m0) {
            const std::uint32_t word = scales.as<std::uint32_t>()[g / 4 * kTokens + t];
            ASSERT_EQ(word >> (8 * (g % 4)) & 0xffU, wanted_bits >> 23 & 0xffU);
            continue;
          }
          std::memcpy(&bits, scales.as<float>() + g * kTokens + t, 4);
          ASSERT_EQ(bits, wanted_bits) << "group " << g << " of token " << t;
        }
      }
    }
  });
}

// Groups of negative values of about one magnitude have words of codes that are all ones.
TEST(EpGpuLowLatencyMode, EveryValueIsEncodedInBlocksAsNumericDoes) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kHidden = 4096, kTokens = 16;
  run_threads(1, gpu_settings(), [&](World& world) {
    GpuGroup group(
        world, {.hidden = kHidden, .top_k = 1, .experts = 1, .low_latency_max_tokens = kTokens});
    std::vector<std::uint16_t> values(kTokens * kHidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    const std::vector<std::int32_t> experts(kTokens, 0);
    const Tensor x = group.tensors.upload(
        ConstTensorView(values.data(), DataType::bfloat16, {kTokens, kHidden}));
    const Tensor topk =
        group.tensors.upload(ConstTensorView(experts.data(), DataType::int32, {kTokens, 1}));
    for (const Quantize quantize : {Quantize::mxfp8, Quantize::nvfp4}) {
      const bool mx = quantize == Quantize::mxfp8;
      const auto got =
          group.group
              .low_latency_dispatch(x, topk,
                                    {.quantize = quantize, .scale_layout = ep::ScaleLayout::rows})
              .receive();
      const Tensor codes = group.tensors.download(got.x),
                   scales = group.tensors.download(as_stored(*got.scales));
      const std::int64_t bytes = mx ? kHidden : kHidden / 2, groups = kHidden / (mx ? 32 : 16);
      for (std::int64_t t = 0; t < kTokens; ++t) {
        const std::span row(reinterpret_cast<const ep::numeric::Bf16*>(values.data()) + t * kHidden,
                            static_cast<std::size_t>(kHidden));
        std::vector<std::uint8_t> wanted(static_cast<std::size_t>(bytes)),
            wanted_scales(static_cast<std::size_t>(groups));
        if (mx)
          ep::numeric::quantize_mxfp8_row(row, wanted, wanted_scales);
        else
          ep::numeric::quantize_nvfp4_row(row, 1, wanted, wanted_scales);
        expect_same("codes", codes.as<std::uint8_t>() + t * bytes, wanted.data(), wanted.size(), 1);
        expect_same("scales", scales.as<std::uint8_t>() + t * groups, wanted_scales.data(),
                    wanted_scales.size(), 1);
      }
    }
  });
}

}  // namespace
}  // namespace shoal::test
