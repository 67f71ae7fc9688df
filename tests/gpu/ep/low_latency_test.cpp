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

#include "checks/ep/encoded_rows.hpp"
#include "checks/ep/gpu_low_latency.hpp"

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

TEST_P(EpGpuLowLatency, SmallUnsummedRows) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {384, 7168}) {
    EpCase c = wide_case(ranks(), 6);
    c.hidden = hidden;
    c.mixed_magnitudes = true;
    run_low_latency_group(c, [&](GpuGroup& group) {
      GpuLowLatencyCall call{.defer_receive = deferred(), .gives_rows = true};
      std::uint64_t seed = 0;
      for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::mxfp8})
        for (const bool log_fmt : {false, true})
          for (const bool out : {false, true}) {
            if (log_fmt && quantize != Quantize::none) continue;
            call.combine_quantize = quantize;
            call.log_fmt = log_fmt;
            call.zero_copy = out && !log_fmt && quantize == Quantize::none;
            call.early_weights = call.out = out;
            Round(group, reseeded(c, ++seed), call).run();
          }
      Round(group, reseeded(c, ++seed), {.defer_receive = deferred()}).run();
    });
  }
}

TEST_P(EpGpuLowLatency, SmallUnevenExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  std::vector<EpCase> cases{uneven_case(ranks(), 41)};
  if (ranks() > 2) cases.push_back(gap_case(ranks(), 42));
  for (EpCase& c : cases) {
    c.hidden = 384;
    for (const Quantize quantize : {Quantize::none, Quantize::fp8_ue8m0})
      for (const Reduction reduction : kReductions)
        run_rounds(c, {.quantize = quantize, .reduction = reduction, .defer_receive = deferred()},
                   2);
  }
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

TEST_P(EpGpuLowLatency, Float8Combines) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {16, 32, 144, 512, 672, 1024, 5120, 7168, 7712, 15360}) {
    EpCase c = wide_case(ranks(), 9 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    c.max_tokens = 12;
    c.mixed_magnitudes = true;
    run_low_latency_group(c, [&](GpuGroup& group) {
      std::uint64_t seed = 0;
      for (const Quantize quantize : {Quantize::fp8, Quantize::mxfp8})
        for (const Reduction reduction : kReductions)
          for (const bool early : {false, true}) {
            if (quantize == Quantize::mxfp8 && hidden % 32 != 0) continue;
            Round(group, reseeded(c, ++seed),
                  {.reduction = reduction,
                   .combine_quantize = quantize,
                   .early_weights = early,
                   .defer_receive = deferred()})
                .run();
          }
      Round(group, c, {.defer_receive = deferred()}).run();
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

TEST(EpGpuLowLatencyMode, EveryTopK) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t ranks : {1, 4})
    for (const std::int32_t top_k : {1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64, 100, 128}) {
      EpCase c = wide_case(ranks, 11 + static_cast<std::uint64_t>(top_k));
      c.top_k = top_k;
      // Sometimes fewer than top_k: top-k slots stay empty.
      c.experts = ranks * (top_k > 32 ? 40 : 10);
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

/// Dispatches rows in both modes to the one expert of a group, and compares codes and scales with
/// numeric/.
void check_every_value(GpuGroup& group, const std::vector<std::uint16_t>& values,
                       std::int64_t hidden, Quantize quantize, float global) {
  const auto tokens = static_cast<std::int64_t>(values.size()) / hidden;
  const std::vector<std::int32_t> experts(static_cast<std::size_t>(tokens), 0);
  const auto upload = [&](const void* data, DataType dtype,
                          std::initializer_list<std::int64_t> shape) {
    return group.tensors.upload(ConstTensorView(data, dtype, shape));
  };
  const Tensor x = upload(values.data(), DataType::bfloat16, {tokens, hidden}),
               topk = upload(experts.data(), DataType::int32, {tokens, 1}),
               scale = upload(&global, DataType::float32, {1});
  const ConstTensorView global_scale =
      quantize == Quantize::nvfp4 ? ConstTensorView(scale) : ConstTensorView();
  const auto check = [&](const TensorView& got, const TensorView& got_scales) {
    const Tensor codes = group.tensors.download(got),
                 scales = group.tensors.download(got_scales.rank == 3 ? as_stored(got_scales)
                                                                      : got_scales);
    const ep::detail::RowFormat format(quantize);
    const std::size_t bytes = format.row_bytes(hidden), pitch = size_of(got_scales.dtype);
    const auto groups = static_cast<std::size_t>(format.groups(hidden));
    for (std::size_t t = 0; t < static_cast<std::size_t>(tokens); ++t) {
      const ep::EncodedRow wanted(quantize, std::span(values).subspan(t * hidden, hidden), global);
      expect_same("codes", codes.as<std::uint8_t>() + t * bytes, wanted.codes.data(), bytes, 1);
      expect_same("scales", scales.as<std::uint8_t>() + t * groups * pitch, wanted.scales.data(),
                  groups * pitch, pitch);
    }
  };
  const auto low_latency = group.group
                               .low_latency_dispatch(x, topk,
                                                     {.quantize = quantize,
                                                      .scale_layout = ep::ScaleLayout::rows,
                                                      .global_scale = global_scale})
                               .receive();
  check(low_latency.x, *low_latency.scales);
  const ep::Dispatched normal = group.group.dispatch(
      x, group.group.route(topk), {.quantize = quantize, .global_scale = global_scale});
  check(normal.x, *normal.scales);
}

// All values, infinities and NaN too, in groups of neighbours and in groups of any. Groups of
// negative values of about one magnitude have words of codes that are all ones.
TEST(EpGpuLowLatencyMode, EveryValueIsEncodedAsNumericDoes) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int64_t kHidden = 4096, kTokens = 16;
  run_threads(1, gpu_settings(), [&](World& world) {
    GpuGroup group(world, {.max_tokens = kTokens,
                           .hidden = kHidden,
                           .top_k = 1,
                           .experts = 1,
                           .low_latency_max_tokens = kTokens});
    std::vector<std::uint16_t> values(kTokens * kHidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    std::mt19937 random(7);
    for (const bool shuffled : {false, true}) {
      if (shuffled) std::ranges::shuffle(values, random);
      for (const Quantize quantize : {Quantize::fp8, Quantize::fp8_power_of_two,
                                      Quantize::fp8_ue8m0, Quantize::mxfp8, Quantize::nvfp4}) {
        SCOPED_TRACE(ep::detail::name_of(quantize));
        const bool scaled = quantize == Quantize::nvfp4;
        for (const float global : {1.0F, 37.5F, 1.1e-3F, 0x1.1p70F, 0x1p-70F, 0x1.7p10F}) {
          check_every_value(group, values, kHidden, quantize, global);
          if (!scaled) break;
        }
      }
    }
  });
}

}  // namespace
}  // namespace shoal::test
