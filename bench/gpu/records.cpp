// SPDX-License-Identifier: Apache-2.0
// records.cpp: what records cost (SHOAL_METRICS): pairs of low-latency mode by tokens, and of
// normal mode, of groups in turn that count all, count by default, and have no record at all.
//
// A row of the results is the median over the rounds; its samples are the means of the chains.
#include <algorithm>
#include <deque>

#include "base/check.hpp"
#include "gpu/bench.hpp"
#include "shoal/observe.hpp"

namespace shoal::bench::gpu {
namespace {

constexpr int kRounds = 9;

class Side {
 public:
  Side(World& world, Peers& peers, const Options& options, const char* counting)
      : metrics(counting),
        peers_(peers),
        shape_(options.shape),
        sms_(options.main_sms),
        low_latency_(world.team(), low_latency_options(options, shape_.low_latency_tokens)),
        normal_(world.team(), normal_options(options, shape_.tokens)),
        output_(device_tensor(DataType::bfloat16, {shape_.tokens, shape_.hidden})) {
    for (std::int32_t set = 0; set < kSets; ++set) {
      batches_.push_back(make_device_batch(shape_, shape_.tokens, peers, set, stream_.get()));
      routings_.push_back(normal_.route(batches_.back().topk_idx, launch()));
    }
    low_latency_.warmup();
    normal_.warmup();
  }

  double low_latency(std::int64_t tokens, bool graph) {
    return timed(graph, [&](std::int64_t i) {
      const DeviceBatch& batch = batches_[static_cast<std::size_t>(i % kSets)];
      ep::LowLatencyDispatchOptions dispatch;
      dispatch.quantize = ep::Quantize::fp8;
      dispatch.launch = launch();
      dispatch.launch.sms = 0;
      dispatch.defer_receive = false;
      const TensorView topk_idx = first_rows(batch.topk_idx, tokens);
      const ep::LowLatencyReceived received =
          low_latency_.low_latency_dispatch(first_rows(batch.x, tokens), topk_idx, dispatch)
              .receive();
      ep::LowLatencyCombineOptions combine;
      combine.zero_copy = true;
      combine.out = first_rows(output_, tokens);
      combine.launch = dispatch.launch;
      combine.defer_receive = false;
      low_latency_
          .low_latency_combine(low_latency_.next_combine_buffer(), topk_idx,
                               first_rows(batch.weights, tokens), received.handle, combine)
          .receive();
    });
  }

  double normal() {
    return timed(false, [&](std::int64_t i) {
      const auto set = static_cast<std::size_t>(i % kSets);
      ep::DispatchOptions dispatch;
      dispatch.weights = batches_[set].weights;
      dispatch.worst_case_rows = shape_.tokens * peers_.count();
      dispatch.launch = launch();
      const ep::Dispatched received = normal_.dispatch(batches_[set].x, routings_[set], dispatch);
      ep::CombineOptions combine;
      combine.out = output_;
      combine.launch = launch();
      (void)normal_.combine(received.x, received.handle, combine);
    });
  }

  void close() {
    routings_.clear();
    low_latency_.close();
    normal_.close();
  }

  const char* const metrics;

 private:
  ep::Launch launch() const {
    return {.stream = stream_.get(), .after = nullptr, .done = nullptr, .sms = sms_};
  }
  double timed(bool graph, const Operation& operation) {
    const auto finish = [&] {
      low_latency_.synchronize();
      normal_.synchronize();
      check(cudaStreamSynchronize(stream_.get()), "waiting for a chain");
    };
    return (graph ? time_graph : time_chain)(peers_, stream_.get(), shape_, operation, finish).mean;
  }

  Peers& peers_;
  const Shape shape_;
  const std::int32_t sms_;
  const Stream stream_;
  ep::Group low_latency_, normal_;
  const Tensor output_;
  std::vector<DeviceBatch> batches_;
  std::vector<ep::Routing> routings_;
};

/// All sides in turn; each round begins with the next one.
void compare(std::deque<Side>& sides, Results& results, const Labels& labels,
             const std::function<double(Side&)>& measure) {
  std::vector<Timing> timings(sides.size());
  for (int round = 0; round < kRounds; ++round)
    for (std::size_t turn = 0; turn < sides.size(); ++turn) {
      const std::size_t side = (turn + static_cast<std::size_t>(round)) % sides.size();
      timings[side].samples.push_back(measure(sides[side]));
    }
  for (std::size_t side = 0; side < sides.size(); ++side) {
    std::vector<double> sorted = timings[side].samples;
    std::ranges::sort(sorted);
    timings[side].mean = sorted[sorted.size() / 2];
    Labels all = labels;
    all["metrics"] = sides[side].metrics;
    results.add(all, timings[side], 0);
  }
}

/// What the kernels of this PE have counted, and their last launches.
void note_records(Results& results, const Peers& peers) {
  for (const observe::PeRecord& pe : observe::read_process()) {
    if (pe.pe != peers.me()) continue;
    const auto groups = nlohmann::ordered_json::parse(observe::to_json(pe)).at("groups");
    for (std::size_t i = 0; i < pe.groups.size(); ++i)
      if (!pe.groups[i].launches.empty())
        results.note("record of group " + std::to_string(pe.groups[i].number), groups.at(i));
  }
}

}  // namespace

void run_records(Settings settings, std::span<const std::shared_ptr<Bootstrap>> bootstraps,
                 Peers& peers, const Options& options) {
  constexpr const char* kMetrics[kRecordsWorlds] = {"all", "on", "no record"};
  std::deque<World> worlds;
  std::deque<Side> sides;
  for (std::size_t i = 0; i < kRecordsWorlds; ++i) {
    const bool records = i + 1 < kRecordsWorlds;
    settings.metrics = records ? kMetrics[i] : "off";
    settings.flight_entries = records ? Settings{}.flight_entries : 0;
    worlds.push_back(World::open({settings, bootstraps[i]}));
    sides.emplace_back(worlds.back(), peers, options, kMetrics[i]);
  }
  Results results(peers, options, "records");
  for (const std::int64_t tokens : options.tokens)
    for (const bool graph : {false, true})
      compare(sides, results,
              {{"operation", "low-latency pair"},
               {"launch", graph ? "graph" : "plain"},
               {"tokens", tokens}},
              [&](Side& side) { return side.low_latency(tokens, graph); });
  compare(
      sides, results,
      {{"operation", "dispatch + combine"}, {"launch", "plain"}, {"tokens", options.shape.tokens}},
      [&](Side& side) { return side.normal(); });
  note_records(results, peers);
  for (Side& side : sides) side.close();
  sides.clear();
  for (World& world : worlds) world.close();
}

}  // namespace shoal::bench::gpu
