// SPDX-License-Identifier: Apache-2.0
#include "nic/studies.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "engine/big_endian.hpp"

namespace shoal::bench::nic {
namespace {

using emulator::Arbitration;
using emulator::Ordering;
using emulator::QpState;
using nlohmann::json;

double microseconds(Time time) {
  return static_cast<double>(time.count()) / 1000;
}

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1))];
}

double mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

/// Jain's index: 1 where all values are equal, 1/n where one has all.
double jain(const std::vector<double>& values) {
  double sum = 0, squares = 0;
  for (const double value : values) {
    sum += value;
    squares += value * value;
  }
  return squares == 0 ? 1 : sum * sum / (static_cast<double>(values.size()) * squares);
}

/// Peers of `pe` in the order in which a program posts to them.
std::vector<std::uint32_t> peers_of(const MeshOptions& mesh, std::uint32_t pe) {
  std::vector<std::uint32_t> peers;
  for (std::uint32_t i = 0; i < mesh.pes; ++i)
    peers.push_back(mesh.order == CreationOrder::rotated ? (i + 1 + pe) % mesh.pes : i);
  return peers;
}

/// Posts a dispatch of `pe`: distinct random experts for every token.
void post_dispatch(Mesh& mesh, const AllToAllOptions& options, std::uint32_t pe,
                   std::mt19937_64& random) {
  const std::uint32_t per_pe = options.experts / options.mesh.pes;
  std::vector<std::uint32_t> experts(options.experts);
  std::iota(experts.begin(), experts.end(), 0U);
  for (std::uint32_t token = 0; token < options.tokens; ++token) {
    for (std::uint32_t k = 0; k < options.top_k; ++k) {
      std::swap(experts[k], experts[k + random() % (options.experts - k)]);
      const std::uint32_t peer = experts[k] / per_pe;
      if (peer != pe)
        mesh.write(pe, peer, experts[k] % per_pe % options.mesh.lanes, options.message_bytes);
    }
  }
  for (std::uint32_t peer = 0; peer < options.mesh.pes; ++peer)
    for (std::uint32_t lane = 0; lane < options.mesh.lanes && peer != pe; ++lane)
      mesh.signal(pe, peer, lane);
}

json describe(const AllToAllOptions& options) {
  const MeshOptions& mesh = options.mesh;
  return {{"pes", mesh.pes},
          {"lanes", mesh.lanes},
          {"order", mesh.order == CreationOrder::rotated ? "rotated" : "naive"},
          {"ordering", static_cast<int>(mesh.ordering)},
          {"arbitration", static_cast<int>(mesh.network.nic.arbitration)},
          {"quantum", mesh.network.nic.quantum},
          {"port_bytes", mesh.network.port_bytes},
          {"tokens", options.tokens},
          {"message_bytes", options.message_bytes},
          {"start_skew_us", options.start_skew_us},
          {"seed", options.seed}};
}

}  // namespace

json all_to_all(const AllToAllOptions& options) {
  Mesh mesh(options.mesh);
  const std::uint32_t n = options.mesh.pes;
  std::mt19937_64 random(options.seed);
  std::vector<std::pair<Time, std::uint32_t>> starts;
  for (std::uint32_t pe = 0; pe < n; ++pe) {
    post_dispatch(mesh, options, pe, random);
    const double skew = std::uniform_real_distribution<>(0, options.start_skew_us)(random);
    starts.emplace_back(Time(static_cast<std::int64_t>(skew * 1000)), pe);
  }
  std::sort(starts.begin(), starts.end());
  for (const auto& [time, pe] : starts) {
    mesh.network().run_until([] { return false; }, time);
    mesh.ring(pe, peers_of(options.mesh, pe));
  }
  const bool done = mesh.network().run_until(
      [&] { return mesh.signals_arrived() == mesh.signals_posted(); }, std::chrono::seconds(10));
  mesh.count_failures();

  std::vector<double> latencies, rates, ends(n);
  std::uint64_t bytes = 0;
  for (std::uint32_t from = 0; from < n; ++from)
    for (std::uint32_t to = 0; to < n; ++to)
      for (std::uint32_t lane = 0; lane < options.mesh.lanes && from != to; ++lane) {
        const Mesh::Arrival& arrival = mesh.arrival(from, to, lane);
        bytes += arrival.bytes;
        if (arrival.signal == Time{0}) {  // the connection failed
          rates.push_back(0);
          continue;
        }
        const double latency = microseconds(arrival.signal);
        latencies.push_back(latency);
        ends[to] = std::max(ends[to], latency);
        if (arrival.bytes != 0) rates.push_back(static_cast<double>(arrival.bytes) / latency);
      }
  std::uint64_t resent = 0, timeouts = 0;
  for (std::uint32_t pe = 0; pe < n; ++pe) {
    const emulator::Counters counters = mesh.network().nic(pe).counters();
    resent += counters.resent;
    timeouts += counters.timeouts;
  }
  const double makespan = quantile(ends, 1);
  json result = describe(options);
  result.update({{"complete", done},
                 {"makespan_us", makespan},
                 {"signal_mean_us", mean(latencies)},
                 {"signal_median_us", quantile(latencies, 0.5)},
                 {"signal_p99_us", quantile(latencies, 0.99)},
                 {"first_pe_us", quantile(ends, 0)},
                 {"gb_per_s_per_pe", static_cast<double>(bytes) / n / makespan / 1000},
                 {"jain", jain(rates)},
                 {"slowest_to_fastest", quantile(rates, 0) / quantile(rates, 1)},
                 {"most_queued_bytes", mesh.network().statistics().most_queued},
                 {"dropped", mesh.network().statistics().overflowed},
                 {"resent", resent},
                 {"timeouts", timeouts},
                 {"failed_pairs", mesh.failed_pairs()}});
  return result;
}

json put_with_signal(Ordering ordering, std::uint32_t bytes, Time latency) {
  MeshOptions options{.pes = 2, .ordering = ordering, .network = {.latency = latency, .paths = 4}};
  Mesh mesh(options);
  mesh.write(0, 1, 0, bytes);
  mesh.signal(0, 1, 0);
  mesh.ring(0, {1});
  mesh.network().run_until([&] { return mesh.signals_arrived() == 1; });
  const Mesh::Arrival& arrival = mesh.arrival(0, 1, 0);
  return {{"ordering", static_cast<int>(ordering)},
          {"bytes", bytes},
          {"one_way_us", microseconds(latency)},
          {"data_us", microseconds(arrival.last_data)},
          {"signal_us", microseconds(arrival.signal)}};
}

json fairness(Arbitration arbitration, std::uint32_t quantum, std::uint32_t queue_pairs,
              bool one_target) {
  constexpr Time kDuration = std::chrono::microseconds(400);
  constexpr std::uint32_t kDepth = 1024;
  MeshOptions options;
  options.pes = one_target ? 2 : queue_pairs + 1;
  options.lanes = one_target ? queue_pairs : 1;
  options.depth = kDepth;
  options.network.nic.arbitration = arbitration;
  options.network.nic.quantum = quantum;
  Mesh mesh(options);
  std::vector<std::uint32_t> peers;
  for (std::uint32_t i = 0; i < queue_pairs; ++i) {
    const std::uint32_t peer = one_target ? 1 : i + 1, lane = one_target ? i : 0;
    if (!one_target || i == 0) peers.push_back(peer);
    // Every other queue pair has short messages.
    for (std::uint32_t k = 0; k < kDepth - 1; ++k)
      mesh.write(0, peer, lane, i % 2 == 0 ? 7392 : 256);
  }
  mesh.ring(0, peers);
  mesh.network().run_until([] { return false; }, kDuration);
  std::vector<double> long_rates, short_rates;
  for (std::uint32_t i = 0; i < queue_pairs; ++i) {
    const auto& arrival = one_target ? mesh.arrival(0, 1, i) : mesh.arrival(0, i + 1, 0);
    (i % 2 == 0 ? long_rates : short_rates)
        .push_back(static_cast<double>(arrival.bytes) / microseconds(kDuration) / 1000);
  }
  std::vector<double> all = long_rates;
  all.insert(all.end(), short_rates.begin(), short_rates.end());
  return {{"arbitration", static_cast<int>(arbitration)},
          {"quantum", quantum},
          {"queue_pairs", queue_pairs},
          {"targets", one_target ? 1U : queue_pairs},
          {"gb_per_s_long", mean(long_rates)},
          {"gb_per_s_short", mean(short_rates)},
          {"jain_long", jain(long_rates)},
          {"jain_all", jain(all)},
          {"slowest_to_fastest", quantile(all, 0) / quantile(all, 1)}};
}

}  // namespace shoal::bench::nic
