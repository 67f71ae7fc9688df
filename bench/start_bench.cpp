// SPDX-License-Identifier: Apache-2.0
// start_bench.cpp: what the first pair of a process costs on the host, by cause.
//
// Resources: opening the world, by phase, and creating a group. Code loading: the first pair of the
// process minus the median of the first pairs of later groups, which find the code loaded and
// bound. Handshake and first touch: the rest over a steady pair; over a network it includes what
// the first messages cost. Each time is that of the slowest PE; all PEs start each step together.
// Inputs exist before the group, as those of a model do. Each mode has groups of its own, which
// stay open beside each other, so that none finds memory that an earlier one has touched.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <list>
#include <vector>

#include "base/check.hpp"
#include "shoal/collective.hpp"
#include "shoal/ep/group.hpp"
#include "shoal_bench.hpp"

namespace shoal::bench {

namespace {

constexpr int kGroups = 5, kCalls = 40, kSteadyFrom = 20;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class StartBench {
 public:
  StartBench(World& world, const Shape& shape, bool preinitialize)
      : world_(world),
        shape_(shape),
        preinitialize_(preinitialize),
        gather_(gather_through(world)) {}

  std::vector<Measurement> measurements;
  std::vector<std::pair<std::string, double>> notes;

  void add(const std::string& name, double seconds) {
    measurements.push_back({name, {seconds, 0}, 0});
  }

  void run(bool low_latency) {
    const std::string mode = low_latency ? "low latency" : "normal";
    std::vector<double> firsts, steadies;
    for (int which = 0; which < kGroups; ++which) {
      const std::vector<double> seconds = run_group(mode, low_latency, which == 0);
      firsts.push_back(seconds.front());
      steadies.push_back(median({seconds.begin() + kSteadyFrom, seconds.end()}));
    }
    for (ep::Group& group : groups_) group.close();
    groups_.clear();
    const double later = median({firsts.begin() + 1, firsts.end()}), steady = median(steadies);
    add(mode + ": first pair of the process", firsts.front());
    add(mode + ": first pair of a later group", later);
    add(mode + ": steady pair", steady);
    const auto split = [&](const char* cause, double seconds) {
      notes.emplace_back(fmt::format("{}: {}, us", mode, cause), 1e6 * seconds);
    };
    split("code loading", std::max(0.0, firsts.front() - later));
    split("handshake and first touch", std::max(0.0, later - steady));
    notes.emplace_back(mode + ": first pair of the process / steady pair", firsts.front() / steady);
    notes.emplace_back(mode + ": first pair of a later group / steady pair", later / steady);
  }

 private:
  /// The seconds of each pair of a new group.
  std::vector<double> run_group(const std::string& mode, bool low_latency, bool first) {
    ep::GroupOptions options;
    options.hidden = shape_.hidden;
    options.top_k = static_cast<std::int32_t>(shape_.top_k);
    options.experts = static_cast<std::int32_t>(shape_.experts);
    options.preinitialize = preinitialize_;
    const std::int64_t tokens = low_latency ? shape_.low_latency_tokens : shape_.tokens;
    (low_latency ? options.low_latency_max_tokens : options.max_tokens) = tokens;
    const Batch batch = make_batch(shape_, tokens, world_.my_pe(), 0);
    ep::Group& group = groups_.emplace_back();
    const double creation = slowest([&] { group = ep::Group(world_.team(), options); });
    if (first) add(mode + ": creation of the first group", creation);
    std::vector<double> seconds;
    for (int call = 0; call < kCalls; ++call)
      seconds.push_back(slowest([&] {
        if (low_latency)
          low_latency_pair(group, batch);
        else
          normal_pair(group, batch);
      }));
    return seconds;
  }

  static void normal_pair(ep::Group& group, const Batch& batch) {
    ep::DispatchOptions options;
    options.weights = batch.weights;
    const ep::Dispatched received = group.dispatch(batch.x, group.route(batch.topk_idx), options);
    group.combine(received.x, received.handle);
  }

  static void low_latency_pair(ep::Group& group, const Batch& batch) {
    ep::LowLatencyReceived received =
        group.low_latency_dispatch(batch.x, batch.topk_idx, {.quantize = ep::Quantize::none})
            .receive();
    group.low_latency_combine(received.x, batch.topk_idx, batch.weights, received.handle).receive();
  }

  /// Of the slowest PE; the same on all PEs.
  double slowest(const std::function<void()>& body) {
    barrier(world_.team());
    const Times start = now();
    body();
    return std::ranges::max(gather_({(now() - start).wall}));
  }

  World& world_;
  const Shape shape_;
  const bool preinitialize_;
  const Gather gather_;
  std::list<ep::Group> groups_;  ///< of a mode: open beside each other
};

}  // namespace

void run_start(World& world, const Shape& shape, bool preinitialize, Times open,
               const std::string& json_path) {
  shape.validate(world.n_pes());
  Report report = report_of(world, "shoal-bench start");
  report.basis = "none: the rows are times";
  describe(report, shape);
  report.setup.emplace_back("preinitialize", preinitialize ? "yes" : "no");
  StartBench bench(world, shape, preinitialize);
  bench.add("World::open", open.wall);
  for (const InitPhase& phase : world.init_phases())
    bench.add("World::open: " + phase.name, std::chrono::duration<double>(phase.duration).count());
  for (const bool low_latency : {false, true}) bench.run(low_latency);
  report.notes = bench.notes;
  publish(report, bench.measurements, gather_through(world), json_path);
}

}  // namespace shoal::bench
