// SPDX-License-Identifier: Apache-2.0
// main.cpp: shoal-bench-nic, experiments on emulated NICs in virtual time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <fstream>
#include <string>
#include <vector>

#include "nic/studies.hpp"

namespace shoal::bench::nic {
namespace {

using emulator::Arbitration;
using emulator::Ordering;
using nlohmann::json;

struct Setting {
  Ordering ordering;
  std::uint32_t quantum;
  std::uint64_t buffer;
};

/// The fabrics in which creation orders are compared: without and with an incast limit (the buffer
/// of a switch port), by the number of packets that a NIC sends in a queue pair's turn.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const std::uint64_t buffer : {0ULL, 1ULL << 20, 256ULL << 10})
    for (const std::uint32_t quantum : {1U, 16U, 128U})
      all.push_back({Ordering::strict, quantum, buffer});
  for (const std::uint64_t buffer : {0ULL, 1ULL << 20})
    for (const std::uint32_t quantum : {1U, 16U, 128U})
      all.push_back({Ordering::adaptive, quantum, buffer});
  return all;
}

std::string name_of(Ordering ordering) {
  return ordering == Ordering::strict ? "strict" : "adaptive";
}

void print_header() {
  fmt::print(
      "{:>4} {:>8} {:>8} {:>7} {:>8} {:>4} | {:>8} {:>8} {:>8} {:>8} {:>6} {:>6} {:>8} {:>8} {:>6}\n",
      "PEs", "order", "tier", "quantum", "buffer K", "seed", "mean us", "p99 us", "end us",
      "GB/s PE", "Jain", "slow/f", "queue K", "dropped", "failed");
}

void print_row(const json& row) {
  const auto number = [&](const char* name) { return row[name].get<double>(); };
  fmt::print(
      "{:>4} {:>8} {:>8} {:>7} {:>8.0f} {:>4} | {:>8.1f} {:>8.1f} {:>8.1f} {:>8.1f} {:>6.3f} {:>6.3f} "
      "{:>8.0f} {:>8} {:>6}\n",
      number("pes"), row["order"].get<std::string>(),
      name_of(static_cast<Ordering>(row["ordering"].get<int>())), number("quantum"),
      number("port_bytes") / 1024, number("seed"), number("signal_mean_us"),
      number("signal_p99_us"), number("makespan_us"), number("gb_per_s_per_pe"), number("jain"),
      number("slowest_to_fastest"), number("most_queued_bytes") / 1024, number("dropped"),
      number("failed_pairs"));
}

json creation_order(const std::vector<std::uint32_t>& sizes, std::uint32_t seeds,
                    const std::vector<std::string>& tiers) {
  json rows = json::array();
  print_header();
  for (const std::uint32_t pes : sizes)
    for (const Setting& setting : settings()) {
      if (std::ranges::find(tiers, name_of(setting.ordering)) == tiers.end()) continue;
      for (std::uint32_t seed = 1; seed <= seeds; ++seed)
        for (const CreationOrder order : {CreationOrder::naive, CreationOrder::rotated}) {
          AllToAllOptions options;
          options.experts = std::max(256U, pes);
          options.seed = seed;
          options.mesh.pes = pes;
          options.mesh.order = order;
          options.mesh.ordering = setting.ordering;
          options.mesh.depth = 512;
          emulator::NetworkOptions& network = options.mesh.network;
          network.port_bytes = setting.buffer;
          network.paths = setting.ordering == Ordering::strict ? 1 : 4;
          network.path_skew = Time(200);
          network.seed = seed;
          network.nic.quantum = setting.quantum;
          rows.push_back(all_to_all(options));
          print_row(rows.back());
        }
    }
  return rows;
}

json signals() {
  json rows = json::array();
  for (const std::uint32_t bytes : {8U, 7392U, 65536U})
    for (const Ordering ordering : {Ordering::strict, Ordering::adaptive, Ordering::unordered}) {
      rows.push_back(put_with_signal(ordering, bytes, std::chrono::microseconds(2)));
      fmt::print("{}\n", rows.back().dump());
    }
  return rows;
}

/// Processor time that the simulation takes: 1 ms of all-to-all, 256 NICs.
json scale() {
  json rows = json::array();
  for (const Ordering ordering : {Ordering::strict, Ordering::adaptive}) {
    AllToAllOptions options;
    options.tokens = 820;
    options.mesh.pes = 256;
    options.mesh.ordering = ordering;
    options.mesh.network.paths = ordering == Ordering::strict ? 1 : 4;
    options.mesh.network.path_skew = Time(200);
    const auto start = std::chrono::steady_clock::now();
    const std::clock_t core = std::clock();
    const json result = all_to_all(options);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    rows.push_back({{"pes", 256},
                    {"ordering", result["ordering"]},
                    {"complete", result["complete"]},
                    {"makespan_us", result["makespan_us"]},
                    {"processor_s", static_cast<double>(std::clock() - core) / CLOCKS_PER_SEC},
                    {"seconds", took.count()}});
    fmt::print("{}\n", rows.back().dump());
  }
  return rows;
}

json receives() {
  json rows = json::array();
  for (const std::uint32_t senders : {4U, 16U})
    for (const bool shared : {false, true}) {
      rows.push_back(stalled_peer(shared, senders, 2000));
      fmt::print("{}\n", rows.back().dump());
    }
  return rows;
}

json posts() {
  json rows = json::array();
  const auto add = [&](std::uint32_t threads, bool shared, std::uint32_t chain) {
    rows.push_back(post_rate(threads, shared, chain));
    fmt::print("{}\n", rows.back().dump());
  };
  for (const std::uint32_t chain : {1U, 32U}) {
    add(1, false, chain);
    add(1, true, chain);
    add(4, true, chain);
  }
  return rows;
}

json fair() {
  json rows = json::array();
  for (const bool one_target : {false, true})
    for (const Arbitration arbitration :
         {Arbitration::by_number, Arbitration::random, Arbitration::oldest_doorbell})
      for (const std::uint32_t quantum : {1U, 16U}) {
        rows.push_back(fairness(arbitration, quantum, 16, one_target));
        fmt::print("{}\n", rows.back().dump());
      }
  return rows;
}

}  // namespace
}  // namespace shoal::bench::nic

int main(int argc, char** argv) try {
  using namespace shoal::bench::nic;
  CLI::App app("Experiments on emulated NICs in virtual time.", "shoal-bench-nic");
  std::vector<std::uint32_t> sizes{8, 16, 32, 64};
  std::uint32_t seeds = 3;
  std::vector<std::string> tiers{"strict", "adaptive"};
  std::string output;
  app.add_option("--pes", sizes, "numbers of PEs of the all-to-all")->capture_default_str();
  app.add_option("--seeds", seeds, "runs with different routing")->capture_default_str();
  app.add_option("--tiers", tiers, "orderings of the all-to-all")
      ->check(CLI::IsMember({"strict", "adaptive"}))
      ->capture_default_str();
  app.add_option("--json", output, "also write everything to this file");
  std::vector<std::string> studies{"order", "signals", "receives", "fairness"};
  app.add_option(
      "study", studies,
      "order, signals, receives, fairness, scale, posts; the first four without an argument");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json all = nlohmann::json::object();
  for (const std::string& study : studies) {
    const auto start = std::chrono::steady_clock::now();
    fmt::print("== {}\n", study);
    if (study == "order")
      all[study] = creation_order(sizes, seeds, tiers);
    else if (study == "signals")
      all[study] = signals();
    else if (study == "receives")
      all[study] = receives();
    else if (study == "fairness")
      all[study] = fair();
    else if (study == "scale")
      all[study] = scale();
    else if (study == "posts")
      all[study] = posts();
    else {
      fmt::print(
          stderr,
          "shoal-bench-nic: study is '{}'; allowed: order, signals, receives, fairness, scale, posts\n",
          study);
      return 2;
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print("({:.1f} s)\n", took.count());
  }
  if (!output.empty()) std::ofstream(output) << all.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "shoal-bench-nic: {}\n", error.what());
  return 1;
}
