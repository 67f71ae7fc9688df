// SPDX-License-Identifier: Apache-2.0
// Ten thousand operations of a group on GPUs in random order, with random delays on every PE, each
// checked: dispatches of all kinds and layouts, combines in any order, low-latency sends and
// receives of every encoding in between. The order is the same on all ranks, the delays differ.
#include <gtest/gtest.h>
#include <variant>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <deque>
#include <random>
#include <thread>

#include "checks/ep/gpu_low_latency.hpp"

namespace shoal::test {
namespace {

constexpr int kOperations = 10'000;
// run-gpu stops a program after 540 s; the remaining time is for the report.
constexpr std::chrono::seconds kLongest{270};

EpCase soak_case(std::int32_t ranks, std::uint64_t seed) {
  EpCase c{.ranks = ranks,
           .experts = ranks * 3,
           .top_k = 4,
           .hidden = 144,
           .max_tokens = 12,
           .seed = seed};
  c.mixed_magnitudes = true;
  c.load = seed % 5 == 4 ? Load::some_idle : Load::random;
  return c;
}

constexpr std::int32_t kMostAlignment = 8;

const ExpertMajorCall kExpertMajor[] = {
    {.alignment = kMostAlignment},
    {.scales = 2, .alignment = 4, .worst_case = true},
    {.weights = false, .alignment = 3, .biases = 1, .in_place = true},
    {.copy_out = true, .biases = 2}};

std::vector<GpuLowLatencyCall> low_latency_calls() {
  using ep::Quantize;
  using ep::Reduction;
  return {{},
          {.zero_copy = true, .early_weights = true},
          {.reduction = Reduction::exact, .zero_copy = true},
          {.log_fmt = true},
          {.reduction = Reduction::exact, .log_fmt = true, .early_weights = true},
          {.quantize = Quantize::fp8, .zero_copy = true, .early_weights = true},
          {.quantize = Quantize::fp8_power_of_two, .log_fmt = true},
          {.combine_quantize = Quantize::fp8, .early_weights = true},
          {.reduction = Reduction::exact, .combine_quantize = Quantize::fp8},
          {.quantize = Quantize::fp8_ue8m0,
           .reduction = Reduction::exact,
           .early_weights = true,
           .int32_topk = true}};
}

/// A random walk over the operations that are legal at each point.
class Walk {
 public:
  Walk(GpuGroup& group, const EpCase& first) : group_(group), delays_(1000 + group.me) {
    for (std::uint64_t i = 0; i < 4; ++i) {
      EpCase c = soak_case(first.ranks, first.seed + i);
      const std::int64_t most = c.ranks * c.max_tokens;
      normal_.push_back(
          std::make_unique<GpuRound>(group, c, GpuCall{.biases = static_cast<int>(i % 3)}));
      normal_.push_back(std::make_unique<GpuRound>(
          group, c,
          GpuCall{
              .scales = 2, .dispatch = {.worst_case_rows = most}, .place = OutputPlace::in_place}));
    }
    std::uint64_t seed = first.seed + 50;
    for (const ExpertMajorCall& call : kExpertMajor)
      expert_major_.push_back(std::make_unique<ExpertMajorRound>(
          group.group, soak_case(first.ranks, ++seed), call, mover(group)));
    for (int i = 0; i < 2; ++i)
      for (const GpuLowLatencyCall& call : low_latency_calls())
        low_latency_.push_back(
            std::make_unique<GpuLowLatencyRound>(group, soak_case(first.ranks, ++seed), call));
    for (const auto& round : normal_) routings_.push_back(round->route());
  }

  void step() {
    delay();
    switch (order_() % 8) {
      case 0:
      case 1:
        if (held_.size() < 2) return dispatch();
        [[fallthrough]];
      case 2:
        if (!held_.empty()) return combine();
        return dispatch();
      case 3:
        if (!held_.empty() && held_.size() < 2) return dispatch_again();
        return combine_or_dispatch();
      case 4:
      case 5:
        if (sent_.size() + received_.size() < 2) return low_latency_send();
        [[fallthrough]];
      case 6:
        if (!sent_.empty() && received_.size() < 2) return low_latency_receive();
        [[fallthrough]];
      default:
        if (!received_.empty() && combining_.size() < 2) return low_latency_combine();
        if (!combining_.empty()) return low_latency_finish();
        return combine_or_dispatch();
    }
  }

  void finish() {
    while (!sent_.empty()) {
      if (received_.size() == 2) low_latency_combine();
      if (combining_.size() == 2) low_latency_finish();
      low_latency_receive();
    }
    while (!received_.empty()) {
      if (combining_.size() == 2) low_latency_finish();
      low_latency_combine();
    }
    while (!combining_.empty()) low_latency_finish();
    while (!held_.empty()) combine();
  }

 private:
  struct Held {
    std::size_t round;  ///< of normal_, then of expert_major_
    std::variant<ep::Dispatched, ep::ExpertMajorDispatched> got;

    const ep::Dispatched& rank_major() const { return std::get<ep::Dispatched>(got); }
  };
  template <typename T>
  struct LowLatencyStep {
    std::size_t round;
    T value;
    bool deferred = false;  ///< its receive is not queued yet
  };

  void delay() {
    const std::uint64_t draw = delays_() % 100;
    if (draw < 15) std::this_thread::sleep_for(std::chrono::microseconds(delays_() % 300));
    if (draw == 99) std::this_thread::sleep_for(std::chrono::milliseconds(delays_() % 8));
  }
  void combine_or_dispatch() { held_.empty() ? dispatch() : combine(); }
  ExpertMajorRound* expert_major(std::size_t round) {
    return round < normal_.size() ? nullptr : expert_major_[round - normal_.size()].get();
  }
  void dispatch() {
    const std::size_t i = order_() % (normal_.size() + expert_major_.size());
    if (ExpertMajorRound* const round = expert_major(i)) {
      held_.push_back({i, round->dispatch()});
      return;
    }
    if (order_() % 4 == 0) routings_[i] = normal_[i]->route();
    held_.push_back({i, normal_[i]->dispatch(routings_[i])});
    normal_[i]->check(held_.back().rank_major());
  }
  /// Dispatches with the handle of a result that is still held.
  void dispatch_again() {
    const std::size_t i = held_.front().round;
    const ep::Handle layout =
        std::visit([](const auto& got) { return got.handle; }, held_.front().got);
    if (ExpertMajorRound* const round = expert_major(i)) {
      held_.push_back({i, round->dispatch(layout)});
      return;
    }
    const bool worst = i % 2 == 1;
    held_.push_back({i, normal_[i]->dispatch(layout)});
    normal_[i]->check(held_.back().rank_major(), true, worst);
  }
  void combine() {
    const auto at = held_.begin() + static_cast<std::ptrdiff_t>(order_() % held_.size());
    if (ExpertMajorRound* const round = expert_major(at->round)) {
      round->combine(std::get<ep::ExpertMajorDispatched>(at->got));
    } else {
      normal_[at->round]->write_expert_output(at->rank_major());
      normal_[at->round]->check(normal_[at->round]->combine(at->rank_major()));
    }
    std::visit(
        [&](const auto& got) {
          group_.tensors.poison(got.x);
          for (const auto* side :
               {&got.topk_idx, &got.topk_weights, &got.source_token, &got.scales})
            if (*side) group_.tensors.poison(**side);
        },
        at->got);
    held_.erase(at);
  }
  /// Receives follow the order of the sends, so a send must defer its receive while an earlier
  /// receive is outstanding.
  template <typename Steps>
  static bool must_defer(const Steps& open) {
    return std::any_of(open.begin(), open.end(), [](const auto& step) { return step.deferred; });
  }
  void low_latency_send() {
    const std::size_t i = order_() % low_latency_.size();
    const bool defer = must_defer(sent_) || order_() % 2 == 0;
    low_latency_[i]->defer_receive(defer);
    sent_.push_back({i, low_latency_[i]->send(), defer});
  }
  void low_latency_receive() {
    auto [round, pending, deferred] = std::move(sent_.front());
    sent_.pop_front();
    received_.push_back({round, pending.receive()});
    low_latency_[round]->check(received_.back().value);
  }
  void low_latency_combine() {
    const auto [round, got, deferred] = received_.front();
    received_.pop_front();
    const bool defer = must_defer(combining_) || order_() % 2 == 0;
    low_latency_[round]->write_expert_output();
    low_latency_[round]->defer_receive(defer);
    combining_.push_back({round, low_latency_[round]->combine(got), defer});
  }
  void low_latency_finish() {
    auto [round, pending, deferred] = std::move(combining_.front());
    combining_.pop_front();
    low_latency_[round]->defer_receive(deferred);  // the round may have sent again since
    low_latency_[round]->check(pending.receive());
  }

  GpuGroup& group_;
  std::mt19937_64 order_{12345};  // the same on all ranks
  std::mt19937_64 delays_;        // of this rank
  std::vector<std::unique_ptr<GpuRound>> normal_;
  std::vector<std::unique_ptr<ExpertMajorRound>> expert_major_;
  std::vector<std::unique_ptr<GpuLowLatencyRound>> low_latency_;
  std::vector<ep::Routing> routings_;
  std::vector<Held> held_;
  std::deque<LowLatencyStep<ep::PendingDispatch>> sent_;
  std::deque<LowLatencyStep<ep::LowLatencyReceived>> received_;
  std::deque<LowLatencyStep<ep::PendingCombine>> combining_;
};

void soak(std::int32_t ranks, int operations) {
  std::atomic<int> stop_at{operations}, done{0};
  std::atomic<bool> out_of_time{false};
  const auto start = std::chrono::steady_clock::now();
  run_threads(ranks, gpu_settings(), [&](World& world) {
    const EpCase c = soak_case(ranks, 1);
    ep::GroupOptions options = options_for(c);
    options.max_tokens = expert_major_options(c, {.alignment = kMostAlignment}).max_tokens;
    options.max_scales = 2;
    GpuGroup group(world, options);
    group.group.warmup();
    Walk walk(group, c);
    for (int i = 0; i < stop_at; ++i) {
      walk.step();
      if (group.me != 0) continue;
      done = i + 1;
      // All stop at the same operation; no rank is a hundred ahead of another.
      if (!out_of_time && std::chrono::steady_clock::now() - start > kLongest) {
        stop_at = std::min(operations, i + 100);
        out_of_time = true;
      }
    }
    walk.finish();
    group.group.synchronize();
  });
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  std::printf("%d of %d operations on %d PEs in %.1f s\n", done.load(), operations, ranks, seconds);
  EXPECT_EQ(done, operations) << (out_of_time ? "stopped at the time limit" : "");
}

TEST(EpGpuSoak, SmallMixedOperations) {
  SHOAL_SKIP_WITHOUT_GPU();
  soak(2, 100);
}

TEST(EpGpuSoak, TenThousandOperationsWithRandomDelays) {
  SHOAL_SKIP_WITHOUT_GPU();
  soak(8, kOperations);
}

}  // namespace
}  // namespace shoal::test
