// SPDX-License-Identifier: Apache-2.0
// waits_bench.cpp: operations with little work, whose time is that of waiting: how it grows with
// the PEs per core.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "base/check.hpp"
#include "shoal/collective.hpp"
#include "shoal/ep/group.hpp"
#include "shoal_bench.hpp"

namespace shoal::bench {

namespace {

/// A group of one rank in a world of its own: the time of a call without any wait.
class Alone {
 public:
  explicit Alone(bool records) : world_(open(records)), group_(world_.team(), options()) {}

  double normal() {
    return fastest([&] {
      const ep::Dispatched received = group_.dispatch(batch_.x, routing_);
      group_.combine(received.x, received.handle);
    });
  }
  double low_latency() {
    return fastest([&] {
      const ep::LowLatencyReceived received =
          group_.low_latency_dispatch(batch_.x, batch_.topk_idx, {.quantize = ep::Quantize::none})
              .receive();
      group_.low_latency_combine(received.x, batch_.topk_idx, batch_.weights, received.handle)
          .receive();
    });
  }

 private:
  static constexpr std::int32_t kTokens = 1, kHidden = 64, kExperts = 8, kTopK = 2;

  static World open(bool records) {
    Settings settings;
    settings.symmetric_size = std::size_t{64} << 20;
    settings.flight_entries = records ? settings.flight_entries : 0;
    settings.metrics = records ? "on" : "off";
    return World::open(
        {.settings = settings, .bootstrap = std::move(thread_bootstraps(1).front())});
  }
  static ep::GroupOptions options() {
    ep::GroupOptions options;
    options.max_tokens = options.low_latency_max_tokens = kTokens;
    options.hidden = kHidden;
    options.top_k = kTopK;
    options.experts = kExperts;
    options.preinitialize = true;
    return options;
  }
  /// Seconds of a call: the mean of a chain, of the fastest of several, as other work of the
  /// machine only adds to it.
  template <typename Body>
  static double fastest(Body body) {
    constexpr int kChains = 20, kCalls = 500;
    double best = 1;
    for (int chain = 0; chain < kChains; ++chain) {
      const Times start = now();
      for (int i = 0; i < kCalls; ++i) body();
      best = std::min(best, (now() - start).wall / kCalls);
    }
    return best;
  }

  World world_;
  ep::Group group_;
  const Batch batch_ = make_batch(
      {.tokens = kTokens, .hidden = kHidden, .top_k = kTopK, .experts = kExperts}, kTokens, 0, 0);
  const ep::Routing routing_ = group_.route(batch_.topk_idx);
};

class WaitsBench {
 public:
  WaitsBench(World& world, const Shape& shape, std::int64_t threads)
      : world_(world),
        shape_(shape),
        threads_(threads),
        batch_(make_batch(shape, shape.tokens, world.my_pe(), 0)) {}

  std::vector<Measurement> run() {
    measure_group();
    const std::int64_t n = shape_.iterations;
    measure("barrier", 4 * n, [&] { barrier(world_.team()); });
    std::array<std::byte, 8> mine{};
    measure("exchange of 8 B", n, [&] { exchange_bytes(world_.team(), mine); });
    measure_round_trip();
    measure("dispatch bf16", n, [&] { dispatch(); });
    measure("dispatch + combine bf16", n, [&] {
      const ep::Dispatched received = dispatch();
      group_->combine(received.x, received.handle);
    });
    measure("low-latency pair bf16", n, [&] {
      ep::LowLatencyReceived received =
          group_->low_latency_dispatch(batch_.x, batch_.topk_idx, {.quantize = ep::Quantize::none})
              .receive();
      group_->low_latency_combine(received.x, batch_.topk_idx, batch_.weights, received.handle)
          .receive();
    });
    group_.reset();
    measure_records();
    return std::move(measurements_);
  }

 private:
  /// The mean of `count` calls, after a few untimed ones. Processor time is that of a PE.
  template <typename Body>
  void measure(const std::string& name, std::int64_t count, Body body) {
    for (std::int64_t i = 0; i < shape_.dropped; ++i) body();
    barrier(world_.team());
    const Times start = now();
    for (std::int64_t i = 0; i < count; ++i) body();
    add(name, (now() - start) / static_cast<double>(count));
  }
  void add(const std::string& name, Times times) {
    times.cpu /= static_cast<double>(std::max<std::int64_t>(threads_, 1));
    measurements_.push_back({name, times, 0});
  }

  void measure_group() {
    ep::GroupOptions options;
    options.max_tokens = shape_.tokens;
    options.hidden = shape_.hidden;
    options.top_k = static_cast<std::int32_t>(shape_.top_k);
    options.experts = static_cast<std::int32_t>(shape_.experts);
    options.low_latency_max_tokens = shape_.tokens;
    options.preinitialize = true;
    barrier(world_.team());
    const Times start = now();
    group_.emplace(world_.team(), options);
    group_->warmup();
    add("group", now() - start);
  }

  /// What the flight record and the counters of a group cost (SHOAL_FLIGHT_ENTRIES,
  /// SHOAL_METRICS).
  void measure_records() {
    Alone with(true), without(false);
    const auto measured = [&](const char* name, double seconds) {
      measurements_.push_back({name, {.wall = seconds, .cpu = seconds}, 0});
    };
    measured("pair of one PE, records on", with.normal());
    measured("pair of one PE, records off", without.normal());
    measured("low-latency pair of one PE, records on", with.low_latency());
    measured("low-latency pair of one PE, records off", without.low_latency());
  }

  /// PEs 0 and 1 signal each other while the others block.
  void measure_round_trip() {
    const auto flag = world_.heap().allocate<std::uint64_t>(1);
    const Pe me = world_.my_pe();
    std::uint64_t round = 0;
    measure("round trip of PEs 0 and 1", 4 * shape_.iterations, [&] {
      ++round;
      if (me > 1 || world_.n_pes() == 1) return;
      if (me == 0) world_.signal_set(flag.on(1), round);
      world_.wait_until(flag.data(), Compare::greater_equal, round);
      if (me == 1) world_.signal_set(flag.on(0), round);
    });
  }

  ep::Dispatched dispatch() {
    ep::DispatchOptions options;
    options.weights = batch_.weights;
    return group_->dispatch(batch_.x, group_->route(batch_.topk_idx), options);
  }

  World& world_;
  const Shape shape_;
  const std::int64_t threads_;
  const Batch batch_;
  std::optional<ep::Group> group_;
  std::vector<Measurement> measurements_;
};

}  // namespace

void run_waits(World& world, const Shape& shape, std::int64_t threads, Times open,
               const std::string& json_path) {
  shape.validate(world.n_pes());
  Report report;
  report.program = "shoal-bench waits";
  report.basis = "none: the rows are times";
  report.pe = world.my_pe();
  report.pes = world.n_pes();
  describe(report, shape);
  report.setup.emplace_back("PEs are", threads > 0 ? "threads" : "processes");
  open.cpu /= static_cast<double>(std::max<std::int64_t>(threads, 1));
  std::vector<Measurement> measurements{{"World::open", open, 0}};
  for (Measurement& one : WaitsBench(world, shape, threads).run())
    measurements.push_back(std::move(one));
  publish(report, measurements, gather_through(world), json_path);
}

}  // namespace shoal::bench
