// SPDX-License-Identifier: Apache-2.0
// Prints one line per result and writes one JSON file.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "base/check.hpp"
#include "gpu/bench.hpp"
#include "report.hpp"

namespace shoal::bench::gpu {

namespace {

nlohmann::ordered_json describe_gpu() {
  int device = 0, driver = 0, runtime = 0, count = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "finding this PE's GPU");
  check(cudaGetDeviceProperties(&properties, device), "asking for the GPU's properties");
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  check(cudaGetDeviceCount(&count), "counting GPUs");
  const auto version = [](int number) {
    return fmt::format("{}.{}", number / 1000, number % 1000 / 10);
  };
  return {{"gpu", properties.name},
          {"gpus", count},
          {"sms", properties.multiProcessorCount},
          {"l2_bytes", properties.l2CacheSize},
          {"driver_cuda", version(driver)},
          {"runtime_cuda", version(runtime)}};
}

double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

std::string in_words(const Labels& labels) {
  std::string text;
  for (const auto& [name, value] : labels.items())
    text +=
        fmt::format("{}{}{}", text.empty() ? "" : " ",
                    name == "operation" || name == "format" || name == "launch" ? "" : name + " ",
                    value.is_string() ? value.get<std::string>() : value.dump());
  return text;
}

}  // namespace

Results::Results(Peers& peers, const Options& options, const std::string& part)
    : peers_(peers), path_(options.json_path) {
  json_["program"] = "shoal-bench-gpu " + part;
  json_["date"] = today();
  json_["pes"] = peers.count();
  json_["machine"] = describe_gpu();
  json_["setup"] = {{"hidden", options.shape.hidden},   {"top_k", options.shape.top_k},
                    {"experts", options.shape.experts}, {"iterations", options.shape.iterations},
                    {"dropped", options.shape.dropped}, {"input_sets", kSets},
                    {"seed", options.shape.seed}};
  json_["basis"] =
      "logical: bytes of the rows that a PE receives, its own included; combine moves as many rows back. "
      "gb_per_s: mean bytes of the PEs over the time of the slowest. "
      "link_bytes_per_pe: over the NVLinks of a PE's GPU per operation of the chain, by its counters; "
      "raw: with headers, requests and responses";
  json_["results"] = nlohmann::ordered_json::array();
  if (peers.me() == 0)
    fmt::print("{}: {} PEs on {} x {}\n{:<70} {:>10} {:>10} {:>10} {:>8} {:>9} {:>9} {:>9}\n",
               json_["program"].get<std::string>(), peers.count(),
               json_["machine"]["gpus"].get<int>(), json_["machine"]["gpu"].get<std::string>(),
               "operation", "mean us", "min us", "max us", "spread", "GB/s", "link GB/s",
               "raw GB/s");
}

void Results::add(const Labels& labels, const Timing& timing, double bytes) {
  const LinkBytes links = timing.links.value_or(LinkBytes{});
  std::vector<double> mine{timing.mean, bytes, links[0], links[1], links[2], links[3]};
  const auto fixed = static_cast<std::ptrdiff_t>(mine.size());
  mine.insert(mine.end(), timing.samples.begin(), timing.samples.end());
  const std::vector<std::vector<double>> all = peers_.gather(mine);
  if (peers_.me() != 0) return;
  std::vector<double> times, samples;
  for (const std::vector<double>& pe : all) {
    times.push_back(pe[0]);
    samples.insert(samples.end(), pe.begin() + fixed, pe.end());
  }
  const auto mean_of = [&](std::size_t i) {
    double sum = 0;
    for (const std::vector<double>& pe : all) sum += pe[i];
    return sum / static_cast<double>(all.size());
  };
  const auto [least, most] = std::ranges::minmax(times);
  const double mean = mean_of(0), mean_bytes = mean_of(1);
  nlohmann::ordered_json entry = labels;
  entry["seconds"] = {
      {"mean", mean}, {"min", least}, {"max", most}, {"spread", (most - least) / mean}};
  if (!samples.empty()) {
    std::ranges::sort(samples);
    entry["samples"] = {{"count", samples.size()},
                        {"min", samples.front()},
                        {"median", quantile(samples, 0.5)},
                        {"p95", quantile(samples, 0.95)},
                        {"max", samples.back()}};
  }
  fmt::print("{:<70} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.1f}%", in_words(labels), mean * 1e6,
             least * 1e6, most * 1e6, 100 * (most - least) / mean);
  if (mean_bytes > 0) {
    entry["bytes_per_pe"] = mean_bytes;
    entry["gb_per_s"] = mean_bytes / most / 1e9;
    fmt::print(" {:>9.1f}", mean_bytes / most / 1e9);
  }
  if (timing.links &&
      peers_.count() <= json_["machine"]["gpus"].get<int>()) {  // else PEs share what is counted
    entry["link_bytes_per_pe"] = {{"sent", mean_of(2)},
                                  {"received", mean_of(3)},
                                  {"raw_sent", mean_of(4)},
                                  {"raw_received", mean_of(5)}};
    fmt::print("{:>{}} {:>9.1f} {:>9.1f}", "", mean_bytes > 0 ? 0 : 10,
               std::max(mean_of(2), mean_of(3)) / most / 1e9,
               std::max(mean_of(4), mean_of(5)) / most / 1e9);
  }
  fmt::print("\n");
  json_["results"].push_back(entry);
  save();
}

void Results::add_step(const std::string& name, double seconds) {
  add({{"operation", name}}, {.mean = seconds, .samples = {}, .links = {}}, 0);
}

void Results::note(const std::string& name, const nlohmann::ordered_json& value) {
  json_[name] = value;
  if (peers_.me() == 0) save();
}

void Results::save() const {
  std::fflush(stdout);
  if (path_.empty()) return;
  std::ofstream file(path_);
  file << json_.dump(1) << '\n';
  file.close();
  require(!file.fail(), Code::system, "cannot write the results to \"{}\" (--json)", path_);
}

}  // namespace shoal::bench::gpu
