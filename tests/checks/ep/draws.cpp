// SPDX-License-Identifier: Apache-2.0
#include "checks/ep/draws.hpp"

#include <algorithm>
#include <cstddef>
#include <span>

#include "support/draws.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;
using ep::ScaleLayout;

/// The dimension that a seed keeps at its maximum. no_tokens: no rank has tokens.
enum class Kept : std::uint64_t { hidden, experts, tokens, top_k, no_tokens, nothing };

Kept kept_by(std::uint64_t seed) {
  return static_cast<Kept>(
      std::min<std::uint64_t>(seed % 8, static_cast<std::uint64_t>(Kept::nothing)));
}

struct Size {
  std::int64_t& value;
  std::int64_t least;
  bool kept;
};

/// Reduces randomly chosen `sizes` by a quarter at a time, except those that are kept, until they
/// fit or all are at their minimum.
template <typename TooMuch>
void shrink(Draws& draws, std::span<const Size> sizes, const TooMuch& too_much) {
  const auto can_shrink = [](const Size& size) { return !size.kept && size.value > size.least; };
  while (too_much() && std::any_of(sizes.begin(), sizes.end(), can_shrink)) {
    const Size& size =
        sizes[static_cast<std::size_t>(draws.pick(0, static_cast<std::int64_t>(sizes.size()) - 1))];
    if (can_shrink(size)) size.value = std::max(size.least, size.value * 3 / 4);
  }
}

bool opaque(DataType dtype) {
  return dtype == DataType::int8 || dtype == DataType::uint8;
}

/// True if rows of so many channels are a multiple of 16 bytes.
bool whole(DataType dtype, std::int64_t hidden) {
  return hidden * static_cast<std::int64_t>(size_of(dtype)) % 16 == 0;
}

/// Ranks, top-k, holes and load of a case.
class Shapes : protected Draws {
 protected:
  explicit Shapes(std::uint64_t seed, std::uint64_t salt)
      : Draws(seed * 104729 + salt, 8), seed_(seed) {}

  EpCase shape() {
    EpCase c;
    c.seed = seed_;
    c.ranks = static_cast<std::int32_t>(kept_by(seed_) == Kept::experts ? one_of(1, 2, 4, 8)
                                                                        : pick(1, kMostRanks));
    c.top_k = static_cast<std::int32_t>(kept_by(seed_) == Kept::top_k ? ep::kMaxTopK : pick(1, 32));
    if (seed_ % 5 == 2 && c.top_k > 8 && c.top_k <= 32)  // other kernels on GPUs
      c.top_k = c.top_k * 4 - static_cast<std::int32_t>(seed_ % 4);
    c.holes = static_cast<double>(pick(0, 4)) / 8;
    c.load = pick(0, 9) < 6 ? Load::random : one_of(Load::all_to_one, Load::some_idle);
    if (c.ranks == 1) c.load = Load::random;  // the other loads need several ranks
    if (kept_by(seed_) == Kept::no_tokens) c.load = Load::none;
    c.full = kept_by(seed_) == Kept::tokens || pick(0, 3) == 0;
    c.mixed_magnitudes = pick(0, 1) == 1;
    return c;
  }
  /// `most` if this seed keeps `which`. Otherwise uniform or log-uniform from `least` to `most`.
  std::int64_t size(Kept which, std::int64_t least, std::int64_t most) {
    if (kept_by(seed_) == which) return most;
    return pick(0, 1) == 1 ? pick(least, most) : log_pick(least, most);
  }

  /// A quantization that rows of `hidden` channels can have, or none.
  Quantize quantize(std::int64_t hidden) {
    const std::vector<Quantize> all = quantizations_for(hidden);
    return all[static_cast<std::size_t>(pick(0, static_cast<std::int64_t>(all.size()) - 1))];
  }
  /// Likewise for the rows of a combine.
  Quantize combine_quantize(std::int64_t hidden) {
    return hidden % 32 == 0   ? one_of(Quantize::none, Quantize::fp8, Quantize::mxfp8)
           : hidden % 16 == 0 ? one_of(Quantize::none, Quantize::fp8)
                              : Quantize::none;
  }
  ScaleLayout scale_layout(Quantize quantize) {
    if (quantize == Quantize::none) return ScaleLayout::automatic;
    if (quantize < Quantize::fp8_ue8m0)
      return one_of(ScaleLayout::automatic, ScaleLayout::rows, ScaleLayout::columns);
    return one_of(ScaleLayout::automatic, ScaleLayout::rows, ScaleLayout::columns,
                  ScaleLayout::tiles);
  }

  /// Spreads experts over the ranks: at most `most` on each, in half of the cases equally many.
  void spread(EpCase& c, std::int64_t most) {
    const auto count = static_cast<std::int32_t>(most);
    const std::int64_t how = kept_by(seed_) == Kept::experts ? 0 : pick(0, 3);
    c.experts = c.ranks * count;
    if (how == 2)
      c.experts = std::max(1, c.experts - static_cast<std::int32_t>(pick(0, c.ranks - 1)));
    if (how == 3) spread_unequally(c, count);
    if (seed_ % 4 == 0) c.none_expert = c.experts;
  }
  void spread_unequally(EpCase& c, std::int32_t count) {
    c.first_expert = {0};
    for (std::int32_t rank = 0; rank < c.ranks; ++rank)
      c.first_expert.push_back(c.first_expert.back() + static_cast<std::int32_t>(pick(0, count)));
    c.first_expert.back() = std::max(c.first_expert.back(), 1);
    c.experts = c.first_expert.back();
  }

  static void set_tokens(EpCase& c, std::int64_t most) {
    c.max_tokens = most;
    if (most < 4) c.full = true;  // with so few, most ranks would have none
  }

  std::uint64_t seed_;
};

class Normal : Shapes {
 public:
  explicit Normal(std::uint64_t seed) : Shapes(seed, 1) {}

  NormalDraw all() {
    // Bytes of the rows that all ranks together send to one rank.
    constexpr std::int64_t kMostBytes = std::int64_t{16} << 20;
    NormalDraw drawn;
    EpCase& c = drawn.c = shape();
    spread(c, size(Kept::experts, 1, kMostExperts / c.ranks));
    ep::GroupOptions& options = drawn.options;
    options.dtype =
        one_of(DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3);
    const auto element = static_cast<std::int64_t>(size_of(options.dtype));
    const std::int64_t step = 16 / element;  // channels of 16 bytes
    std::int64_t steps = size(Kept::hidden, kShortestRow / step, kLongestRow / step);
    std::int64_t tokens = size(Kept::tokens, 1, kMostTokens);
    const Size sizes[] = {{steps, kShortestRow / step, kept_by(seed_) == Kept::hidden},
                          {tokens, 1, kept_by(seed_) == Kept::tokens}};
    shrink(*this, sizes, [&] {
      return c.ranks * tokens * steps * step * std::max<std::int64_t>(element, 2) > kMostBytes;
    });
    c.hidden = steps * step;
    set_tokens(c, tokens);
    options.max_tokens = c.max_tokens;
    options.hidden = c.hidden;
    options.top_k = c.top_k;
    options.experts = c.experts;
    options.first_expert = c.first_expert;
    options.none_expert = c.none_expert;
    options.max_scales = log_pick(1, 128);
    options.live_results = static_cast<std::int32_t>(pick(1, 2));
    for (int i = 0; i < 3; ++i) drawn.calls.push_back(call(c, options));
    return drawn;
  }

 private:
  GpuCall call(const EpCase& c, const ep::GroupOptions& options) {
    GpuCall call;
    const auto element = static_cast<std::int64_t>(size_of(options.dtype));
    const auto fits = [&](DataType dtype, std::int64_t widest) {
      return static_cast<std::int64_t>(size_of(dtype)) <= widest && whole(dtype, c.hidden);
    };
    do {
      call.dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32,
                          DataType::float8_e4m3, DataType::int8, DataType::uint8);
    } while (!opaque(call.dtype) && !fits(call.dtype, element));
    if (opaque(call.dtype)) call.columns = 16 * pick(1, c.hidden * element / 16);
    do {
      call.output_dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32);
    } while (!fits(call.output_dtype, std::max<std::int64_t>(element, 2)));
    if (pick(0, 1) == 1) {
      call.scales = pick(1, options.max_scales);
      call.scale_dtype = one_of(DataType::float32, DataType::int32);
      call.scale_order = one_of(ScaleOrder::contiguous, ScaleOrder::padded, ScaleOrder::columns);
    }
    call.weights = pick(0, 4) > 0;
    call.combine_weights = pick(0, 3) > 0;
    call.int32_topk = pick(0, 1) == 1;
    call.dispatch.expert_alignment = static_cast<std::int32_t>(pick(1, 130));
    call.dispatch.worst_case_rows = pick(0, 2) == 0 ? c.ranks * c.max_tokens : 0;
    call.dispatch.copy_out = pick(0, 3) == 0;
    call.dispatch.launch.sms = static_cast<std::int32_t>(pick(0, 10));
    call.combine.sms = static_cast<std::int32_t>(pick(0, 10));
    const bool same_bytes = size_of(call.dtype) == size_of(call.output_dtype) && call.columns == 0;
    call.place = same_bytes && !call.dispatch.copy_out && pick(0, 1) == 1 ? OutputPlace::in_place
                                                                          : OutputPlace::staged;
    call.biases = static_cast<int>(pick(0, 2));
    call.out = pick(0, 1) == 1;
    call.samples = 64;
    if (call.output_dtype == DataType::bfloat16) call.combine_quantize = combine_quantize(c.hidden);
    return call;
  }
};

class LowLatency : Shapes {
 public:
  explicit LowLatency(std::uint64_t seed) : Shapes(seed, 7) {}

  LowLatencyDraw all() {
    // Channels of the results of all ranks together, and channels that all ranks send.
    constexpr std::int64_t kMostResult = std::int64_t{1} << 26;
    constexpr std::int64_t kMostSent = std::int64_t{1} << 24;
    LowLatencyDraw drawn;
    EpCase& c = drawn.c = shape();
    std::int64_t eighths = size(Kept::hidden, kShortestRow / 8, kLongestRow / 8),
                 experts = size(Kept::experts, 1, kMostExperts / c.ranks),
                 tokens = size(Kept::tokens, 1, kMostSlots);
    const Size sizes[] = {{eighths, kShortestRow / 8, kept_by(seed_) == Kept::hidden},
                          {experts, 1, kept_by(seed_) == Kept::experts},
                          {tokens, 1, kept_by(seed_) == Kept::tokens}};
    shrink(*this, sizes, [&] {
      const std::int64_t channels = c.ranks * tokens * eighths * 8;
      return channels * experts * c.ranks > kMostResult || channels * c.top_k > kMostSent;
    });
    if (pick(0, 1) == 1) eighths = (eighths + 7) / 8 * 8;  // every format takes 64 channels
    c.hidden = 8 * eighths;
    spread(c, experts);
    set_tokens(c, tokens);
    for (int i = 0; i < 4; ++i) {
      LowLatencyDraw::Step step{call(c), call(c), pick(0, 1) == 1};
      // Receives are made in the order of the sends.
      if (step.first.defer_receive) step.second.defer_receive = true;
      drawn.steps.push_back(step);
    }
    return drawn;
  }

 private:
  GpuLowLatencyCall call(const EpCase& c) {
    GpuLowLatencyCall call;
    call.quantize = quantize(c.hidden);
    call.scale_layout = scale_layout(call.quantize);
    call.reduction = one_of(Reduction::automatic, Reduction::per_rank, Reduction::exact);
    call.log_fmt = pick(0, 2) == 0;
    if (!call.log_fmt) call.combine_quantize = combine_quantize(c.hidden);
    call.zero_copy = !call.log_fmt && call.combine_quantize == Quantize::none && pick(0, 1) == 1;
    call.early_weights = pick(0, 1) == 1;
    call.int32_topk = pick(0, 1) == 1;
    call.out = pick(0, 1) == 1;
    call.launch.sms = static_cast<std::int32_t>(pick(0, 10));
    call.padded = pick(0, 3) == 0;
    call.defer_receive = pick(0, 1) == 1;
    return call;
  }
};

class Compared : Shapes {
 public:
  explicit Compared(std::uint64_t seed, std::uint64_t salt) : Shapes(seed, salt) {}

  NormalComparison normal() {
    // Bytes of a result. The results of four forms, twice each, of all ranks and both backends
    // exist at once.
    constexpr std::int64_t kMostBytes = std::int64_t{4} << 20;
    NormalComparison drawn;
    EpCase& c = drawn.c = shape();
    if (kept_by(seed_) == Kept::tokens) {
      c.ranks = std::min(c.ranks, 4);
      c.top_k = std::min(c.top_k, 4);
    }
    size_up(c, kMostTokens, [&](std::int64_t eighths, std::int64_t experts, std::int64_t tokens) {
      const std::int64_t rows = c.ranks * tokens * std::min<std::int64_t>(c.top_k, experts);
      const std::int64_t gaps = experts * (alignment_for(experts) - 1);
      return (rows + gaps) * (eighths * 32 + c.top_k * 12 + kMostScales * 4) > kMostBytes;
    });
    drawn.most_alignment = alignment_for(c.local_experts());
    for (int i = 0; i < 4; ++i) drawn.forms.push_back(normal_form(c, drawn.most_alignment));
    return drawn;
  }

  LowLatencyComparison low_latency() {
    constexpr std::int64_t kMostChannels = std::int64_t{1} << 20;  // of a result at most
    LowLatencyComparison drawn;
    EpCase& c = drawn.c = shape();
    size_up(c, kMostSlots, [&](std::int64_t eighths, std::int64_t experts, std::int64_t tokens) {
      return c.ranks * experts * tokens * eighths * 8 > kMostChannels;
    });
    for (int i = 0; i < 4; ++i) {
      LowLatencyForm form;
      form.quantize = quantize(c.hidden);
      form.scale_layout = form.quantize == Quantize::none
                              ? ScaleLayout::automatic
                              : one_of(ScaleLayout::rows, ScaleLayout::columns);
      form.reduction = one_of(Reduction::per_rank, Reduction::exact);
      form.log_fmt = pick(0, 2) == 0;
      if (!form.log_fmt) form.combine_quantize = combine_quantize(c.hidden);
      form.early_weights = pick(0, 1) == 1;
      form.int32_topk = pick(0, 1) == 1;
      form.defer_receive = pick(0, 1) == 1;
      drawn.forms.push_back(form);
    }
    return drawn;
  }

 private:
  template <typename TooMuch>
  void size_up(EpCase& c, std::int64_t most_tokens, const TooMuch& too_much) {
    std::int64_t eighths = size(Kept::hidden, 1, kLongestRow / 8),
                 experts = size(Kept::experts, 1, kMostExperts / c.ranks),
                 tokens = size(Kept::tokens, 1, most_tokens);
    const Size sizes[] = {{eighths, 1, kept_by(seed_) == Kept::hidden},
                          {experts, 1, kept_by(seed_) == Kept::experts},
                          {tokens, 1, kept_by(seed_) == Kept::tokens}};
    shrink(*this, sizes, [&] { return too_much(eighths, experts, tokens); });
    if (pick(0, 1) == 1) eighths = (eighths + 7) / 8 * 8;  // every format takes 64 channels
    c.hidden = 8 * eighths;
    spread(c, experts);
    set_tokens(c, tokens);
  }

  /// The largest alignment: bounded, so that the gaps between the blocks of many experts do not
  /// fill the result.
  static std::int32_t alignment_for(std::int64_t local_experts) {
    return static_cast<std::int32_t>(
        std::clamp<std::int64_t>(2048 / local_experts, 1, kMostAlignment));
  }

  NormalForm normal_form(const EpCase& c, std::int32_t most_alignment) {
    NormalForm form;
    do {
      form.dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32,
                          DataType::float8_e4m3, DataType::int8, DataType::uint8);
    } while (!opaque(form.dtype) && !whole(form.dtype, c.hidden));
    if (opaque(form.dtype)) form.columns = 16 * pick(1, c.hidden * 4 / 16);
    form.output_dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32);
    form.scales = pick(0, 1) == 1 ? pick(1, kMostScales) : 0;
    form.scale_dtype = one_of(DataType::float32, DataType::int32);
    form.scale_columns = pick(0, 1) == 1;
    form.expert_major = pick(0, 1) == 1;
    form.alignment = static_cast<std::int32_t>(pick(1, most_alignment));
    form.worst_case = pick(0, 2) == 0;
    form.copy_out = pick(0, 3) == 0;
    form.int32_topk = pick(0, 1) == 1;
    form.weights = pick(0, 3) > 0;
    form.biases = static_cast<int>(pick(0, 2));
    const bool same_bytes =
        size_of(form.dtype) == size_of(form.output_dtype) && !opaque(form.dtype);
    form.in_place = same_bytes && !form.copy_out && pick(0, 1) == 1;
    form.cached = pick(0, 1) == 1;
    if (form.output_dtype == DataType::bfloat16) form.combine_quantize = combine_quantize(c.hidden);
    return form;
  }
};

}  // namespace

NormalDraw draw_normal(std::uint64_t seed) {
  return Normal(seed).all();
}
LowLatencyDraw draw_low_latency(std::uint64_t seed) {
  return LowLatency(seed).all();
}
NormalComparison draw_normal_comparison(std::uint64_t seed) {
  return Compared(seed, 11).normal();
}
LowLatencyComparison draw_low_latency_comparison(std::uint64_t seed) {
  return Compared(seed, 13).low_latency();
}

}  // namespace shoal::test
