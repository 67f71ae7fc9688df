// SPDX-License-Identifier: Apache-2.0
// The rounds of the other tests with processes as ranks, which have a GPU each or share one.
// compute-sanitizer runs the kernels of one process one after another, so it can check ranks that
// wait for each other only here.
#include <gtest/gtest.h>

#include <iostream>

#include "checks/ep/gpu_low_latency.hpp"
#include "checks/world/share.hpp"
#include "support/process/process.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;

// Processes on one GPU take turns of a millisecond, and under a sanitizer a kernel needs many
// turns.
constexpr Milliseconds kLimit{400'000};
constexpr Milliseconds kTimeout{120'000};

void run_pe(const PeContext& pe, bool masks,
            const std::function<void(GpuGroup&, const EpCase&)>& body,
            DataType widest = DataType::bfloat16) {
  Settings settings = pe.settings;
  settings.heap = "cuda";
  settings.symmetric_size = std::size_t{256} << 20;
  settings.timeout = kTimeout;
  World world = World::open({settings, nullptr});
  const EpCase c{.ranks = world.n_pes(),
                 .experts = world.n_pes() * 3,
                 .top_k = 4,
                 .hidden = 384,
                 .max_tokens = 24,
                 .seed = 1};
  {
    ep::GroupOptions options = options_for(c);
    options.mask_failed = masks;
    options.dtype = widest;
    GpuGroup group(world, options);
    body(group, c);
  }
  world.close();
}

/// A new layout, then the same layout again.
void run_with_cached_handle(GpuGroup& group, const EpCase& c) {
  GpuRound round(group, c, {.place = OutputPlace::in_place});
  const ep::Dispatched first = round.dispatch(round.route());
  round.check(first);
  round.change_rows(c.seed + 100);
  const ep::Dispatched again = round.dispatch(first.handle);
  round.check(again, true);
  round.write_expert_output(again);
  round.check(round.combine(again));
}

/// Combine fetches the expert output from memory that Shoal did not allocate.
void run_with_shared_expert_output(GpuGroup& group, const EpCase& c) {
  const std::size_t bytes = static_cast<std::size_t>(c.ranks * c.max_tokens * c.hidden) * 2;
  const ForeignMemory memory(group.world, bytes, ForeignMemory::Kind::mapped);
  const SharedBuffer shared = group.world.heap().share_buffer(memory.data(), bytes);
  {
    GpuRound round(group, c, {.place = OutputPlace::in_place});
    const ep::Dispatched got = round.dispatch(round.route());
    round.check(got);
    round.write_expert_output(got);
    TensorView y(memory.data(), DataType::bfloat16, {got.x.shape[0], c.hidden});
    y.device = group.tensors.device();
    if (y.bytes() > 0) {
      group.tensors.write(y, group.tensors.download(round.y()));
      group.tensors.poison(round.y());
    }
    ep::CombineOptions options;
    options.weights = *got.topk_weights;
    round.check(group.group.combine(y, got.handle, options));
  }
  group.tensors.settle();
  group.world.heap().unshare_buffer(shared);
}

void run_normal_forms(GpuGroup& group, const EpCase& c) {
  for (const auto place : {OutputPlace::staged, OutputPlace::in_place, OutputPlace::heap})
    GpuRound(group, c, {.place = place, .biases = place == OutputPlace::heap ? 2 : 0}).run();
  GpuRound(group, reseeded(c, 1),
           {.dtype = DataType::float8_e4m3,
            .scales = 3,
            .scale_order = ScaleOrder::columns,
            .int32_topk = true})
      .run();
  GpuRound(group, reseeded(c, 2),
           {.dispatch = {.worst_case_rows = c.ranks * c.max_tokens}, .out = true})
      .run();
  GpuRound(group, reseeded(c, 3),
           {.dtype = DataType::float32,
            .dispatch = {.copy_out = true},
            .output_dtype = DataType::float32})
      .run();
  run_with_cached_handle(group, reseeded(c, 4));
  EpCase few = reseeded(c, 5);  // up to three rows per token, in the memory of a rank-major result
  few.max_tokens = c.max_tokens / 4;
  check_expert_major(group.group, few, {.alignment = 4, .cached = 1}, mover(group));
  run_with_shared_expert_output(group, reseeded(c, 6));
}

SHOAL_PE_BODY(normal_mode) {
  run_pe(pe, false, run_normal_forms, DataType::float32);
}

/// Sums, rows, LogFMT rows and rows in fp8, each with weights that travel early and late and with
/// receives of both kinds; the other options vary.
void run_low_latency_forms(GpuGroup& group, const EpCase& c) {
  constexpr Quantize kQuantize[] = {Quantize::none, Quantize::fp8, Quantize::fp8_ue8m0};
  for (int turn = 0; turn < 4; ++turn)
    for (int form = 0; form < 4; ++form) {
      const bool sums = form == 0, log_fmt = form == 2, plain = form < 2,
                 even = turn == 0 || turn == 3;
      GpuLowLatencyRound(
          group, reseeded(c, static_cast<std::uint64_t>(turn * 4 + form)),
          {.quantize = kQuantize[(form + turn) % 3],
           .reduction = sums || (!plain && even) ? Reduction::per_rank : Reduction::exact,
           .log_fmt = log_fmt,
           .combine_quantize = form == 3 ? Quantize::fp8 : Quantize::none,
           .zero_copy = plain && sums == even,
           .early_weights = turn % 2 == 1,
           .defer_receive = turn < 2})
          .run();
    }
}

SHOAL_PE_BODY(low_latency_mode) {
  run_pe(pe, false, run_low_latency_forms);
}
SHOAL_PE_BODY(low_latency_mode_with_masks) {
  run_pe(pe, true, run_low_latency_forms);
}

SHOAL_PE_BODY(rows_beyond_their_memory) {
  run_pe(pe, false, [](GpuGroup& group, const EpCase& c) {
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
  void run(const std::string& body) {
    expect_success(run_pes(GetParam(), body, {.limit = kLimit}));
  }
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

// The same groups where memory is passed by CUDA IPC. Not under the sanitizer: the kernels are
// the same.
class EpGpuProcessesByCudaIpc : public testing::Test {
 protected:
  void SetUp() override { SHOAL_SKIP_WITHOUT_GPU(); }
  void run(const std::string& body) {
    expect_success(run_pes(3, body, {.env = {{"SHOAL_CUDA_HANDLE", "ipc"}}, .limit = kLimit}));
  }
};

TEST_F(EpGpuProcessesByCudaIpc, NormalMode) {
  run("normal_mode");
}
TEST_F(EpGpuProcessesByCudaIpc, LowLatencyMode) {
  run("low_latency_mode");
}
TEST_F(EpGpuProcessesByCudaIpc, LowLatencyModeWithMasks) {
  run("low_latency_mode_with_masks");
}

// For run-gpu --sanitizer, which fails unless the tool reports this error. The results of the
// ranks do not matter.
TEST(EpGpuSanitizer, DISABLED_Control) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const ProcessResult& pe : run_pes(2, "rows_beyond_their_memory", {.limit = kLimit}))
    std::cout << pe.describe() << '\n';
}

}  // namespace
}  // namespace shoal::test
