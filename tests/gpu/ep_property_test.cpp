// Normal mode on GPUs with random shapes against the naive references: ranks 1 to 8, rows from 512 bytes to 64 KiB in
// steps of 16, top-k 1 to 32, up to 1024 experts and 8192 tokens, skewed loads, every kind of row and every option.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/draws.hpp"
#include "support/ep_gpu_checks.hpp"

namespace shoal::test {
namespace {

/// Bytes of rows that all members together send to one at most; keeps a seed to a few seconds.
constexpr std::int64_t kMostBytes = std::int64_t{48} << 20;

struct Drawn {
  EpCase c;
  ep::GroupOptions options;
  std::vector<GpuCall> calls;
  std::string text;
};

class Draw : Draws {
 public:
  explicit Draw(std::uint64_t seed) : Draws(seed * 7919 + 1), seed_(seed) {}

  Drawn all() {
    Drawn drawn;
    EpCase& c = drawn.c;
    c.seed = seed_;
    c.ranks = static_cast<std::int32_t>(pick(1, 8));
    c.experts = c.ranks * static_cast<std::int32_t>(log_pick(1, 1024 / c.ranks));
    c.top_k = static_cast<std::int32_t>(pick(1, ep::kMaxTopK));
    c.holes = static_cast<double>(pick(0, 4)) / 8;
    c.load = static_cast<Load>(pick(0, 9) < 7 ? 0 : pick(0, 3));
    ep::GroupOptions& options = drawn.options;
    options.dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3);
    const auto element = static_cast<std::int64_t>(size_of(options.dtype));
    c.hidden = 16 * log_pick(16, 1024);
    if (element > 1 && pick(0, 1) == 1) c.hidden += 16 / element;  // rows of an odd number of 16 bytes
    c.max_tokens = log_pick(
        1, std::min<std::int64_t>(8192, kMostBytes / (c.ranks * c.hidden * std::max<std::int64_t>(element, 2))));
    options.max_tokens = c.max_tokens;
    options.hidden = c.hidden;
    options.top_k = c.top_k;
    options.experts = c.experts;
    options.max_scales = log_pick(1, 128);
    options.live_results = static_cast<std::int32_t>(pick(1, 2));
    drawn.text = c.describe() + " dtype " + std::string(name_of(options.dtype));
    for (int i = 0; i < 3; ++i) drawn.calls.push_back(call(c, options));
    return drawn;
  }

 private:
  GpuCall call(const EpCase& c, const ep::GroupOptions& options) {
    GpuCall call;
    const auto element = static_cast<std::int64_t>(size_of(options.dtype));
    const auto row_fits = [&](DataType dtype) {
      const std::int64_t bytes = c.hidden * static_cast<std::int64_t>(size_of(dtype));
      return static_cast<std::int64_t>(size_of(dtype)) <= element && bytes % 16 == 0;
    };
    do {
      call.dtype = one_of(DataType::bfloat16, DataType::float16, DataType::float32, DataType::float8_e4m3,
                          DataType::int8, DataType::uint8);
    } while (call.dtype != DataType::int8 && call.dtype != DataType::uint8 && !row_fits(call.dtype));
    if (call.dtype == DataType::int8 || call.dtype == DataType::uint8)
      call.columns = 16 * pick(1, c.hidden * element / 16);
    do {
      call.answer = one_of(DataType::bfloat16, DataType::float16, DataType::float32);
    } while (static_cast<std::int64_t>(size_of(call.answer)) > std::max<std::int64_t>(element, 2) ||
             c.hidden * static_cast<std::int64_t>(size_of(call.answer)) % 16 != 0);
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
    const bool same_bytes = size_of(call.dtype) == size_of(call.answer) && call.columns == 0;
    call.place = same_bytes && !call.dispatch.copy_out && pick(0, 1) == 1 ? AnswerPlace::in_place : AnswerPlace::staged;
    call.biases = static_cast<int>(pick(0, 2));
    call.out = pick(0, 1) == 1;
    call.samples = 64;
    return call;
  }

  std::uint64_t seed_;
};

class EpGpuProperty : public ::testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, EpGpuProperty, ::testing::Range<std::uint64_t>(1, 41));

TEST_P(EpGpuProperty, RandomShapesMatchTheReference) {
  SHOAL_SKIP_WITHOUT_GPU();
  const Drawn drawn = Draw(GetParam()).all();
  SCOPED_TRACE(drawn.text);
  const std::size_t bytes = size_hint(drawn.options, drawn.c.ranks, DeviceKind::cuda).total();
  run_threads(drawn.c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, drawn.options);
    std::uint64_t round = 0;
    for (const GpuCall& call : drawn.calls) {
      EpCase now = drawn.c;
      now.seed += 1000 * round++;
      GpuRound(group, now, call).run();
    }
  });
}

/// One large operation; payload is compared in samples, everything beside it in full.
void run_large(const EpCase& c, const GpuCall& call) {
  SCOPED_TRACE(c.describe());
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = 0;
  options.live_results = 1;
  options.dtype = call.dtype;
  options.combine_staging = call.place == AnswerPlace::staged;
  const std::size_t bytes = size_hint(options, c.ranks, DeviceKind::cuda).total();
  run_threads(c.ranks, gpu_settings((bytes >> 20) + 16), [&](World& world) {
    GpuGroup group(world, options);
    GpuRound(group, c, call).run();
  });
}

TEST(EpGpuLarge, DeepSeekV3TrainingShape) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large({.ranks = 8, .experts = 256, .top_k = 8, .hidden = 7168, .max_tokens = 4096, .seed = 3, .holes = 0},
            {.place = AnswerPlace::in_place, .samples = 200});
}

TEST(EpGpuLarge, ManyTokensManyLanesManyExperts) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large({.ranks = 8, .experts = 1024, .top_k = 32, .hidden = 1024, .max_tokens = 8192, .seed = 5},
            {.dtype = DataType::float8_e4m3, .scales = 8, .scale_order = ScaleOrder::columns, .samples = 200});
}

TEST(EpGpuLarge, OneHotMember) {
  SHOAL_SKIP_WITHOUT_GPU();
  run_large(
      {.ranks = 4, .experts = 64, .top_k = 8, .hidden = 2048, .max_tokens = 8192, .seed = 7, .load = Load::all_to_one},
      {.dispatch = {.worst_case_rows = 4 * 8192}, .place = AnswerPlace::in_place, .samples = 200});
}

}  // namespace
}  // namespace shoal::test
