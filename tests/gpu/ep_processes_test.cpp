// Groups whose members are processes, each with a GPU, or several with one: the rounds of the other tests, whose
// members are threads. compute-sanitizer runs the kernels of one process one after another, so it can see members that
// wait for each other only here.
#include <gtest/gtest.h>

#include <iostream>

#include "support/ep_gpu_low_latency.hpp"
#include "support/process.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;

// Processes on one GPU take turns, a millisecond each, and a sanitizer makes a kernel take many of them.
constexpr Milliseconds kLimit{400'000};
constexpr Milliseconds kTimeout{120'000};

void run_member(const PeContext& pe, bool masks, const std::function<void(GpuGroup&, const EpCase&)>& body) {
  Settings settings = pe.settings;
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{256} << 20;
  settings.timeout = kTimeout;
  World world = World::open({settings, nullptr});
  const EpCase c{
      .ranks = world.n_pes(), .experts = world.n_pes() * 3, .top_k = 4, .hidden = 384, .max_tokens = 24, .seed = 1};
  {
    ep::GroupOptions options = options_for(c);
    options.mask_failed = masks;
    GpuGroup group(world, options);
    body(group, c);
  }
  world.close();
}

EpCase reseeded(EpCase c, std::uint64_t by) {
  c.seed += by;
  return c;
}

SHOAL_PE_BODY(normal_mode) {
  run_member(pe, false, [](GpuGroup& group, const EpCase& c) {
    for (const auto place : {AnswerPlace::staged, AnswerPlace::in_place, AnswerPlace::heap})
      GpuRound(group, c, {.place = place, .biases = place == AnswerPlace::heap ? 2 : 0}).run();
    GpuRound(group, reseeded(c, 1),
             {.dtype = DataType::float8_e4m3, .scales = 3, .scale_order = ScaleOrder::columns, .int32_topk = true})
        .run();
    GpuRound(group, reseeded(c, 2), {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}, .out = true}).run();
  });
}

void run_low_latency_forms(GpuGroup& group, const EpCase& c) {
  std::uint64_t seed = 0;
  for (const bool defer : {true, false})
    for (const Quantize quantize : {Quantize::none, Quantize::fp8, Quantize::fp8_ue8m0})
      for (const Reduction reduction : {Reduction::per_rank, Reduction::exact}) {
        ++seed;
        GpuLowLatencyRound(group, reseeded(c, seed),
                           {.quantize = quantize,
                            .reduction = reduction,
                            .log_fmt = seed % 3 == 0,
                            .zero_copy = seed % 3 == 1,
                            .early_weights = seed % 2 == 0,
                            .defer_receive = defer})
            .run();
      }
}

SHOAL_PE_BODY(low_latency_mode) {
  run_member(pe, false, run_low_latency_forms);
}
SHOAL_PE_BODY(low_latency_mode_with_masks) {
  run_member(pe, true, run_low_latency_forms);
}

SHOAL_PE_BODY(rows_beyond_their_memory) {
  run_member(pe, false, [](GpuGroup& group, const EpCase& c) {
    const PlainInputs in(group.tensors, c, std::vector<std::int64_t>(c.max_tokens * c.top_k, 0));
    TensorView x = in.x;
    const Tensor small = group.tensors.empty(DataType::bfloat16, {1, 8});
    x.data = small.data;
    (void)group.group.low_latency_dispatch(x, in.topk).receive();
    group.group.synchronize();
  });
}

class EpGpuProcesses : public testing::TestWithParam<int> {
 protected:
  void run(const std::string& body) { expect_success(run_pes(GetParam(), body, {.limit = kLimit})); }
};
INSTANTIATE_TEST_SUITE_P(Pes, EpGpuProcesses, testing::Values(2, 3));

TEST_P(EpGpuProcesses, SmallNormalMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  run("normal_mode");
}
TEST_P(EpGpuProcesses, SmallLowLatencyMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  run("low_latency_mode");
}
TEST_P(EpGpuProcesses, SmallLowLatencyModeWithMasks) {
  SHOAL_SKIP_WITHOUT_GPU();
  run("low_latency_mode_with_masks");
}

// For run-gpu-tests --sanitizer, which fails where the tool does not find this. Whatever becomes of the members.
TEST(EpGpuSanitizer, DISABLED_Control) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const ProcessResult& member : run_pes(2, "rows_beyond_their_memory", {.limit = kLimit}))
    std::cout << member.describe() << '\n';
}

}  // namespace
}  // namespace shoal::test
