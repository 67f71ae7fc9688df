// gpu_start.cpp: where the first call's time goes (requirement B1).
//
// Resources: opening the world, by phase, and making a group. Code loading: the first call of the process less the
// first call of a second group of the same kind, which finds the code loaded. Handshake and first touch: what is left
// of that second group's first call over a steady one. Times are by the host's clock from a call to the end of its work
// on the GPU, the slowest PE's counting; all PEs start each call together. Without --no-warmup groups are made with
// preinitialize (or warmed up by a call), and first / steady is what that leaves over (B2). Inputs and output are there
// before the group is, as a model's are; the warm-up does not know them. A steady pair behind a pause says what of the
// first one is the pause alone.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include "base/check.hpp"
#include "gpu_bench.hpp"

namespace shoal::bench::gpu {

namespace {

constexpr int kCalls = 40, kSteadyFrom = 20, kMeetings = 100;
constexpr std::chrono::milliseconds kPauses[] = {std::chrono::milliseconds(1), std::chrono::milliseconds(300)};

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double used_gigabytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "asking for free memory");
  return static_cast<double>(total - free) * 1e-9;
}

class StartBench {
 public:
  StartBench(World& world, Peers& peers, const Options& options, Results& results)
      : world_(world), peers_(peers), options_(options), shape_(options.shape), results_(results) {}

  /// One group, made, called and closed; `which`: "first group" or "second group".
  void run(const std::string& which, bool low_latency) {
    const std::string name = std::string(low_latency ? "low latency, " : "normal, ") + which;
    ep::GroupOptions group_options = low_latency ? low_latency_options(options_, shape_.low_latency_tokens)
                                                 : normal_options(options_, shape_.tokens);
    group_options.preinitialize = options_.preinitialize;
    const std::int64_t tokens = low_latency ? shape_.low_latency_tokens : shape_.tokens;
    const DeviceBatch batch = make_device_batch(shape_, tokens, peers_, 0, stream_.get());
    const Tensor output = device_tensor(DataType::bfloat16, {tokens, shape_.hidden});
    const double used = used_gigabytes();
    ep::Group group;
    step(name + ": group creation", [&] { group = ep::Group(world_.team(), group_options); });
    if (options_.warmup && !options_.preinitialize) step(name + ": warm-up", [&] { group.warmup(); });
    results_.note(name + ": GPU memory, GB", used_gigabytes() - used);

    // Writing results has let threads sleep, on which what starts together depends.
    for (int i = 0; i < kMeetings; ++i) peers_.barrier();
    std::vector<double> seconds;
    for (int call = 0; call < kCalls; ++call) seconds.push_back(time_pair(group, batch, output, low_latency));
    std::vector<double> behind_pauses;
    for (const std::chrono::milliseconds pause : kPauses) {
      std::this_thread::sleep_for(pause);
      behind_pauses.push_back(time_pair(group, batch, output, low_latency));
    }
    group.close();

    double steady = 0;
    for (int call = kSteadyFrom; call < kCalls; ++call)
      steady += seconds[static_cast<std::size_t>(call)] / (kCalls - kSteadyFrom);
    results_.add_step(name + ": first pair", seconds[0]);
    results_.add_step(name + ": second pair", seconds[1]);
    results_.add_step(name + ": steady pair", steady);
    first_[which] = seconds[0];
    steady_ = steady;
    for (std::size_t i = 0; i < std::size(kPauses); ++i)
      results_.add_step(name + fmt::format(": pair behind {} ms of nothing", kPauses[i].count()), behind_pauses[i]);
    results_.note(name + ": first / steady", seconds[0] / steady);
  }

  /// After both groups.
  void split(const std::string& mode) {
    results_.note(mode + ": split of the first pair, us",
                  {{"code loading", 1e6 * (first_["first group"] - first_["second group"])},
                   {"handshake and first touch", 1e6 * (first_["second group"] - steady_)},
                   {"steady", 1e6 * steady_}});
  }

 private:
  void step(const std::string& name, const std::function<void()>& body) {
    peers_.barrier();
    const double start = now_seconds();
    body();
    check(cudaDeviceSynchronize(), "waiting for a step");
    results_.add_step(name, now_seconds() - start);
  }

  /// Of the slowest PE.
  double time_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output, bool low_latency) {
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

  void normal_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output, const ep::Launch& launch) {
    ep::DispatchOptions dispatch;
    dispatch.weights = batch.weights;
    dispatch.worst_case_rows = shape_.tokens * peers_.count();
    dispatch.launch = launch;
    const ep::Dispatched received = group.dispatch(batch.x, group.route(batch.topk_idx, launch), dispatch);
    ep::CombineOptions combine;
    combine.out = output;
    combine.launch = launch;
    group.combine(received.x, received.handle, combine);
  }

  void low_latency_pair(ep::Group& group, const DeviceBatch& batch, const TensorView& output,
                        const ep::Launch& launch) {
    ep::LowLatencyDispatchOptions dispatch;
    dispatch.weights = batch.weights;
    dispatch.launch = launch;
    const ep::LowLatencyReceived received = group.low_latency_dispatch(batch.x, batch.topk_idx, dispatch).receive();
    ep::LowLatencyCombineOptions combine;
    combine.zero_copy = true;
    combine.out = output;
    combine.launch = launch;
    group.low_latency_combine(group.next_combine_buffer(), batch.topk_idx, batch.weights, received.handle, combine)
        .receive();
  }

  World& world_;
  Peers& peers_;
  const Options& options_;
  const Shape shape_;
  Results& results_;
  const Stream stream_;
  std::map<std::string, double> first_;
  double steady_ = 0;
};

}  // namespace

void run_start(World& world, Peers& peers, const Options& options, double world_seconds) {
  Results results(peers, options, "start");
  results.note("warm-up", options.warmup);
  results.note("preinitialize", options.preinitialize);
  results.add_step("world open", world_seconds);
  for (const InitPhase& phase : world.init_phases())
    results.add_step("world open: " + phase.name, std::chrono::duration<double>(phase.duration).count());
  StartBench bench(world, peers, options, results);
  for (const bool low_latency : {false, true}) {
    for (const char* which : {"first group", "second group"}) bench.run(which, low_latency);
    bench.split(low_latency ? "low latency" : "normal");
  }
}

}  // namespace shoal::bench::gpu
