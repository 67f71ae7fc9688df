// Low-latency mode on GPUs with random shapes against the naive references: ranks 1 to 8, rows of 256 to 16384 channels
// in steps of 8 (float8: 16), top-k 1 to 32, up to 1024 experts and 512 tokens, holes, skewed loads, every encoding,
// reduction and option, receives deferred or not, one or two operations open.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/draws.hpp"
#include "support/ep_gpu_low_latency.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;
using Round = GpuLowLatencyRound;

// These keep a seed to a few seconds.
constexpr std::int64_t kMostResult = std::int64_t{1} << 26;  ///< channels of the results of all members together
constexpr std::int64_t kMostSent = std::int64_t{1} << 25;    ///< channels that all members send at most

struct Step {
  GpuLowLatencyCall first, second;
  bool both_open;
};

struct Drawn {
  EpCase c;
  std::vector<Step> steps;
};

class Draw : Draws {
 public:
  explicit Draw(std::uint64_t seed) : Draws(seed * 104729 + 7, 8), seed_(seed) {}

  Drawn all() {
    Drawn drawn;
    EpCase& c = drawn.c;
    c.seed = seed_;
    c.ranks = static_cast<std::int32_t>(pick(1, 8));
    c.top_k = static_cast<std::int32_t>(pick(1, ep::kMaxTopK));
    c.holes = static_cast<double>(pick(0, 4)) / 8;
    c.load = pick(0, 9) < 6 ? Load::random
                            : one_of(Load::all_to_one, Load::some_idle, Load::all_to_one, Load::some_idle, Load::none);
    c.mixed_magnitudes = pick(0, 1) == 1;
    std::int64_t eighths = log_pick(32, 2048), experts = log_pick(1, 1024 / c.ranks),
                 tokens = pick(0, 1) == 1 ? pick(1, 512) : log_pick(1, 512);
    std::int64_t* const sizes[] = {&eighths, &experts, &tokens};
    constexpr std::int64_t kLeast[] = {32, 1, 1};
    const std::int64_t largest[] = {2048, 1024 / c.ranks, 512};
    const auto kept = static_cast<std::int64_t>(seed_ % 6);  // every other seed has one of them as large as it gets
    if (kept < 3) *sizes[kept] = largest[kept];
    const auto too_much = [&] {
      const std::int64_t channels = c.ranks * tokens * eighths * 8;
      return channels * experts * c.ranks > kMostResult || channels * c.top_k > kMostSent;
    };
    while (too_much()) {
      const std::int64_t which = pick(0, 2);
      if (which != kept) *sizes[which] = std::max(kLeast[which], *sizes[which] * 3 / 4);
      const bool others_least = [&] {
        for (std::int64_t i = 0; i < 3; ++i)
          if (i != kept && *sizes[i] > kLeast[i]) return false;
        return true;
      }();
      if (others_least) break;
    }
    if (pick(0, 1) == 1) eighths += eighths % 2;  // float8 takes multiples of 16 channels alone
    c.hidden = 8 * eighths;
    c.experts = c.ranks * static_cast<std::int32_t>(experts);
    c.max_tokens = tokens;
    for (int i = 0; i < 4; ++i) {
      Step step{call(c), call(c), pick(0, 1) == 1};
      // Receives are made in the order of the sends.
      if (step.first.defer_receive) step.second.defer_receive = true;
      drawn.steps.push_back(step);
    }
    return drawn;
  }

 private:
  GpuLowLatencyCall call(const EpCase& c) {
    GpuLowLatencyCall call;
    if (c.hidden % 16 == 0)
      call.quantize = one_of(Quantize::none, Quantize::fp8, Quantize::fp8_power_of_two, Quantize::fp8_ue8m0);
    call.reduction = one_of(Reduction::automatic, Reduction::per_rank, Reduction::exact);
    call.log_fmt = pick(0, 2) == 0;
    call.zero_copy = !call.log_fmt && pick(0, 1) == 1;
    call.early_weights = pick(0, 1) == 1;
    call.int32_topk = pick(0, 1) == 1;
    call.out = pick(0, 1) == 1;
    call.launch.sms = static_cast<std::int32_t>(pick(0, 10));
    call.padded = pick(0, 3) == 0;
    call.defer_receive = pick(0, 1) == 1;
    return call;
  }

  std::uint64_t seed_;
};

/// Both dispatches sent before either is received, likewise the combines.
void run_both_open(Round& a, Round& b) {
  ep::PendingDispatch sent_a = a.send(), sent_b = b.send();
  const ep::LowLatencyReceived got_a = sent_a.receive(), got_b = sent_b.receive();
  a.check(got_a);
  b.check(got_b);
  a.write_answers();
  ep::PendingCombine back_a = a.answer(got_a);
  b.write_answers();  // the buffer of zero copy is that of the next combine
  ep::PendingCombine back_b = b.answer(got_b);
  const Tensor out_a = back_a.receive(), out_b = back_b.receive();
  a.check(out_a);
  b.check(out_b);
  a.poison(got_a);
  b.poison(got_b);
}

class EpGpuLowLatencyProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuLowLatencyProperty, ::testing::Range<std::uint64_t>(1, 25));

TEST_P(EpGpuLowLatencyProperty, RandomShapesMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const Drawn drawn = Draw(GetParam()).all();
  SCOPED_TRACE(drawn.c.describe());
  ep::GroupOptions options = options_for(drawn.c);
  options.max_tokens = 0;
  const std::size_t bytes = ep::size_hint(options, drawn.c.ranks, DeviceKind::cuda).total();
  run_threads(drawn.c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, options);
    EpCase first = drawn.c, second = drawn.c;
    for (const Step& step : drawn.steps) {
      first.seed += 1000;
      second.seed = first.seed + 500;
      Round a(group, first, step.first);
      if (!step.both_open) {
        a.run();
        continue;
      }
      Round b(group, second, step.second);
      run_both_open(a, b);
    }
    group.group.synchronize();
  });
}

}  // namespace
}  // namespace shoal::test
