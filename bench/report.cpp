// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/check.hpp"
#include "ep/host/rows/row_ops.hpp"

namespace shoal::bench {

std::string today() {
  const std::time_t time = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

namespace {

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

/// One operation over all PEs.
struct Row {
  std::string name;
  double min = 0, mean = 0, max = 0;  ///< seconds
  double bytes = 0;                   ///< per PE, mean
  double total_bytes = 0;
  double cpu = 0;  ///< seconds, mean

  double per_pe() const { return bytes / mean / 1e9; }
  double aggregate() const { return total_bytes / max / 1e9; }
};

std::vector<Row> over_all_pes(const Report& report, const std::vector<Measurement>& mine,
                              const std::vector<double>& all) {
  std::vector<Row> rows;
  for (std::size_t m = 0; m < mine.size(); ++m) {
    Row row{mine[m].name};
    int pes = 0;
    for (std::int32_t pe = 0; pe < report.pes; ++pe) {
      const double* const values =
          all.data() + 3 * (static_cast<std::size_t>(pe) * mine.size() + m);
      if (values[0] == 0) continue;
      row.min = pes == 0 ? values[0] : std::min(row.min, values[0]);
      row.max = std::max(row.max, values[0]);
      row.mean += values[0];
      row.total_bytes += values[1];
      row.cpu += values[2];
      ++pes;
    }
    row.mean /= pes;
    row.cpu /= pes;
    row.bytes = row.total_bytes / pes;
    rows.push_back(row);
  }
  return rows;
}

void print(const Report& report, const std::vector<Row>& rows) {
  fmt::print("{}: {} PEs", report.program, report.pes);
  for (const auto& [name, value] : report.setup) fmt::print(", {} {}", name, value);
  fmt::print("\nbytes: {}\n\n", report.basis);
  fmt::print("{:<44} {:>10} {:>10} {:>10} {:>8} {:>10} {:>11} {:>9} {:>9}\n", "operation",
             "mean us", "min us", "max us", "spread", "cpu us", "MB per PE", "GB/s PE", "GB/s all");
  for (const Row& row : rows) {
    fmt::print("{:<44} {:>10.2f} {:>10.2f} {:>10.2f} {:>7.1f}% {:>10.2f}", row.name, row.mean * 1e6,
               row.min * 1e6, row.max * 1e6, 100 * (row.max - row.min) / row.mean, row.cpu * 1e6);
    if (row.bytes > 0)
      fmt::print(" {:>11.3f} {:>9.2f} {:>9.2f}", row.bytes / 1e6, row.per_pe(), row.aggregate());
    fmt::print("\n");
  }
}

void write_json(const Report& report, const std::vector<Row>& rows, const std::string& path) {
  nlohmann::ordered_json json;
  json["program"] = report.program;
  json["pes"] = report.pes;
  for (const auto& [name, value] : report.setup) json["setup"][name] = value;
  json["basis"] = report.basis;
  for (const Row& row : rows) {
    nlohmann::ordered_json entry{
        {"name", row.name}, {"seconds", {{"mean", row.mean}, {"min", row.min}, {"max", row.max}}}};
    entry["cpu_seconds_per_pe"] = row.cpu;
    if (row.bytes > 0) {
      entry["bytes_per_pe"] = row.bytes;
      entry["gb_per_s_per_pe"] = row.per_pe();
      entry["gb_per_s_aggregate"] = row.aggregate();
    }
    json["results"].push_back(entry);
  }
  std::ofstream file(path);
  file << json.dump(2) << '\n';
  file.close();
  require(!file.fail(), Code::system, "cannot write the results to \"{}\" (--json)", path);
}

}  // namespace

void describe(Report& report, const Shape& shape) {
  const auto add = [&](const char* name, auto value) {
    report.setup.emplace_back(name, fmt::format("{}", value));
  };
  add("tokens", shape.tokens);
  add("hidden", shape.hidden);
  add("top-k", shape.top_k);
  add("experts", shape.experts);
  add("low-latency tokens", shape.low_latency_tokens);
  add("iterations", shape.iterations);
  add("cores", std::thread::hardware_concurrency());
  add("cpu", cpu_model());
  add("instructions", ep::host::instruction_set());
  add("date", today());
}

void publish(const Report& report, const std::vector<Measurement>& mine, const Gather& gather,
             const std::string& json_path) {
  std::vector<double> numbers;
  for (const Measurement& m : mine) {
    numbers.push_back(m.times.wall);
    numbers.push_back(m.bytes);
    numbers.push_back(m.times.cpu);
  }
  const std::vector<double> all = gather(numbers);
  if (report.pe != 0) return;
  const std::vector<Row> rows = over_all_pes(report, mine, all);
  print(report, rows);
  if (!json_path.empty()) write_json(report, rows, json_path);
}

}  // namespace shoal::bench
