// Low-latency mode on GPUs (E3, E5, A4, A9): PEs as threads on the GPUs that are here, each result bit by bit against
// the naive reference. Every result is poisoned before the next one takes its place.
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <thread>

#include "ep/numeric/rows.hpp"
#include "shoal/collective.hpp"
#include "support/ep_gpu_checks.hpp"
#include "support/expect_error.hpp"

namespace shoal::test {
namespace {

using ep::Quantize;
using ep::Reduction;

/// What a round does beside its case. The same on all members.
struct Call {
  Quantize quantize = Quantize::none;
  Reduction reduction = Reduction::per_rank;
  bool log_fmt = false;
  bool zero_copy = false;
  bool early_weights = false;  ///< they travel with the dispatch
  bool int32_topk = false;
  bool out = false;
  ep::Launch launch{};
  std::vector<int> masked{};
  /// Every member has max_tokens tokens; those that the case does not have go to no expert, as in a batch that a
  /// captured graph takes.
  bool padded = false;

  std::string describe() const {
    return "quantize " + std::to_string(static_cast<int>(quantize)) + " reduction " +
           std::to_string(static_cast<int>(reduction)) + (log_fmt ? " log_fmt" : "") + (zero_copy ? " zero_copy" : "") +
           (early_weights ? " early weights" : "");
  }
};

/// The rows of a tensor one after another, as poison takes them.
TensorView as_rows(const TensorView& tensor) {
  const std::int64_t columns = tensor.rank > 1 ? tensor.shape[tensor.rank - 1] : 1;
  TensorView view(tensor.data, tensor.dtype, {tensor.size() / std::max<std::int64_t>(columns, 1), columns});
  view.device = tensor.device;
  return view;
}

/// As the memory of scales lies: [experts, n, rows].
TensorView as_stored(const TensorView& scales) {
  TensorView view(scales.data, scales.dtype, {scales.shape[0], scales.shape[2], scales.shape[1]});
  view.device = scales.device;
  return view;
}

/// Dispatch, experts and combine, each compared bit by bit; the parts can be called one by one.
class Round {
 public:
  Round(GpuGroup& owner, const EpCase& c, const Call& call)
      : owner_(owner), case_(c), call_(call), tokens_(call.padded ? c.max_tokens : c.tokens(owner.me)) {
    x_ = owner.tensors.upload(rows_on_host());
    topk_ = owner.tensors.upload(topk_on_host());
    weights_ = owner.tensors.upload(weights_on_host());
    if (call.out) {
      out_memory_ = owner.tensors.empty(DataType::bfloat16, {tokens_ + 1, c.hidden});  // the last row must stay
      out_ = out_memory_;
      out_.shape[0] = tokens_;
    }
  }

  ep::PendingDispatch send() {
    ep::LowLatencyDispatchOptions options{.quantize = call_.quantize, .launch = call_.launch};
    if (call_.early_weights) options.weights = weights_;
    return owner_.group.low_latency_dispatch(x_, topk_, options);
  }

  void check(const ep::LowLatencyReceived& got) {
    const bool quantized = call_.quantize != Quantize::none;
    ASSERT_EQ(got.scales.defined(), quantized);
    ASSERT_EQ(got.x.dtype, quantized ? DataType::float8_e4m3 : DataType::bfloat16);
    host_ = {};
    host_.x = owner_.tensors.download(got.x);
    host_.counts = owner_.tensors.download(got.counts);
    host_.source_token = owner_.tensors.download(got.source_token);
    host_.layout = owner_.tensors.download(got.layout);
    if (quantized) {
      const Tensor stored = owner_.tensors.download(as_stored(got.scales));
      static_cast<TensorView&>(host_.scales) = got.scales;
      host_.scales.data = stored.data;
      host_.scales.owner = stored.owner;
      host_.scales.device = {};
    }
    check_low_latency_received(case_, owner_.me, host_, call_.masked);
    if (quantized && call_.masked.empty()) check_low_latency_scales(case_, owner_.me, host_, call_.quantize);
  }

  /// Behind check: where the answers to a result are; rows that no token fills hold NaN.
  void write_answers() {
    const std::int64_t rows = host_.x.shape[1];
    Tensor answers = Tensor::empty(DataType::bfloat16, {case_.local_experts(), rows, case_.hidden});
    std::memset(answers.data, 0xff, answers.bytes());
    low_latency_answers_to(case_, owner_.me, host_, answers);
    if (call_.zero_copy) {
      y_ = owner_.group.next_combine_buffer();
      owner_.tensors.write(y_, answers);
      return;
    }
    if (own_y_.defined())
      owner_.tensors.write(own_y_, answers);  // a captured graph has the address
    else
      own_y_ = owner_.tensors.upload(answers);
    y_ = own_y_;
  }

  ep::PendingCombine answer(const ep::LowLatencyReceived& got) {
    ep::LowLatencyCombineOptions options{
        .log_fmt = call_.log_fmt, .zero_copy = call_.zero_copy, .reduction = call_.reduction, .launch = call_.launch};
    if (call_.out) options.out = out_;
    return owner_.group.low_latency_combine(y_, topk_, weights_, got.handle, options);
  }

  void check(const Tensor& out) {
    Travels travels;
    if (call_.quantize != Quantize::none) travels.to_experts = float8_travel(call_.quantize);
    if (call_.log_fmt) travels.back = log_fmt_travel();
    auto wanted = expected_low_latency(case_, owner_.me, call_.reduction, call_.masked, travels);
    wanted.resize(tokens_ * case_.hidden, 0);  // tokens without experts
    ASSERT_EQ(out.size(), static_cast<std::int64_t>(wanted.size()));
    const Tensor values = owner_.tensors.download(out);
    expect_same("result (" + case_.describe() + ", " + call_.describe() + ")", values.data, wanted.data(),
                wanted.size() * 2, 2);
    if (!call_.out) return;
    ASSERT_EQ(out.data, out_memory_.data);
    const Tensor all = owner_.tensors.download(out_memory_);
    for (std::int64_t ch = 0; ch < case_.hidden; ++ch)
      ASSERT_EQ(all.as<std::uint16_t>()[tokens_ * case_.hidden + ch], 0xffff) << "wrote behind its end";
  }

  /// Fills a result with 0xff, so that the next one in its place must write everything.
  void poison(const ep::LowLatencyReceived& got) {
    for (const TensorView& tensor :
         {TensorView(got.x), TensorView(got.counts), TensorView(got.source_token), TensorView(got.layout)})
      owner_.tensors.poison(as_rows(tensor));
    if (got.scales.defined()) owner_.tensors.poison(as_rows(as_stored(got.scales)));
  }
  void poison_out() { owner_.tensors.poison(out_); }

  void run() {
    const ep::LowLatencyReceived got = send().receive();
    check(got);
    write_answers();
    const ep::LowLatencyReceived kept = got;
    ep::PendingCombine pending = answer(got);
    check(pending.receive());
    poison(kept);
  }

  /// Other values at the same addresses, as a replayed graph takes them.
  void change(const EpCase& now) {
    case_ = now;
    owner_.tensors.write(x_, rows_on_host());
    owner_.tensors.write(topk_, topk_on_host());
    owner_.tensors.write(weights_, weights_on_host());
  }

  const Tensor& x() const { return x_; }
  const Tensor& topk() const { return topk_; }
  const Tensor& weights() const { return weights_; }
  void set_masked(const std::vector<int>& masked) { call_.masked = masked; }

 private:
  Tensor rows_on_host() const {
    Tensor rows = Tensor::empty(DataType::bfloat16, {tokens_, case_.hidden});
    if (rows.bytes() > 0) std::memset(rows.data, 0x3f, rows.bytes());
    const auto values = case_.rows(owner_.me);
    std::copy(values.begin(), values.end(), rows.as<std::uint16_t>());
    return rows;
  }
  Tensor topk_on_host() const {
    Tensor topk = Tensor::empty(call_.int32_topk ? DataType::int32 : DataType::int64, {tokens_, case_.top_k});
    auto lanes = case_.topk(owner_.me);
    lanes.resize(tokens_ * case_.top_k, -1);
    if (call_.int32_topk)
      std::copy(lanes.begin(), lanes.end(), topk.as<std::int32_t>());
    else
      std::copy(lanes.begin(), lanes.end(), topk.as<std::int64_t>());
    return topk;
  }
  Tensor weights_on_host() const {
    Tensor weights = Tensor::empty(DataType::float32, {tokens_, case_.top_k});
    auto values = case_.weights(owner_.me);
    values.resize(tokens_ * case_.top_k, 0.5F);
    std::copy(values.begin(), values.end(), weights.as<float>());
    return weights;
  }

  GpuGroup& owner_;
  EpCase case_;
  Call call_;
  const std::int64_t tokens_;
  Tensor x_, topk_, weights_, out_memory_, own_y_;
  TensorView out_{}, y_{};
  ep::LowLatencyReceived host_;
};

using Body = std::function<void(GpuGroup&)>;

void run_group(const EpCase& c, const Body& body, const std::function<void(ep::GroupOptions&)>& change = {}) {
  SCOPED_TRACE(c.describe());
  ep::GroupOptions options = options_for(c);
  options.max_tokens = 0;
  if (change) change(options);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    GpuGroup group(world, options);
    body(group);
  });
}

EpCase small(std::int32_t ranks, std::uint64_t seed = 1) {
  return {.ranks = ranks, .experts = ranks * 3, .top_k = 4, .hidden = 384, .max_tokens = 24, .seed = seed};
}

EpCase reseeded(EpCase c, std::uint64_t by) {
  c.seed += by;
  return c;
}

/// Rounds in a group of their own: enough that both halves of everything are used twice.
void run_rounds(const EpCase& c, const Call& call, int rounds = 4) {
  run_group(c, [&](GpuGroup& group) {
    for (int i = 0; i < rounds; ++i) Round(group, reseeded(c, 100 * static_cast<std::uint64_t>(i)), call).run();
  });
}

constexpr Quantize kQuantizes[] = {Quantize::none, Quantize::fp8, Quantize::fp8_power_of_two, Quantize::fp8_ue8m0};
constexpr Reduction kReductions[] = {Reduction::per_rank, Reduction::exact};

class EpGpuLowLatency : public ::testing::TestWithParam<std::int32_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, EpGpuLowLatency, ::testing::Values(1, 2, 3, 5, 8));

TEST_P(EpGpuLowLatency, SmallEveryFormAndReduction) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(GetParam());
  run_group(c, [&](GpuGroup& group) {
    std::uint64_t seed = 0;
    for (const Quantize quantize : kQuantizes)
      for (const Reduction reduction : kReductions)
        for (const bool early : {false, true})
          Round(group, reseeded(c, ++seed),
                {.quantize = quantize, .reduction = reduction, .zero_copy = seed % 3 == 0, .early_weights = early})
              .run();
  });
}

TEST_P(EpGpuLowLatency, SmallNoTokensIdleMembersAndOneHotExpert) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Load load : {Load::none, Load::some_idle, Load::all_to_one}) {
    EpCase c = small(GetParam(), 3);
    c.load = load;
    run_rounds(c, {});
    run_rounds(c, {.quantize = Quantize::fp8, .zero_copy = true, .early_weights = true});
  }
}

TEST_P(EpGpuLowLatency, LogFmt) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {8, 120, 512, 640, 1016, 1024, 5120, 7168}) {
    EpCase c = small(GetParam(), 5 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    c.max_tokens = 12;
    c.mixed_magnitudes = true;
    run_group(c, [&](GpuGroup& group) {
      std::uint64_t seed = 0;
      for (const Reduction reduction : kReductions)
        for (const bool early : {false, true})
          Round(group, reseeded(c, ++seed), {.reduction = reduction, .log_fmt = true, .early_weights = early}).run();
    });
  }
}

TEST(EpGpuLowLatencyMode, SmallRowsFrom16BytesOn) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int64_t hidden : {8, 16, 24, 48, 128, 144, 496, 512, 528, 2560, 4112, 7168, 8208, 16400}) {
    EpCase c = small(3, 7 + static_cast<std::uint64_t>(hidden));
    c.hidden = hidden;
    c.max_tokens = 10;
    run_group(c, [&](GpuGroup& group) {
      for (const Quantize quantize : kQuantizes) {
        if (quantize != Quantize::none && hidden % 16 != 0) continue;
        for (const Reduction reduction : kReductions)
          Round(group, c, {.quantize = quantize, .reduction = reduction, .out = true}).run();
      }
    });
  }
}

TEST(EpGpuLowLatencyMode, EveryTopKUpTo32) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t ranks : {1, 4})
    for (const std::int32_t top_k : {1, 2, 3, 7, 8, 9, 16, 31, 32}) {
      EpCase c = small(ranks, 11 + static_cast<std::uint64_t>(top_k));
      c.top_k = top_k;
      c.experts = ranks * 10;  // fewer than top_k at times: lanes stay empty
      c.mixed_magnitudes = true;
      run_group(c, [&](GpuGroup& group) {
        for (const Reduction reduction : kReductions)
          for (const bool log_fmt : {false, true})
            Round(group, c, {.reduction = reduction, .log_fmt = log_fmt, .int32_topk = top_k % 2 == 1}).run();
      });
    }
}

TEST(EpGpuLowLatencyMode, ManyTokensAndExperts) {  // more slots than a block looks at at a time, more experts than SMs
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small(3, 13);
  c.hidden = 128;
  c.max_tokens = 700;
  c.experts = 9;
  run_rounds(c, {.quantize = Quantize::fp8, .early_weights = true}, 3);
  c = small(4, 17);
  c.hidden = 64;
  c.experts = 4 * 200;
  c.top_k = 8;
  run_rounds(c, {}, 3);
}

TEST(EpGpuLowLatencyMode, FewBlocks) {  // Launch.sms
  SHOAL_SKIP_WITHOUT_GPU();
  for (const std::int32_t sms : {1, 2, 7, 1000}) {
    const EpCase c = small(3, 19);
    run_rounds(c, {.quantize = Quantize::fp8, .launch = {.sms = sms}});
    run_rounds(c, {.reduction = Reduction::exact, .launch = {.sms = sms}});
  }
}

TEST(EpGpuLowLatencyMode, FullSize) {
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c{.ranks = 8, .experts = 64, .top_k = 8, .hidden = 7168, .max_tokens = 16, .seed = 23};
  run_rounds(c, {.quantize = Quantize::fp8, .zero_copy = true, .early_weights = true}, 2);
  run_rounds(c, {.quantize = Quantize::fp8_ue8m0, .reduction = Reduction::exact}, 1);
}

TEST(EpGpuLowLatencyMode, EveryFiniteAndSpecialValueIsEncodedAsNumericDoes) {
  SHOAL_SKIP_WITHOUT_GPU();
  // One expert that gets rows of all bfloat16 values, in the order of their bits and shuffled: groups of one magnitude,
  // of all, of zeros, with infinities and NaN.
  constexpr std::int64_t kHidden = 4096, kTokens = 32;
  run_threads(1, gpu_settings(), [&](World& world) {
    GpuGroup group(world, {.hidden = kHidden, .top_k = 1, .experts = 1, .low_latency_max_tokens = kTokens});
    std::vector<std::uint16_t> values(kTokens * kHidden);
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::uint16_t>(i);
    std::shuffle(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end(), std::mt19937(1));
    const std::vector<std::int32_t> experts(kTokens, 0);
    const Tensor x = group.tensors.upload(TensorView(values.data(), DataType::bfloat16, {kTokens, kHidden}));
    const Tensor topk = group.tensors.upload(TensorView(experts.data(), DataType::int32, {kTokens, 1}));
    for (const Quantize quantize : kQuantizes) {
      if (quantize == Quantize::none) continue;
      const auto got = group.group.low_latency_dispatch(x, topk, {.quantize = quantize}).receive();
      const Tensor codes = group.tensors.download(got.x), scales = group.tensors.download(as_stored(got.scales));
      const auto rounding =
          quantize == Quantize::fp8 ? ep::numeric::ScaleRounding::none : ep::numeric::ScaleRounding::power_of_two;
      for (std::int64_t t = 0; t < kTokens; ++t) {
        std::vector<std::uint8_t> wanted(kHidden);
        std::vector<float> inverse(kHidden / 128);
        ep::numeric::quantize_row({reinterpret_cast<const ep::numeric::Bf16*>(values.data()) + t * kHidden,
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

// --- order

TEST(EpGpuLowLatencyMode, SmallReceiveIsDeferred) {  // A9
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 29);
  run_group(c, [&](GpuGroup& group) {
    World& world = group.world;
    Round round(group, c, {.reduction = Reduction::exact});
    const auto becomes_ready = [](const auto& pending) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
      while (!pending.ready())
        if (std::chrono::steady_clock::now() > deadline) return false;
      return true;
    };
    for (int i = 0; i < 3; ++i) {
      ep::PendingDispatch pending;
      if (group.me != 0) {  // the others cannot be ready before PE 0 has sent; their send has returned all the same
        pending = round.send();
        group.tensors.settle();  // and its kernel has ended
        EXPECT_FALSE(pending.ready());
      }
      sync(world.team());
      if (group.me == 0) pending = round.send();
      sync(world.team());
      EXPECT_TRUE(becomes_ready(pending)) << "all have sent";
      const ep::LowLatencyReceived got = pending.receive();
      EXPECT_THROW(pending.receive(), Error);
      EXPECT_THROW(pending.ready(), Error);
      round.check(got);
      round.write_answers();
      ep::PendingCombine answers;
      if (group.me != 0) {
        answers = round.answer(got);
        group.tensors.settle();
        const auto lanes = c.topk(group.me);
        const bool needs_0 = std::any_of(lanes.begin(), lanes.end(), [&](std::int64_t e) { return e >= 0 && e < 3; });
        if (needs_0) EXPECT_FALSE(answers.ready());
      }
      sync(world.team());
      if (group.me == 0) answers = round.answer(got);
      sync(world.team());
      EXPECT_TRUE(becomes_ready(answers));
      round.check(answers.receive());
      EXPECT_THROW(answers.receive(), Error);
      EXPECT_THROW(answers.ready(), Error);
      round.poison(got);
    }
  });
}

TEST(EpGpuLowLatencyMode, SmallTwoOperationsOpenAtOnce) {  // A4: the two halves never mix
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 31);
  run_group(c, [&](GpuGroup& group) {
    for (const bool early : {true, false})
      for (int i = 0; i < 6; ++i) {
        const Call call{.quantize = Quantize::fp8, .early_weights = early};
        const auto seed = static_cast<std::uint64_t>(i);
        Round a(group, reseeded(c, 2 * seed), call), b(group, reseeded(c, 2 * seed + 1), call);
        ep::PendingDispatch first = a.send(), second = b.send();
        expect_error(Code::invalid_argument, "receive", [&] { b.send(); });
        expect_error(Code::invalid_argument, "order", [&] { second.receive(); });
        const ep::LowLatencyReceived got_a = first.receive(), got_b = second.receive();
        a.check(got_a);
        b.check(got_b);
        a.write_answers();
        b.write_answers();
        ep::PendingCombine back_a = a.answer(got_a), back_b = b.answer(got_b);
        const Tensor out_a = back_a.receive(), out_b = back_b.receive();
        a.check(out_a);
        b.check(out_b);
        a.poison(got_a);
        b.poison(got_b);
      }
  });
}

TEST(EpGpuLowLatencyMode, SmallDispatchesWithoutCombineAndAnOldHandle) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 37);
  run_group(c, [&](GpuGroup& group) {
    const Call call{.reduction = Reduction::per_rank};
    Round first(group, c, call), second(group, reseeded(c, 1), call);
    const ep::LowLatencyReceived got = first.send().receive();
    first.check(got);
    first.write_answers();
    for (int i = 0; i < 5; ++i) second.check(second.send().receive());
    // The handle outlives the rows.
    first.check(first.answer(got).receive());
    first.check(first.answer(got).receive());
  });
}

TEST(EpGpuLowLatencyMode, InterleavedWithNormalMode) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 41);
  run_group(
      c,
      [&](GpuGroup& group) {
        for (std::uint64_t i = 0; i < 5; ++i) {
          GpuRound(group, reseeded(c, i), {}).run();
          Round(group, reseeded(c, i), {.quantize = Quantize::fp8}).run();
        }
      },
      [&](ep::GroupOptions& options) { options.max_tokens = c.max_tokens; });
}

TEST(EpGpuLowLatencyMode, OwnStreamsAndEvents) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 43);
  run_group(c, [&](GpuGroup& group) {
    CUstream_st* const streams[2] = {group.tensors.new_stream(), group.tensors.new_stream()};
    cudaEvent_t done = nullptr;
    ASSERT_EQ(cudaEventCreateWithFlags(&done, cudaEventDisableTiming), cudaSuccess);
    for (std::uint64_t i = 0; i < 6; ++i) {
      Round round(group, reseeded(c, i),
                  {.early_weights = i % 2 == 0, .launch = {.stream = streams[i % 2], .done = done}});
      const ep::LowLatencyReceived got = round.send().receive();
      EXPECT_EQ(cudaEventSynchronize(done), cudaSuccess);
      round.check(got);
      round.write_answers();
      round.check(round.answer(got).receive());
      group.group.synchronize();
    }
    (void)cudaEventDestroy(done);
  });
}

TEST(EpGpuLowLatencyMode, ManySkewedRounds) {  // A4
  SHOAL_SKIP_WITHOUT_GPU();
  EpCase c = small(4, 47);
  c.hidden = 128;
  c.max_tokens = 8;
  run_group(c, [&](GpuGroup& group) {
    std::mt19937 random(static_cast<std::uint32_t>(group.me));
    Round a(group, c, {.early_weights = true}), b(group, reseeded(c, 1), {.quantize = Quantize::fp8_ue8m0});
    for (int i = 0; i < 60; ++i) {
      if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
      (i % 3 == 0 ? a : b).run();
    }
  });
}

TEST(EpGpuLowLatencyMode, FreeRunningChainKeepsItsResults) {  // nothing waits on the host between operations
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 53);
  run_group(c, [&](GpuGroup& group) {
    Round round(group, c, {.early_weights = true, .out = true});
    const ep::LowLatencyReceived got = round.send().receive();
    round.check(got);
    round.write_answers();
    round.poison_out();
    for (int i = 0; i < 200; ++i) {
      const ep::LowLatencyReceived again = round.send().receive();
      const Tensor out = round.answer(again).receive();
      if (i == 199) round.check(out);
      if (i == 199) round.check(again);
    }
  });
}

// --- graphs (E5)

TEST(EpGpuLowLatencyMode, CapturedAndReplayed) {
  SHOAL_SKIP_WITHOUT_GPU();
  for (const Quantize quantize : {Quantize::none, Quantize::fp8_ue8m0})
    for (const Reduction reduction : kReductions) {
      const EpCase c = small(3, 59);
      run_group(c, [&](GpuGroup& group) {
        CUstream_st* const stream = group.tensors.new_stream();
        Round round(group, c,
                    {.quantize = quantize,
                     .reduction = reduction,
                     .early_weights = reduction == Reduction::exact,
                     .out = true,
                     .launch = {.stream = stream},
                     .padded = true});
        // Once before, for the memory; it also says what experts answer.
        {
          const ep::LowLatencyReceived got = round.send().receive();
          round.check(got);
          round.write_answers();
          round.check(round.answer(got).receive());
        }
        sync(group.world.team());  // kernels of others must not run into the capture of this thread's launches
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t replay = nullptr;
        ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
        const ep::LowLatencyReceived got = round.send().receive();
        const Tensor out = round.answer(got).receive();
        ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
        ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
        for (std::uint64_t i = 0; i < 5; ++i) {
          if (i == 3) Round(group, reseeded(c, 1000), {.quantize = quantize}).run();  // beside the graph
          EpCase now = c;
          now.seed += 10 * i;
          round.change(now);
          round.poison(got);
          // Answers depend on what is received, which is known beforehand only by running twice: the first replay gives
          // the rows, the second the result.
          ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
          round.check(got);
          round.write_answers();
          round.poison_out();
          ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
          round.check(out);
        }
        group.tensors.settle();
        (void)cudaGraphExecDestroy(replay);
        (void)cudaGraphDestroy(graph);
      });
    }
}

// --- statistics, masks, errors

TEST(EpGpuLowLatencyMode, SmallStatisticsAddUp) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 61);
  run_group(c, [&](GpuGroup& group) {
    const std::vector<std::int64_t> zeros(static_cast<std::size_t>(std::max(c.ranks, c.local_experts())), 0);
    const std::vector<std::int32_t> none(static_cast<std::size_t>(c.local_experts()), 0);
    const Tensor counts = group.tensors.upload(TensorView(none.data(), DataType::int32, {c.local_experts()}));
    const Tensor waited = group.tensors.upload(TensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Tensor waited_back = group.tensors.upload(TensorView(zeros.data(), DataType::int64, {c.ranks}));
    const Round round(group, c, {});
    const auto pair = [&] {
      const auto got =
          group.group.low_latency_dispatch(round.x(), round.topk(), {.expert_counts = counts, .wait_ns = waited})
              .receive();
      if (group.me == 1) {
        group.tensors.settle();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      group.group
          .low_latency_combine(group.group.next_combine_buffer(), round.topk(), round.weights(), got.handle,
                               {.zero_copy = true, .wait_ns = waited_back})
          .receive();
    };
    sync(group.world.team());
    if (group.me == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    for (int i = 0; i < 3; ++i) pair();
    const ExpectedDispatch wanted = expected_dispatch(c, group.me);
    const Tensor got_counts = group.tensors.download(counts), got_waited = group.tensors.download(waited),
                 got_back = group.tensors.download(waited_back);
    for (std::int32_t e = 0; e < c.local_experts(); ++e)
      EXPECT_EQ(got_counts.as<std::int32_t>()[e], 3 * wanted.tokens_per_expert[e]);
    const auto lanes = c.topk(0);
    const bool answers = std::any_of(lanes.begin(), lanes.end(), [&](std::int64_t e) { return e >= 3 && e < 6; });
    if (group.me == 0) {
      EXPECT_GT(got_waited.as<std::int64_t>()[1], 10'000'000) << "PE 1 came 30 ms late";
      EXPECT_LT(got_waited.as<std::int64_t>()[1], 20'000'000'000);
      EXPECT_EQ(got_waited.as<std::int64_t>()[0], 0) << "nobody waits for itself";
      if (answers) EXPECT_LT(got_back.as<std::int64_t>()[1], 20'000'000'000);
    }
    sync(group.world.team());
  });
}

TEST(EpGpuLowLatencyMode, AMemberThatStopsIsMaskedAndTheOthersGoOn) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kGone = 2;
  constexpr std::chrono::milliseconds kTimeout(1000);
  const EpCase c = small(4, 67);
  for (const Reduction reduction : kReductions)
    run_group(
        c,
        [&](GpuGroup& group) {
          Round(group, c, {.reduction = reduction}).run();
          group.group.synchronize();
          sync(group.world.team());
          if (group.me == kGone) {
            sync(group.world.team());
            return;
          }
          std::vector<int> mask(c.ranks, 0);
          mask[kGone] = 1;
          Round round(group, c,
                      {.reduction = reduction, .early_weights = reduction == Reduction::exact, .masked = mask});
          for (int i = 0; i < 4; ++i) {
            const auto start = std::chrono::steady_clock::now();
            round.run();
            group.group.synchronize();
            const auto elapsed = std::chrono::steady_clock::now() - start;
            if (i > 0) EXPECT_LT(elapsed, kTimeout * 3 / 4) << "a masked member is not waited for again";
          }
          EXPECT_EQ(group.group.masked(), mask);
          EXPECT_THROW(group.group.set_mask(group.me, true), Error);
          group.group.clear_masks();
          EXPECT_EQ(group.group.masked(), std::vector<int>(c.ranks, 0));
          sync(group.world.team());
        },
        [&](ep::GroupOptions& options) {
          options.mask_failed = true;
          options.timeout = kTimeout;
        });
}

TEST(EpGpuLowLatencyMode, ALiveMemberIsLeftOutAndComesBack) {
  SHOAL_SKIP_WITHOUT_GPU();
  constexpr std::int32_t kOut = 2;
  const EpCase c = small(4, 71);
  run_group(
      c,
      [&](GpuGroup& group) {
        // All members agree that the group falls into {kOut} and the others; each part goes on by itself.
        std::vector<int> mask(c.ranks, group.me == kOut ? 1 : 0);
        mask[kOut] = group.me == kOut ? 0 : 1;
        for (const Reduction reduction : kReductions) {
          Round full(group, c, {.reduction = reduction});
          Round part(group, c, {.reduction = reduction, .zero_copy = true, .masked = mask});
          for (int turn = 0; turn < 2; ++turn) {
            for (int i = 0; i < 3; ++i) full.run();
            group.group.synchronize();
            sync(group.world.team());
            for (std::int32_t member = 0; member < c.ranks; ++member)
              if (mask[member] != 0) group.group.set_mask(member, true);
            EXPECT_EQ(group.group.masked(), mask);
            for (int i = 0; i < 5; ++i) part.run();
            group.group.synchronize();
            sync(group.world.team());
            group.group.clear_masks();
            EXPECT_EQ(group.group.masked(), std::vector<int>(c.ranks, 0));
            sync(group.world.team());
          }
          for (int i = 0; i < 3; ++i) full.run();
        }
      },
      [](ep::GroupOptions& options) { options.mask_failed = true; });
}

TEST(EpGpuLowLatencyMode, AMemberThatIsLeftOutFindsOut) {
  SHOAL_SKIP_WITHOUT_GPU();
  // Only the others mask it: their notices tell it, long before its waits would end.
  constexpr std::int32_t kOut = 1;
  const EpCase c = small(3, 73);
  run_group(
      c,
      [&](GpuGroup& group) {
        Round(group, c, {}).run();
        group.group.synchronize();
        sync(group.world.team());
        std::vector<int> mask(c.ranks, group.me == kOut ? 1 : 0);
        mask[kOut] = group.me == kOut ? 0 : 1;
        if (group.me != kOut) group.group.set_mask(kOut, true);
        sync(group.world.team());
        const auto start = std::chrono::steady_clock::now();
        Round round(group, c, {.masked = mask});
        for (int i = 0; i < 3; ++i) round.run();
        group.group.synchronize();
        EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(8));
        EXPECT_EQ(group.group.masked(), mask);
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) {
        options.mask_failed = true;
        options.timeout = std::chrono::seconds(10);
      });
}

TEST(EpGpuLowLatencyMode, WithoutMasksATimeoutNamesTheMemberAndClosesTheGroup) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 79);
  run_group(
      c,
      [&](GpuGroup& group) {
        if (group.me != 1) {
          const Round round(group, c, {});
          try {
            group.group.low_latency_dispatch(round.x(), round.topk()).receive();
            group.group.synchronize();
            ADD_FAILURE() << "did not time out";
          } catch (const Error& error) {
            EXPECT_EQ(error.code(), Code::timeout);
            const std::string text = error.what();
            for (const char* part :
                 {"low_latency_dispatch (epoch 1) timed out after 300 ms", "waiting for rows from PE 1",
                  "expected epoch 1, seen 0", "phase receive", "GroupOptions.timeout"})
              EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
          }
          expect_error(Code::closed, "timed out", [&] { group.group.low_latency_dispatch(round.x(), round.topk()); });
        }
        sync(group.world.team());
      },
      [](ep::GroupOptions& options) { options.timeout = std::chrono::milliseconds(300); });
}

TEST(EpGpuLowLatencyMode, SmallBadIndicesAreNamedAndTheGroupStaysUsable) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 83);
  run_group(c, [&](GpuGroup& group) {
    struct Bad {
      std::int64_t lane, value;
      const char* text;
    };
    const std::int64_t experts = c.experts;
    const Bad bads[] = {{1, experts, "topk_idx[2, 1] is 9"},
                        {0, -2, "topk_idx[2, 0] is -2"},
                        {3, std::int64_t{1} << 40, "topk_idx[2, 3] is 1099511627776"},
                        {2, 4, "topk_idx[2] names expert 4 twice"}};
    for (const Bad& bad : bads) {
      std::vector<std::int64_t> lanes(4 * static_cast<std::size_t>(c.top_k));
      for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<std::int64_t>(i % 4) * 2 + 1;
      if (bad.value == 4) lanes[2 * 4 + 1] = 4;
      if (group.me == 1) lanes[2 * 4 + static_cast<std::size_t>(bad.lane)] = bad.value;
      const Tensor topk = group.tensors.upload(TensorView(lanes.data(), DataType::int64, {4, c.top_k}));
      const std::vector<std::uint16_t> rows(4 * static_cast<std::size_t>(c.hidden), bf16_of(1.0F));
      const Tensor x = group.tensors.upload(TensorView(rows.data(), DataType::bfloat16, {4, c.hidden}));
      const std::vector<float> ones(lanes.size(), 1.0F);
      const Tensor weights = group.tensors.upload(TensorView(ones.data(), DataType::float32, {4, c.top_k}));
      const auto got = group.group.low_latency_dispatch(x, topk, {.quantize = Quantize::none}).receive();
      group.group.low_latency_combine(got.x, topk, weights, got.handle).receive();
      if (group.me == 1)
        expect_error(Code::invalid_argument, bad.text, [&] { group.group.synchronize(); });
      else
        group.group.synchronize();
      group.group.synchronize();  // told once
    }
    for (std::uint64_t i = 0; i < 3; ++i) Round(group, reseeded(c, i), {.quantize = Quantize::fp8}).run();
    group.group.synchronize();
  });
}

TEST(EpGpuLowLatencyMode, SmallDifferentOptionsAreAMismatch) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(3, 89);
  run_group(c, [&](GpuGroup& group) {
    const bool odd = group.me == 2;
    const auto code = [&]() -> std::optional<Code> {
      try {
        group.group.synchronize();
      } catch (const Error& error) {
        return error.code();
      }
      return std::nullopt;
    };
    Round round(group, c, {});
    group.group.low_latency_dispatch(round.x(), round.topk(), {.quantize = odd ? Quantize::fp8 : Quantize::none})
        .receive();
    EXPECT_EQ(code(), Code::mismatch);
    ep::LowLatencyDispatchOptions with_weights{.quantize = Quantize::none};
    if (odd) with_weights.weights = round.weights();
    const auto mixed = group.group.low_latency_dispatch(round.x(), round.topk(), with_weights).receive();
    EXPECT_EQ(code(), Code::mismatch);
    // Where nobody waits for an answer nobody can miss it, so every member has tokens for every expert.
    std::vector<std::int64_t> lanes(4 * static_cast<std::size_t>(c.top_k));
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = static_cast<std::int64_t>((i % 4) * 3 % 9 + i / 4 % 3);
    for (std::size_t t = 0; t < 4; ++t) lanes[t * 4 + 3] = -1;
    const Tensor topk = group.tensors.upload(TensorView(lanes.data(), DataType::int64, {4, c.top_k}));
    const std::vector<std::uint16_t> rows(4 * static_cast<std::size_t>(c.hidden), bf16_of(1.0F));
    const Tensor x = group.tensors.upload(TensorView(rows.data(), DataType::bfloat16, {4, c.hidden}));
    const std::vector<float> ones(lanes.size(), 1.0F);
    const Tensor weights = group.tensors.upload(TensorView(ones.data(), DataType::float32, {4, c.top_k}));
    const ep::LowLatencyCombineOptions odds[] = {{.log_fmt = odd},
                                                 {.reduction = odd ? Reduction::exact : Reduction::per_rank}};
    for (const auto& options : odds) {
      const auto got = group.group.low_latency_dispatch(x, topk, {.quantize = Quantize::none}).receive();
      group.group.low_latency_combine(got.x, topk, weights, got.handle, options).receive();
      EXPECT_EQ(code(), Code::mismatch);
    }
    for (std::uint64_t i = 0; i < 3; ++i) Round(group, reseeded(c, i), {}).run();
    EXPECT_EQ(code(), std::nullopt);
  });
}

TEST(EpGpuLowLatencyMode, WarmUpAndGroupsOneAfterAnother) {
  SHOAL_SKIP_WITHOUT_GPU();
  const EpCase c = small(4, 97);
  run_threads(c.ranks, gpu_settings(), [&](World& world) {
    for (int i = 0; i < 4; ++i) {
      ep::GroupOptions options = options_for(c);
      options.max_tokens = 0;
      options.preinitialize = i % 2 == 1;
      GpuGroup group(world, options);
      Round(group, c, {.quantize = Quantize::fp8, .zero_copy = i < 2}).run();
      Round(group, c, {.reduction = Reduction::exact}).run();
      if (i == 3) group.group.warmup();
      EXPECT_EQ(group.group.statistics().low_latency_dispatches, 2U);
      EXPECT_EQ(group.group.statistics().low_latency_combines, 2U);
    }
  });
}

}  // namespace
}  // namespace shoal::test
