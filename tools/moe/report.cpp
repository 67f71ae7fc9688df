// SPDX-License-Identifier: Apache-2.0
#include "moe/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "base/check.hpp"

namespace shoal::moe {

namespace {

constexpr std::size_t kMaxBars = 32;

const char* name_of(Mode mode) {
  return mode == Mode::normal ? "normal" : "low-latency";
}
const char* name_of(Backend backend) {
  return backend == Backend::cuda ? "cuda" : "host";
}
const char* name_of(RowFormat format) {
  return format == RowFormat::bf16 ? "bf16" : "fp8";
}

/// The median of every phase.
PhaseTimes median_times(const std::vector<PhaseTimes>& iterations) {
  PhaseTimes medians = iterations.front();
  for (std::size_t phase = 0; phase < medians.size(); ++phase) {
    std::vector<double> values;
    values.reserve(iterations.size());
    for (const PhaseTimes& times : iterations) values.push_back(times[phase].second);
    std::ranges::sort(values);
    medians[phase].second = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  }
  return medians;
}

/// Sum of all phases whose names start with the prefix.
double milliseconds(const PhaseTimes& times, std::string_view phase_prefix) {
  double sum = 0;
  for (const auto& [phase, time] : times)
    if (phase.starts_with(phase_prefix)) sum += time;
  return sum;
}

double gigabytes_per_second(std::int64_t bytes, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(bytes) / milliseconds * 1e-6 : 0;
}

double relative(double squared, double squared_reference) {
  return squared_reference > 0 ? std::sqrt(squared / squared_reference) : std::sqrt(squared);
}

void add(Check& all, const Check& one) {
  all.worst = std::max(all.worst, one.worst);
  all.squared_error += one.squared_error;
  all.squared_reference += one.squared_reference;
  all.tokens += one.tokens;
  all.misrouted += one.misrouted;
}

/// Without an even spread, the largest and the smallest number.
std::string experts_per_pe(const Shape& shape) {
  const std::int32_t most = shape.experts_of(0), fewest = shape.experts_of(shape.pes - 1);
  return most == fewest ? fmt::format("{}", most) : fmt::format("{} or {}", most, fewest);
}

std::string format_header(const Report& report) {
  const Shape& shape = report.shape;
  const Options& options = report.options;
  const std::string_view dot = options.ascii ? "," : " ·";
  return fmt::format(
      "shoal-moe: {} PE{}{}{dot} {} backend{dot} {} mode{dot} {} dispatch{dot} {} iteration{}\n"
      "{} tokens of {} channels{dot} {} experts ({} per PE) of width {}{dot} top-{} in {} of {} groups{dot} {}\n\n",
      shape.pes, shape.pes == 1 ? "" : "s",
      shape.nodes == 1 ? "" : fmt::format(" on {} nodes", shape.nodes), name_of(options.backend),
      name_of(options.mode), name_of(options.row_format), options.iterations,
      options.iterations == 1 ? "" : "s", shape.tokens, shape.hidden, shape.gate.experts,
      experts_per_pe(shape), shape.ffn, shape.gate.top_k, shape.gate.groups_kept, shape.gate.groups,
      options.router_file.empty() ? fmt::format("skew {:g}", options.skew)
                                  : fmt::format("routed by {}", options.router_file),
      fmt::arg("dot", dot));
}

/// The time of the slowest PE for every phase.
std::string format_phases(const Report& report) {
  std::string text;
  for (const auto& [phase, time] : report.all.times)
    text += fmt::format("{} {} {:.3f}", text.empty() ? "" : ",", phase, time);
  return fmt::format("phases, ms (slowest PE):{}{}\n", text,
                     report.options.on_gpu() ? "; after the gate on the GPU, between events" : "");
}

std::string format_check(const Report& report) {
  const std::optional<Check>& check = report.check;
  if (!check) return "check: skipped (--no-check)\n";
  std::string text = fmt::format(
      "check: {}: the largest error is {:.3f} of its bound; relative error {:.2e} (L2)\n"
      "       bound for every element: {}\n",
      report.passed() ? "passed" : "FAILED", check->worst,
      relative(check->squared_error, check->squared_reference),
      describe_tolerance(report.options, report.shape));
  if (check->tokens < report.shape.tokens)
    text += fmt::format("       of a sample: {} of {} tokens, evenly spaced on each PE\n",
                        check->tokens, report.shape.tokens);
  if (check->misrouted > 0)
    text += fmt::format("       {} counts of the routing differ\n", check->misrouted);
  return text;
}

/// The rows of the table. One bar stands for an expert, or for the largest of several neighbouring
/// experts if there are many. A full block is the largest load of all PEs.
class Table {
 public:
  explicit Table(const Report& report)
      : report_(report), largest_(std::ranges::max(report.all.expert_load)) {
    const std::size_t experts = report.pes.front().expert_load.size();  // the most of any PE
    run_ = (experts + kMaxBars - 1) / kMaxBars;
    bars_ = (experts + run_ - 1) / run_;
  }

  std::string head() const {
    const std::string bar_title =
        run_ == 1 ? "load per expert" : fmt::format("load, {} experts per bar", run_);
    const std::string scale =
        fmt::format("{} = {} tokens", report_.options.ascii ? "@" : "█", largest_);
    return fmt::format(
        "              -- rows --     {0:<{1}}     load   -- dispatch ---   experts   -- combine ----    error\n"
        " PE  tokens   sent    recv   {2:<{3}}  of mean       ms   GB/s        ms       ms   GB/s   of bound\n",
        bar_title, width(), scale, width());
  }

  std::string row(std::string_view name, const PeFigures& pe, std::string_view bars) const {
    return fmt::format(
        "{:>3} {:7} {:6} {:7}   {}{}  {:6.2f}x {:8.3f} {:>6} {:9.2f} {:8.3f} {:>6}   {:>8}\n", name,
        pe.tokens, pe.rows_sent, pe.rows_received, bars, std::string(width() - bars_, ' '), pe.load,
        pe.dispatch, rate(pe.dispatch_rate), pe.experts, pe.combine, rate(pe.combine_rate),
        report_.check ? fmt::format("{:.3f}", pe.error) : "-");
  }
  std::string rows() const {
    std::string text;
    for (std::size_t pe = 0; pe < report_.pes.size(); ++pe)
      text += row(fmt::format("{}", pe), report_.pes[pe], bars(report_.pes[pe].expert_load));
    return text + (report_.pes.size() > 1 ? row("all", report_.all, std::string(bars_, ' ')) : "");
  }

 private:
  std::size_t width() const { return std::max<std::size_t>(bars_, 22); }

  std::string bars(const std::vector<std::int64_t>& loads) const {
    static constexpr std::string_view kBlocks[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    static constexpr std::string_view kAscii[] = {" ", ".", ":", "-", "=", "+", "*", "#", "@"};
    std::string text;
    for (std::size_t first = 0; first < loads.size(); first += run_) {
      const std::span run = std::span(loads).subspan(first, std::min(run_, loads.size() - first));
      const std::int64_t level =
          largest_ == 0 ? 0 : (std::ranges::max(run) * 8 + largest_ - 1) / largest_;
      text += (report_.options.ascii ? kAscii : kBlocks)[level];
    }
    // PEs after the first may have fewer experts.
    return text + std::string(bars_ - (loads.size() + run_ - 1) / run_, ' ');
  }

  static std::string rate(double gigabytes) {
    return fmt::format("{:.{}f}", gigabytes, gigabytes < 100 ? 2 : 1);
  }

  const Report& report_;
  std::int64_t largest_;  // tokens of one expert
  std::size_t run_, bars_;
};

}  // namespace

Report gather_report(const Peers& peers, const Options& options, const Shape& shape,
                     const Layer& layer, const std::vector<PhaseTimes>& iterations,
                     const std::optional<Check>& check) {
  const PhaseTimes medians = median_times(iterations);
  std::vector<double> times;
  for (const auto& [phase, time] : medians) times.push_back(time);
  const Check mine = check.value_or(Check{});
  const auto all_checks = peers.gather<Check>({&mine, 1});
  const auto all_loads = peers.gather<std::int64_t>(layer.expert_load());
  const auto all_rows = peers.gather<std::int32_t>(layer.rows_to());
  const auto all_times = peers.gather<double>(times);

  Report report{options, shape, layer.dispatch_row_bytes(), {}, {}, {}};
  if (check) report.check.emplace();
  PeFigures& all = report.all;
  all.times = medians;
  const auto pes = static_cast<std::size_t>(shape.pes);
  const auto assignments = static_cast<double>(shape.tokens * shape.gate.top_k);
  for (std::size_t pe = 0; pe < pes; ++pe) {
    PeFigures one;
    const auto rank = static_cast<std::int32_t>(pe);
    one.tokens = shape.tokens_of(rank);
    for (std::size_t other = 0; other < pes; ++other) {
      one.rows_sent += all_rows[pe * pes + other];
      one.rows_received += all_rows[other * pes + pe];
    }
    one.expert_load.assign(all_loads.begin() + shape.first_expert(rank),
                           all_loads.begin() + shape.first_expert(rank + 1));
    const auto load = std::accumulate(one.expert_load.begin(), one.expert_load.end(), 0.0);
    one.load = assignments > 0 ? load * shape.pes / assignments : 0;
    one.times = medians;
    for (std::size_t phase = 0; phase < times.size(); ++phase) {
      one.times[phase].second = all_times[pe * times.size() + phase];
      all.times[phase].second = pe == 0
                                    ? one.times[phase].second
                                    : std::max(all.times[phase].second, one.times[phase].second);
    }
    one.dispatch = milliseconds(one.times, "dispatch");
    one.experts = milliseconds(one.times, "experts");
    one.combine = milliseconds(one.times, "combine");
    one.dispatch_rate =
        gigabytes_per_second(one.rows_received * report.dispatch_row_bytes, one.dispatch);
    one.combine_rate = gigabytes_per_second(one.rows_sent * 2 * shape.hidden, one.combine);
    one.error = all_checks[pe].worst;
    if (check) add(*report.check, all_checks[pe]);

    all.tokens += one.tokens;
    all.rows_sent += one.rows_sent;
    all.rows_received += one.rows_received;
    all.dispatch_rate += one.dispatch_rate;
    all.combine_rate += one.combine_rate;
    for (double PeFigures::* figure : {&PeFigures::load, &PeFigures::dispatch, &PeFigures::experts,
                                       &PeFigures::combine, &PeFigures::error})
      all.*figure = std::max(all.*figure, one.*figure);
    all.expert_load.push_back(one.expert_load.empty() ? 0 : std::ranges::max(one.expert_load));
    report.pes.push_back(std::move(one));
  }
  return report;
}

std::string format_table(const Report& report) {
  const Table table(report);
  return format_header(report) + table.head() + table.rows() + "\n" + format_phases(report) +
         format_check(report);
}

void write_json(const Report& report, const std::string& path) {
  using nlohmann::json;
  json pes = json::array();
  for (const PeFigures& one : report.pes)
    pes.push_back({{"pe", pes.size()},
                   {"tokens", one.tokens},
                   {"rows_sent", one.rows_sent},
                   {"rows_received", one.rows_received},
                   {"expert_load", one.expert_load},
                   {"phase_milliseconds", std::map(one.times.begin(), one.times.end())},
                   {"dispatch_gigabytes_per_second", one.dispatch_rate},
                   {"combine_gigabytes_per_second", one.combine_rate},
                   {"error_of_bound", report.check ? json(one.error) : json()}});
  const Options& options = report.options;
  const Shape& shape = report.shape;
  json document = {{"backend", name_of(options.backend)},
                   {"mode", name_of(options.mode)},
                   {"dtype", name_of(options.row_format)},
                   {"pes", shape.pes},
                   {"nodes", shape.nodes},
                   {"tokens", shape.tokens},
                   {"hidden", shape.hidden},
                   {"ffn", shape.ffn},
                   {"experts", shape.gate.experts},
                   {"groups", shape.gate.groups},
                   {"groups_kept", shape.gate.groups_kept},
                   {"top_k", shape.gate.top_k},
                   {"seed", options.seed},
                   {"skew", options.skew},
                   {"iterations", options.iterations},
                   {"dispatch_row_bytes", report.dispatch_row_bytes},
                   {"rows", report.all.rows_sent},
                   {"per_pe", pes},
                   {"passed", report.passed()},
                   {"check", nullptr}};
  if (const std::optional<Check>& check = report.check) {
    document["check"] = {
        {"tolerance", describe_tolerance(options, shape)},
        {"tokens", check->tokens},
        {"error_of_bound", check->worst},
        {"differing_values", check->misrouted},
        {"relative_error", relative(check->squared_error, check->squared_reference)}};
  }
  if (path == "-") {
    fmt::print("{}\n", document.dump(2));
    return;
  }
  std::ofstream file(path);
  file << document.dump(2) << "\n";
  file.close();
  if (!file) fail_errno("{}: cannot be written", path);
}

}  // namespace shoal::moe
