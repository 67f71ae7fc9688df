// SPDX-License-Identifier: Apache-2.0
// start.cpp: what the first call of a group costs, by cause.
//
// Resources: opening the world, by phase, and creating a group. Code loading: the first call of the
// process minus the median of the first calls of later groups of the same kind, which find the code
// loaded. Handshake and first touch: the rest over a steady call. Times are the host's, from a call
// to the end of its work on the GPU, of the slowest PE; all PEs start each call together. Without
// --no-warmup, groups are created with preinitialize or warmed up by a call; first / steady then
// shows what remains. Inputs and outputs exist before the group, as those of a model do; the
// warm-up does not use them. The first pair directly follows the warm-up.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "base/check.hpp"
#include "gpu/bench.hpp"

namespace shoal::bench::gpu {

namespace {

constexpr int kGroups = 6, kCalls = 40, kSteadyFrom = 20;

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double used_gigabytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<double>(total - free) * 1e-9;
}

class StartBench {
 public:
  StartBench(World& world, Peers& peers, const Options& options, Results& results)
      : world_(world), peers_(peers), options_(options), shape_(options.shape), results_(results) {
    if (options.formats.size() != 1) return;
    format_ = std::ranges::find(kFormats, options.formats.front(), &RowFormat::name);
    const std::int64_t rows = shape_.tokens * peers.count();
    expert_output_ =
        world.heap().allocate<std::uint16_t>(static_cast<std::size_t>(rows * shape_.hidden));
    output_view_ = TensorView(expert_output_.data(), DataType::bfloat16, {rows, shape_.hidden});
    output_view_.device = world.heap().device();
    results.note("format", format_->name);
  }

  static const char* mode_of(bool low_latency) { return low_latency ? "low latency" : "normal"; }

  /// One group, made, called and closed; `which`: from 0.
  void run(int which, bool low_latency) {
    const std::string name = fmt::format("{}, group {}", mode_of(low_latency), which + 1);
    ep::GroupOptions group_options = low_latency
                                         ? low_latency_options(options_, shape_.low_latency_tokens)
                                         : normal_options(options_, shape_.tokens);
    group_options.preinitialize = options_.preinitialize;
    const std::int64_t tokens = low_latency ? shape_.low_latency_tokens : shape_.tokens;
    const DeviceBatch batch = make_device_batch(shape_, tokens, peers_, 0, stream_.get());
    const Tensor output = device_tensor(DataType::bfloat16, {tokens, shape_.hidden});
    if (low_latency && !low_latency_output_.defined()) make_low_latency_output();
    const double used = used_gigabytes();
    ep::Group group;
    const double creation = seconds_of([&] { group = ep::Group(world_.team(), group_options); });
    double warmup = 0;
    if (options_.warmup && !options_.preinitialize) warmup = seconds_of([&] { group.warmup(); });
    // Nothing in between: after a pause a pair takes longer, whichever it is.
    std::vector<double> seconds;
    for (int call = 0; call < kCalls; ++call)
      seconds.push_back(time_pair(group, batch, output, low_latency));
    results_.add_step(name + ": group creation", creation);
    if (warmup > 0) results_.add_step(name + ": warm-up", warmup);
    results_.note(name + ": GPU memory, GB", used_gigabytes() - used);
    const ep::SizeHint hint = ep::size_hint(group_options, peers_.count(), DeviceKind::cuda);
    results_.note(name + ": size hint, GB", static_cast<double>(hint.total() + hint.results) / 1e9);
    group.close();

    double steady = 0;
    for (int call = kSteadyFrom; call < kCalls; ++call)
      steady += seconds[static_cast<std::size_t>(call)] / (kCalls - kSteadyFrom);
    results_.add_step(name + ": first pair", seconds[0]);
    results_.add_step(name + ": second pair", seconds[1]);
    results_.add_step(name + ": steady pair", steady);
    firsts_.push_back(seconds[0]);
    ratios_.push_back(seconds[0] / steady);
    steadies_.push_back(steady);
    results_.note(name + ": first / steady", seconds[0] / steady);
  }

  /// After all groups of a mode.
  void sum_up(const std::string& mode) {
    const double of_others = median({firsts_.begin() + 1, firsts_.end()}),
                 steady = median(steadies_);
    results_.note(mode + ": split of the first pair, us",
                  {{"code loading", 1e6 * (firsts_[0] - of_others)},
                   {"handshake and first touch", 1e6 * (of_others - steady)},
                   {"steady", 1e6 * steady}});
    results_.note(mode + ": first / steady, median of the groups", median(ratios_));
    results_.add_step(mode + ": first pair, median of the groups", median(firsts_));
  }

 private:
  /// The output of the experts exists before the group, as that of a model does.
  void make_low_latency_output() {
    const std::int64_t pes = peers_.count(), experts = (shape_.experts + pes - 1) / pes;
    low_latency_output_ = device_tensor(DataType::bfloat16,
                                        {experts, pes * shape_.low_latency_tokens, shape_.hidden});
    check(cudaMemset(low_latency_output_.data, 0, low_latency_output_.bytes()), "expert output");
  }

  double seconds_of(const std::function<void()>& body) {
    peers_.barrier();
    const double start = now_seconds();
    body();
    check(cudaDeviceSynchronize(), "waiting for a step");
    return now_seconds() - start;
  }

  /// Returns the time of the slowest PE.
  double time_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output,
                   bool low_latency) {
    ep::Launch launch;
    launch.stream = stream_.get();
    peers_.barrier();
    const double start = now_seconds();
    if (low_latency)
      low_latency_pair(group, batch, output, launch);
    else
      normal_pair(group, batch, output, launch);
    group.synchronize();
    check(cudaStreamSynchronize(stream_.get()), "waiting for a pair");
    const double mine = now_seconds() - start;
    double slowest = 0;
    for (const std::vector<double>& pe : peers_.gather({mine})) slowest = std::max(slowest, pe[0]);
    return slowest;
  }

  void normal_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output,
                   const ep::Launch& launch) {
    ep::DispatchOptions dispatch;
    dispatch.weights = batch.weights;
    dispatch.worst_case_rows = shape_.tokens * peers_.count();
    dispatch.launch = launch;
    if (format_ != nullptr) dispatch.quantize = format_->quantize;
    const ep::Dispatched received =
        group.dispatch(batch.x, group.route(batch.topk_idx, launch), dispatch);
    ep::CombineOptions combine;
    combine.out = output;
    combine.launch = launch;
    const bool encoded = dispatch.quantize != ep::Quantize::none;
    group.combine(encoded ? output_view_ : TensorView(received.x), received.handle, combine);
  }

  void low_latency_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output,
                        const ep::Launch& launch) {
    ep::LowLatencyDispatchOptions dispatch;
    dispatch.weights = batch.weights;
    dispatch.launch = launch;
    if (format_ != nullptr) dispatch.quantize = format_->quantize;
    const ep::LowLatencyReceived received =
        group.low_latency_dispatch(batch.x, batch.topk_idx, dispatch).receive();
    ep::LowLatencyCombineOptions combine;
    combine.out = output;
    combine.launch = launch;
    group
        .low_latency_combine(low_latency_output_, batch.topk_idx, batch.weights, received.handle,
                             combine)
        .receive();
  }

  World& world_;
  Peers& peers_;
  const Options& options_;
  const Shape shape_;
  const RowFormat* format_ = nullptr;            ///< of --format
  SymmetricArray<std::uint16_t> expert_output_;  ///< where rows arrive in that format
  TensorView output_view_;                       ///< of expert_output_
  Tensor low_latency_output_;
  Results& results_;
  const Stream stream_;
  std::vector<double> firsts_, steadies_, ratios_;  ///< of the groups of a mode
};

}  // namespace

void run_start(World& world, Peers& peers, const Options& options, double world_seconds) {
  Results results(peers, options, "start");
  results.note("warm-up", options.warmup);
  results.note("preinitialize", options.preinitialize);
  results.add_step("world open", world_seconds);
  for (const InitPhase& phase : world.init_phases())
    results.add_step("world open: " + phase.name,
                     std::chrono::duration<double>(phase.duration).count());
  for (const bool low_latency : {false, true}) {
    StartBench bench(world, peers, options, results);
    for (int which = 0; which < kGroups; ++which) bench.run(which, low_latency);
    bench.sum_up(StartBench::mode_of(low_latency));
  }
}

}  // namespace shoal::bench::gpu
