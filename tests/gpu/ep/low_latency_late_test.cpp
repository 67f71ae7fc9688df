// SPDX-License-Identifier: Apache-2.0
// Low-latency mode on GPUs with late or missing data: combine rows of a masked rank, combine rows
// that arrive late or never, results without memory, tensors without elements.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"
#include "shoal/collective.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using ep::Reduction;
using Round = GpuLowLatencyRound;

struct CombineForm {
  Reduction reduction;
  bool log_fmt;
  ep::Quantize quantize = ep::Quantize::none;
};

/// The other ranks mask a rank. That rank sends combine 3 after the others have sent combine 5 into
/// the same half. The rows of combine 5 must stay as they are.
void expect_late_combine_rows_are_harmless(const CombineForm& form) {
  constexpr std::int32_t kLate = 2;
  const EpCase c = wide_case(4, 83);
  const auto numbered = [&](std::uint64_t number) {
    EpCase one = c;
    one.seed += number;
    return one;
  };
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        World& world = group.world;
        const GpuLowLatencyCall call{.reduction = form.reduction,
                                     .log_fmt = form.log_fmt,
                                     .combine_quantize = form.quantize,
                                     .early_weights = true};
        for (std::uint64_t number = 1; number <= 2; ++number)
          Round(group, numbered(number), call).run();
        Round third(group, numbered(3), call);
        const ep::LowLatencyReceived got = third.send().receive();
        third.check(got);
        third.write_expert_output();
        group.group.synchronize();
        sync(world.team());
        if (group.me == kLate) {
          sync(world.team());  // the others have sent combine 5
          ep::PendingCombine late = third.combine(got);
          group.tensors.settle();
          sync(world.team());
          sync(world.team());
          return;
        }
        third.combine(got).receive();  // masks the late rank after the timeout
        group.group.synchronize();
        std::vector<int> mask(c.ranks, 0);
        mask[kLate] = 1;
        EXPECT_EQ(group.group.masked(), mask);
        GpuLowLatencyCall without = call;
        without.masked = mask;
        Round(group, numbered(4), without).run();
        Round fifth(group, numbered(5), without);
        const ep::LowLatencyReceived fifth_got = fifth.send().receive();
        fifth.check(fifth_got);
        fifth.write_expert_output();
        ep::PendingCombine pending = fifth.combine(fifth_got);
        group.tensors.settle();
        sync(world.team());
        sync(world.team());  // the late combine rows are written
        fifth.check(pending.receive());
        group.group.synchronize();
        EXPECT_EQ(group.group.masked(), mask) << "no other rank was masked";
        sync(world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = std::chrono::milliseconds(700);
      });
}

TEST(EpGpuLowLatencyLate, SmallSumsOfAMaskedRankOverwriteNothing) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_late_combine_rows_are_harmless({Reduction::per_rank, false});
}

TEST(EpGpuLowLatencyLate, SmallRowsOfAMaskedRankOverwriteNothing) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_late_combine_rows_are_harmless({Reduction::exact, false});
}

TEST(EpGpuLowLatencyLate, SmallLogFmtRowsOfAMaskedRankOverwriteNothing) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_late_combine_rows_are_harmless({Reduction::per_rank, true});
}

TEST(EpGpuLowLatencyLate, SmallFp8RowsOfAMaskedRankOverwriteNothing) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_late_combine_rows_are_harmless({Reduction::per_rank, false, ep::Quantize::fp8});
}

// Ranks that are late because they wait for another.

/// Rank 2 stops after a dispatch. Only rank 1 waits for its combine row, starting half a timeout
/// after the others have begun the next dispatch. Rank 1 reports that it waits for another rank, so
/// rank 0 extends its wait for rank 1. Both continue and mask only rank 2.
TEST(EpGpuLowLatencyLate, ARankThatWaitsForAnotherIsNotMasked) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kFirst = 0, kKept = 1, kGone = 2;
  static constexpr std::chrono::milliseconds kTimeout(1600);
  const EpCase c = wide_case(3, 89);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        const std::vector<std::vector<std::int64_t>> topk_idx = {
            {0, 3, 1, 4}, {3, 6, 4, 7}, {6, 7, 8, -1}};
        const PlainInputs in(group.tensors, c, topk_idx[static_cast<std::size_t>(group.me)]);
        const auto dispatch = [&] {
          return group.group
              .low_latency_dispatch(in.x, in.topk,
                                    {.quantize = ep::Quantize::none, .weights = in.weights})
              .receive();
        };
        const auto combine = [&](const ep::LowLatencyReceived& got) {
          return group.group.low_latency_combine(got.x, in.topk, in.weights, got.handle,
                                                 {.defer_receive = true});
        };
        const auto expect_sums = [&](const Tensor& sums, float wanted, const char* of) {
          const Tensor host = group.tensors.download(sums);
          const auto* const bits = host.as<std::uint16_t>();
          EXPECT_TRUE(std::all_of(bits, bits + host.size(),
                                  [&](auto value) { return value == bf16_of(wanted); }))
              << of << " on PE " << group.me;
        };
        const ep::LowLatencyReceived got = dispatch();
        group.group.synchronize();
        sync(group.world.team());
        if (group.me != kGone) {
          // The number of experts of a token on ranks other than kGone.
          const float wanted = group.me == kFirst ? 4 : 2;
          ep::PendingCombine pending = combine(got);
          if (group.me == kKept) std::this_thread::sleep_for(kTimeout / 2);
          expect_sums(pending.receive(), wanted, "the combine without rank 2");
          const auto start = std::chrono::steady_clock::now();
          const ep::LowLatencyReceived next = dispatch();
          group.group.synchronize();
          // Between nodes, rank 0 has waited for a notice of rank 2 in the combine.
          if (group.me == kFirst && test_nodes(c.ranks) == 1)
            EXPECT_GT(std::chrono::steady_clock::now() - start, kTimeout * 5 / 4);
          expect_sums(combine(next).receive(), wanted, "the next combine");
          EXPECT_EQ(group.group.masked(), (std::vector<int>{0, 0, 1})) << "on PE " << group.me;
        }
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = kTimeout;
      });
}

// Combine rows that arrive later than those of other ranks.

/// Six tokens, each with experts on all of the three ranks, which have three experts each.
std::vector<std::int64_t> experts_everywhere(const EpCase& c) {
  std::vector<std::int64_t> topk_idx;
  for (std::int64_t token = 0; token < 6; ++token)
    for (std::int64_t topk_slot = 0; topk_slot < c.top_k; ++topk_slot)
      topk_idx.push_back((token + 2 * topk_slot) % c.experts);
  return topk_idx;
}

enum class Waits { counted, of_no_other };

/// wait_ns of both operations: the time counts for the late rank only. Without early weights the
/// send of a combine waits for that rank, unless the receive is deferred.
void expect_waits(const CombineForm& form, bool defer, Waits expected, bool early_weights = true) {
  constexpr std::int32_t kLate = 1, kFirst = 0;
  constexpr std::int64_t kRounds = 2;
  constexpr std::chrono::milliseconds kDelay(60), kLittle(5);  // other ranks are slightly late too
  const std::int64_t half = kRounds * std::chrono::nanoseconds(kDelay).count() / 2;
  const EpCase c = wide_case(3, 61);
  run_low_latency_group(c, [&](GpuGroup& group) {
    const PlainInputs in(group.tensors, c, experts_everywhere(c));
    const std::vector<std::int64_t> zeros(static_cast<std::size_t>(c.ranks), 0);
    const Tensor waited =
        group.tensors.upload(ConstTensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Tensor waited_back =
        group.tensors.upload(ConstTensorView(zeros.data(), DataType::int64, {c.ranks}));
    const auto begin = [&] {
      group.tensors.settle();
      sync(group.world.team());
      if (group.me != kFirst) std::this_thread::sleep_for(group.me == kLate ? kDelay : kLittle);
    };
    ep::LowLatencyDispatchOptions options{
        .quantize = ep::Quantize::none, .wait_ns = waited, .defer_receive = defer};
    if (early_weights) options.weights = in.weights;
    for (std::int64_t i = 0; i < kRounds; ++i) {
      begin();
      const ep::LowLatencyReceived got =
          group.group.low_latency_dispatch(in.x, in.topk, options).receive();
      begin();
      group.group
          .low_latency_combine(got.x, in.topk, in.weights, got.handle,
                               {.log_fmt = form.log_fmt,
                                .quantize = form.quantize,
                                .reduction = form.reduction,
                                .wait_ns = waited_back,
                                .defer_receive = defer})
          .receive();
    }
    group.group.synchronize();
    const auto check = [&](const char* operation, const Tensor& counted) {
      const Tensor host = group.tensors.download(counted);
      for (std::int32_t rank = 0; rank < c.ranks; ++rank) {
        const std::int64_t ns = host.as<std::int64_t>()[rank];
        SCOPED_TRACE(std::string(operation) + ": PE " + std::to_string(group.me) + " waited " +
                     std::to_string(ns) + " ns for PE " + std::to_string(rank));
        EXPECT_GE(ns, 0);
        EXPECT_LT(ns, 20'000'000'000);
        if (group.me == kLate) continue;
        if (expected == Waits::counted && rank == kLate) EXPECT_GT(ns, half);
        if (expected == Waits::of_no_other && rank != kLate) EXPECT_LT(ns, half);
      }
    };
    check("dispatch", waited);
    check("combine", waited_back);
    sync(group.world.team());
  });
}

class EpGpuLowLatencyWaits : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Deferral, EpGpuLowLatencyWaits, ::testing::Bool(), [](const auto& tested) {
  return tested.param ? "deferred" : "immediate";
});

TEST_P(EpGpuLowLatencyWaits, SmallForSumsAreCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_waits({Reduction::per_rank, false}, GetParam(), Waits::counted);
}

TEST_P(EpGpuLowLatencyWaits, SmallForWeightsAreCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_waits({Reduction::per_rank, false}, GetParam(), Waits::counted, false);
}

TEST_P(EpGpuLowLatencyWaits, SmallForRowsAreCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_waits({Reduction::exact, false}, GetParam(), Waits::counted);
}

TEST_P(EpGpuLowLatencyWaits, SmallForLogFmtRowsAreCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const bool early_weights : {true, false})
    expect_waits({Reduction::per_rank, true}, GetParam(), Waits::counted, early_weights);
  expect_waits({Reduction::exact, true}, GetParam(), Waits::counted);
}

TEST_P(EpGpuLowLatencyWaits, SmallForRowsInE4m3AreCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const ep::Quantize quantize : {ep::Quantize::fp8, ep::Quantize::mxfp8})
    for (const Reduction reduction : kReductions)
      expect_waits({reduction, false, quantize}, GetParam(), Waits::counted);
}

TEST_P(EpGpuLowLatencyWaits, SmallForOtherRanksAreNotCounted) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const bool early_weights : {true, false})
    expect_waits({Reduction::per_rank, false}, GetParam(), Waits::of_no_other, early_weights);
  expect_waits({Reduction::exact, false}, GetParam(), Waits::of_no_other);
  expect_waits({Reduction::per_rank, true}, GetParam(), Waits::of_no_other);
}

// Combine rows that never arrive.

/// Object of a wait, and its phase.
struct Awaited {
  const char *what, *phase;
};
constexpr Awaited kAwaitedRows{"its expert outputs", "receive"};
constexpr Awaited kAwaitedWeights{"its weights", "send"};

/// A rank takes part in the dispatch but not in its combine. The others time out waiting for one of
/// `awaited`.
void expect_silence_is_reported(const CombineForm& form, bool early_weights, bool defer,
                                const std::vector<Awaited>& awaited = {kAwaitedRows}) {
  constexpr std::int32_t kSilent = 1;
  const EpCase c = wide_case(3, 79);
  run_low_latency_group(
      c,
      [&](GpuGroup& group) {
        const PlainInputs in(group.tensors, c, experts_everywhere(c));
        ep::LowLatencyDispatchOptions options{.quantize = ep::Quantize::none,
                                              .defer_receive = defer};
        if (early_weights) options.weights = in.weights;
        const ep::LowLatencyReceived got =
            group.group.low_latency_dispatch(in.x, in.topk, options).receive();
        group.group.synchronize();
        sync(group.world.team());
        if (group.me != kSilent) {
          try {
            group.group
                .low_latency_combine(got.x, in.topk, in.weights, got.handle,
                                     {.log_fmt = form.log_fmt,
                                      .quantize = form.quantize,
                                      .reduction = form.reduction,
                                      .defer_receive = defer})
                .receive();
            group.group.synchronize();
            ADD_FAILURE() << "did not time out";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::timeout) << error.what();
            const std::string message = error.what();
            const auto seen = std::ranges::find_if(awaited, [&](const Awaited& a) {
              return message.find(std::string("waiting for ") + a.what + " from PE 1") !=
                     std::string::npos;
            });
            ASSERT_NE(seen, awaited.end()) << message;
            expect_parts(message,
                         {"low_latency_combine (epoch 1) timed out after 300 ms",
                          "on PE " + std::to_string(group.me) + " of 3", "expected epoch 1",
                          std::string("phase ") + seen->phase, "GroupOptions.timeout"});
          }
          expect_error(Code::closed, "timed out",
                       [&] { group.group.low_latency_dispatch(in.x, in.topk); });
        }
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(300); });
}

TEST_P(EpGpuLowLatencyWaits, ForCombineRowsThatNeverComeAreReported) {
  SHOAL_SKIP_WITHOUT_GPU();
  expect_silence_is_reported({Reduction::per_rank, false}, true, GetParam());
  expect_silence_is_reported({Reduction::exact, false}, false, GetParam());
  expect_silence_is_reported({Reduction::per_rank, true}, true, GetParam());
  expect_silence_is_reported({Reduction::exact, true}, false, GetParam());
}

TEST(EpGpuLowLatencyLate, WeightsThatNeverComeAreReported) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const bool log_fmt : {false, true}) {
    // A receive that was queued with the send may be the first to report.
    expect_silence_is_reported({Reduction::per_rank, log_fmt}, false, false,
                               {kAwaitedWeights, kAwaitedRows});
    // A send whose receive is deferred does not wait for weights.
    expect_silence_is_reported({Reduction::per_rank, log_fmt}, false, true);
  }
}

// Memory.

/// Allocates all memory of the GPU, down to pieces of 2 MiB. Only one PE at a time may hold it.
class AllMemory {
 public:
  AllMemory() {
    for (std::size_t bytes = std::size_t{64} << 30; bytes >= std::size_t{2} << 20;) {
      void* piece = nullptr;
      if (cudaMalloc(&piece, bytes) == cudaSuccess)
        pieces_.push_back(piece);
      else
        bytes /= 2;
    }
    (void)cudaGetLastError();
  }
  ~AllMemory() {
    for (void* piece : pieces_) (void)cudaFree(piece);
  }
  AllMemory(const AllMemory&) = delete;
  AllMemory& operator=(const AllMemory&) = delete;

 private:
  std::vector<void*> pieces_;
};

/// A call without memory for its result fails before it sends anything, and the group stays usable.
TEST(EpGpuLowLatencyLate, AResultWithoutMemoryIsRefusedBeforeAnythingIsSent) {
  SHOAL_SKIP_WITHOUT_GPU();
  // The sums are larger than the memory that a pool may keep from other calls.
  const EpCase c{.ranks = 1,
                 .experts = 1,
                 .top_k = 1,
                 .hidden = 8192,
                 .max_tokens = 4096,
                 .seed = 5,
                 .holes = 0};
  ep::GroupOptions group_options = options_for(c);
  group_options.max_tokens = 0;
  group_options.low_latency_max_tokens = c.max_tokens;
  const std::size_t bytes = size_hint(group_options, c.ranks, DeviceKind::cuda).total();
  for (const bool defer : {true, false})
    run_threads(c.ranks, low_latency_settings(c.ranks, (bytes >> 20) + 16), [&](World& world) {
      GpuGroup group(world, group_options);
      const std::vector<std::int64_t> topk_idx(static_cast<std::size_t>(c.max_tokens), 0);
      const PlainInputs in(group.tensors, c, topk_idx);
      const ep::LowLatencyReceived got =
          group.group
              .low_latency_dispatch(in.x, in.topk,
                                    {.quantize = ep::Quantize::none, .defer_receive = defer})
              .receive();
      const Tensor out = group.tensors.empty(DataType::bfloat16, {c.max_tokens, c.hidden});
      group.group
          .low_latency_combine(got.x, in.topk, in.weights, got.handle,
                               {.out = out, .defer_receive = defer})
          .receive();
      group.tensors.settle();
      const auto combine = [&] {
        return group.group
            .low_latency_combine(got.x, in.topk, in.weights, got.handle, {.defer_receive = defer})
            .receive();
      };
      {
        const AllMemory taken;
        for (int i = 0; i < 2; ++i)
          expect_error(Code::exhausted, "LowLatencyCombineOptions.out", [&] { combine(); });
      }
      for (int i = 0; i < 3; ++i) {  // both halves, then the first again
        const Tensor sums = combine();
        group.group.synchronize();
        const Tensor host = group.tensors.download(sums);
        const auto* const bits = host.as<std::uint16_t>();
        EXPECT_TRUE(std::all_of(bits, bits + host.size(),
                                [](std::uint16_t value) { return value == 0x3f80; }));
      }
    });
}

/// In frameworks, tensors without elements have no memory. A rank without tokens still passes
/// weights.
TEST(EpGpuLowLatencyLate, SmallTensorsWithoutElementsNeedNoMemory) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c{
      .ranks = 3, .experts = 6, .top_k = 2, .hidden = 256, .max_tokens = 4, .seed = 5, .holes = 0};
  ep::GroupOptions options = options_for(c);
  options.low_latency_max_tokens = c.max_tokens;
  run_threads(c.ranks, low_latency_settings(c.ranks), [&](World& world) {
    GpuGroup group(world, options);
    const auto nothing = [&](DataType dtype, std::int64_t columns) {
      TensorView view(nullptr, dtype, {0, columns});
      view.device = group.tensors.device();
      return view;
    };
    const std::vector<std::int64_t> topk_idx = {0, 3, 2, 5, 4, 1, 0, 5};
    const PlainInputs in(group.tensors, c, topk_idx);
    const bool idle = group.me == 1;
    const TensorView x = idle ? nothing(DataType::bfloat16, c.hidden) : TensorView(in.x);
    const TensorView topk = idle ? nothing(DataType::int64, c.top_k) : TensorView(in.topk);
    const TensorView weights = idle ? nothing(DataType::float32, c.top_k) : TensorView(in.weights);

    const ep::Routing routing = group.group.route(topk);
    const ep::Dispatched got = group.group.dispatch(x, routing, {.weights = weights});
    group.group.synchronize();  // all ranks agree that weights are sent
    const Tensor seen = group.tensors.download(*got.topk_weights);
    EXPECT_GT(std::count(seen.as<float>(), seen.as<float>() + seen.size(), 1.0F), 0);

    const ep::LowLatencyReceived received =
        group.group
            .low_latency_dispatch(x, topk, {.quantize = ep::Quantize::none, .weights = weights})
            .receive();
    const Tensor sums =
        group.group.low_latency_combine(received.x, topk, weights, received.handle).receive();
    group.group.synchronize();
    const Tensor host = group.tensors.download(sums);
    EXPECT_EQ(host.shape[0], idle ? 0 : c.max_tokens);
    const auto* const bits = host.as<std::uint16_t>();
    EXPECT_TRUE(std::all_of(bits, bits + host.size(), [](std::uint16_t value) {
      return value == 0x4000;
    })) << "1 + 1";
  });
}

}  // namespace
}  // namespace shoal::test
