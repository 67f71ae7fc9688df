// SPDX-License-Identifier: Apache-2.0
// main.cpp: shoal-bench-nic, experiments on emulated NICs in virtual time.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
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

json creation_order(const std::vector<std::uint32_t>& sizes, std::uint32_t seeds) {
  json rows = json::array();
  for (const std::uint32_t pes : sizes)
    for (const Setting& setting : settings()) {
      for (std::uint32_t seed = 1; seed <= seeds; ++seed)
        for (const CreationOrder order : {CreationOrder::naive, CreationOrder::rotated}) {
          AllToAllOptions options;
          options.experts = (std::max(256U, pes) + pes - 1) / pes * pes;
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
          fmt::print("{}\n", rows.back().dump());
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

json receives() {
  json rows = json::array();
  for (const std::uint32_t senders : {4U, 16U})
    for (const bool shared : {false, true}) {
      rows.push_back(stalled_peer(shared, senders, 2000));
      fmt::print("{}\n", rows.back().dump());
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
  std::string output;
  app.add_option("--pes", sizes, "numbers of PEs of the all-to-all")->capture_default_str();
  app.add_option("--seeds", seeds, "runs with different routing")->capture_default_str();
  app.add_option("--json", output, "also write everything to this file");
  const std::map<std::string, std::function<nlohmann::json()>> known{
      {"order", [&] { return creation_order(sizes, seeds); }},
      {"signals", signals},
      {"receives", receives},
      {"fairness", fair}};
  std::vector<std::string> studies{"order", "signals", "receives", "fairness"};
  app.add_option("study", studies, "order, signals, receives, fairness; all without an argument");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json all = nlohmann::json::object();
  for (const std::string& study : studies) {
    if (!known.contains(study)) {
      fmt::print(stderr,
                 "shoal-bench-nic: study is '{}'; allowed: order, signals, receives, fairness\n",
                 study);
      return 2;
    }
    const auto start = std::chrono::steady_clock::now();
    fmt::print("== {}\n", study);
    all[study] = known.at(study)();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    fmt::print("({:.1f} s)\n", took.count());
  }
  if (!output.empty()) std::ofstream(output) << all.dump(1) << "\n";
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "shoal-bench-nic: {}\n", error.what());
  return 1;
}
