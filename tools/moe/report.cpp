// SPDX-License-Identifier: Apache-2.0
#include "moe/report.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
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
const char* name_of(const std::optional<Backend>& backend) {
  return backend == Backend::cuda ? "cuda" : "host";
}
const char* name_of(RowFormat format) {
  return format == RowFormat::bf16 ? "bf16" : "fp8";
}

double gigabytes_per_second(std::int64_t bytes, double milliseconds) {
  return milliseconds > 0 ? static_cast<double>(bytes) / milliseconds * 1e-6 : 0;
}

template <typename T>
T sum(const Report& report, T PeFigures::* figure) {
  return std::accumulate(report.pes.begin(), report.pes.end(), T{},
                         [&](T so_far, const PeFigures& pe) { return so_far + pe.*figure; });
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

std::int64_t sum_of(const std::vector<std::int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), std::int64_t{0});
}

double relative(double squared, double squared_reference) {
  return squared_reference > 0 ? std::sqrt(squared / squared_reference) : std::sqrt(squared);
}

/// The checks of all PEs combined.
std::optional<Check> merged_check(const Report& report) {
  if (!report.pes.front().check) return std::nullopt;
  Check all;
  for (const PeFigures& pe : report.pes) {
    all.worst = std::max(all.worst, pe.check->worst);
    all.squared_error += pe.check->squared_error;
    all.squared_reference += pe.check->squared_reference;
    all.squared_quantization += pe.check->squared_quantization;
    all.tokens += pe.check->tokens;
    all.differing += pe.check->differing;
  }
  return all;
}

std::string format_header(const Report& report) {
  const Shape& shape = report.shape;
  const Options& options = report.options;
  const std::string_view dot = options.ascii ? "," : " ·";
  return fmt::format(
      "shoal-moe: {} PE{}{}{dot} {} backend{}{dot} {} mode{dot} {} dispatch{dot} {} iteration{}\n"
      "{} tokens of {} channels{dot} {} experts ({} per PE) of width {}{dot} top-{} in {} of {} groups{dot} {}\n\n",
      shape.pes, shape.pes == 1 ? "" : "s",
      shape.nodes == 1 ? "" : fmt::format(" on {} nodes", shape.nodes), name_of(options.backend),
      report.experts_run_by.empty() ? "" : fmt::format(", experts by {}", report.experts_run_by),
      name_of(options.mode), name_of(options.row_format), options.iterations,
      options.iterations == 1 ? "" : "s", shape.tokens, shape.hidden, shape.gate.experts,
      shape.local_experts(), shape.ffn, shape.gate.top_k, shape.gate.groups_kept, shape.gate.groups,
      options.router_file.empty() ? fmt::format("skew {:g}", options.skew)
                                  : fmt::format("routed by {}", options.router_file),
      fmt::arg("dot", dot));
}

/// The time of the slowest PE for every phase.
std::string format_phases(const Report& report) {
  std::string text = "phases, ms (slowest PE):";
  for (std::size_t phase = 0; phase < report.pes.front().times.size(); ++phase) {
    double slowest = 0;
    for (const PeFigures& pe : report.pes) slowest = std::max(slowest, pe.times[phase].second);
    text += fmt::format("{} {} {:.3f}", phase == 0 ? "" : ",",
                        report.pes.front().times[phase].first, slowest);
  }
  return text + (report.options.on_gpu() ? "; after the gate on the GPU, between events\n" : "\n");
}

std::string format_check(const Report& report) {
  const std::optional<Check> check = merged_check(report);
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
  if (check->differing > 0)
    text +=
        fmt::format("       {} counts or weights that must be exact differ\n", check->differing);
  if (report.options.on_gpu())
    text +=
        "       the reference uses weights rounded to bfloat16; inner: sum|w_k down_f h_f|, with h_f = silu(gate "
        "x) * (up x)\n";
  if (report.options.row_format == RowFormat::fp8)
    text += fmt::format(
        "       the reference uses the tokens after FP8 quantisation; without it the result differs by "
        "{:.2e} (L2)\n",
        relative(check->squared_quantization, check->squared_reference));
  return text;
}

/// The rows of the table. One bar stands for an expert, or for the largest of several neighbouring
/// experts if there are many. A full block is the largest load of all PEs.
class Table {
 public:
  explicit Table(const Report& report) : report_(report) {
    for (const PeFigures& pe : report.pes) {
      largest_ = std::max(largest_, std::ranges::max(pe.expert_load));
      mean_ += static_cast<double>(sum_of(pe.expert_load)) / report.shape.pes;
    }
    const std::size_t experts = report.pes.front().expert_load.size();
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

  std::string row(std::size_t index) const {
    const PeFigures& pe = report_.pes[index];
    return line(fmt::format("{:3}", index), pe.tokens, pe.rows_sent, pe.rows_received,
                bars(pe.expert_load), static_cast<double>(sum_of(pe.expert_load)),
                pe.milliseconds("dispatch"), report_.dispatch_rate(pe), pe.milliseconds("experts"),
                pe.milliseconds("combine"), report_.combine_rate(pe), pe.check);
  }

  /// Sums of counts and rates; maxima of times, loads and errors.
  std::string total() const {
    double load = 0, dispatch = 0, dispatch_rate = 0, experts = 0, combine = 0, combine_rate = 0;
    for (const PeFigures& pe : report_.pes) {
      load = std::max(load, static_cast<double>(sum_of(pe.expert_load)));
      dispatch = std::max(dispatch, pe.milliseconds("dispatch"));
      experts = std::max(experts, pe.milliseconds("experts"));
      combine = std::max(combine, pe.milliseconds("combine"));
      dispatch_rate += report_.dispatch_rate(pe);
      combine_rate += report_.combine_rate(pe);
    }
    return line("all", sum(report_, &PeFigures::tokens), sum(report_, &PeFigures::rows_sent),
                sum(report_, &PeFigures::rows_received), "", load, dispatch, dispatch_rate, experts,
                combine, combine_rate, merged_check(report_));
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
    return text;
  }

  static std::string rate(double gigabytes) {
    return fmt::format("{:.{}f}", gigabytes, gigabytes < 100 ? 2 : 1);
  }

  std::string line(std::string_view name, std::int64_t tokens, std::int64_t sent,
                   std::int64_t received, const std::string& bar, double load, double dispatch,
                   double dispatch_rate, double experts, double combine, double combine_rate,
                   const std::optional<Check>& check) const {
    const std::string padding(width() - (bar.empty() ? 0 : bars_), ' ');
    return fmt::format(
        "{} {:7} {:6} {:7}   {}{}  {:6.2f}x {:8.3f} {:>6} {:9.2f} {:8.3f} {:>6}   {:>8}\n", name,
        tokens, sent, received, bar, padding, mean_ > 0 ? load / mean_ : 0, dispatch,
        rate(dispatch_rate), experts, combine, rate(combine_rate),
        check ? fmt::format("{:.3f}", check->worst) : "-");
  }

  const Report& report_;
  std::int64_t largest_ = 0;  // tokens of one expert
  double mean_ = 0;           // assignments per PE
  std::size_t run_ = 1, bars_ = 1;
};

/// This PE's figures, without those that depend on other PEs.
PeFigures local_figures(const Peers& peers, const Shape& shape, const Layer& layer,
                        const std::vector<PhaseTimes>& iterations,
                        const std::optional<Check>& check) {
  PeFigures mine;
  mine.tokens = shape.tokens_of(peers.me());
  mine.rows_sent = std::accumulate(layer.rows_to().begin(), layer.rows_to().end(), std::int64_t{0});
  mine.expert_load = layer.expert_load();
  mine.times = median_times(iterations);
  mine.check = check;
  return mine;
}

}  // namespace

double PeFigures::milliseconds(std::string_view phase_prefix) const {
  double sum = 0;
  for (const auto& [phase, time] : times)
    if (phase.starts_with(phase_prefix)) sum += time;
  return sum;
}

bool Report::passed() const {
  return std::ranges::all_of(pes,
                             [](const PeFigures& pe) { return !pe.check || pe.check->passed(); });
}

double Report::dispatch_rate(const PeFigures& pe) const {
  return gigabytes_per_second(pe.rows_received * dispatch_row_bytes, pe.milliseconds("dispatch"));
}

double Report::combine_rate(const PeFigures& pe) const {
  return gigabytes_per_second(pe.rows_sent * 2 * shape.hidden, pe.milliseconds("combine"));
}

Report gather_report(const Peers& peers, const Options& options, const Shape& shape,
                     const Layer& layer, const std::vector<PhaseTimes>& iterations,
                     const std::optional<Check>& check) {
  const PeFigures mine = local_figures(peers, shape, layer, iterations, check);
  std::vector<double> times;
  for (const auto& [phase, time] : mine.times) times.push_back(time);
  const Check none;
  const Check& own = check ? *check : none;
  const double checks[] = {own.worst,
                           own.squared_error,
                           own.squared_reference,
                           own.squared_quantization,
                           static_cast<double>(own.tokens),
                           static_cast<double>(own.differing)};
  const std::int64_t counts[] = {mine.tokens, mine.rows_sent};

  const auto all_counts = peers.gather<std::int64_t>(counts);
  const auto all_loads = peers.gather<std::int64_t>(mine.expert_load);
  const auto all_rows = peers.gather<std::int32_t>(layer.rows_to());
  const auto all_times = peers.gather<double>(times);
  const auto all_checks = peers.gather<double>(checks);

  Report report{options, shape, layer.dispatch_row_bytes(), {}, layer.experts_run_by()};
  const auto pes = static_cast<std::size_t>(shape.pes), experts = mine.expert_load.size();
  for (std::size_t pe = 0; pe < pes; ++pe) {
    PeFigures figures = mine;
    figures.tokens = all_counts[2 * pe];
    figures.rows_sent = all_counts[2 * pe + 1];
    for (std::size_t source = 0; source < pes; ++source)
      figures.rows_received += all_rows[source * pes + pe];
    figures.expert_load.assign(&all_loads[pe * experts], &all_loads[pe * experts] + experts);
    for (std::size_t phase = 0; phase < times.size(); ++phase)
      figures.times[phase].second = all_times[pe * times.size() + phase];
    const double* c = &all_checks[6 * pe];
    if (check)
      figures.check = Check{
          c[0], c[1], c[2], c[3], static_cast<std::int64_t>(c[4]), static_cast<std::int64_t>(c[5])};
    report.pes.push_back(std::move(figures));
  }
  return report;
}

std::string format_table(const Report& report) {
  const Table table(report);
  std::string text = format_header(report) + table.head();
  for (std::size_t pe = 0; pe < report.pes.size(); ++pe) text += table.row(pe);
  if (report.pes.size() > 1) text += table.total();
  return text + "\n" + format_phases(report) + format_check(report);
}

void write_json(const Report& report, const std::string& path) {
  using nlohmann::json;
  json pes = json::array();
  for (std::size_t pe = 0; pe < report.pes.size(); ++pe) {
    const PeFigures& figures = report.pes[pe];
    json phases = json::object();
    for (const auto& [phase, time] : figures.times) phases[phase] = time;
    pes.push_back({{"pe", pe},
                   {"tokens", figures.tokens},
                   {"rows_sent", figures.rows_sent},
                   {"rows_received", figures.rows_received},
                   {"expert_load", figures.expert_load},
                   {"phase_milliseconds", phases},
                   {"dispatch_gigabytes_per_second", report.dispatch_rate(figures)},
                   {"combine_gigabytes_per_second", report.combine_rate(figures)},
                   {"error_of_bound", figures.check ? json(figures.check->worst) : json()}});
  }
  const Options& options = report.options;
  const Shape& shape = report.shape;
  json document = {{"backend", name_of(options.backend)},
                   {"experts_run_by", report.experts_run_by},
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
                   {"rows", sum(report, &PeFigures::rows_sent)},
                   {"per_pe", pes},
                   {"passed", report.passed()},
                   {"check", nullptr}};
  if (const std::optional<Check> check = merged_check(report)) {
    document["check"] = {
        {"tolerance", describe_tolerance(options, shape)},
        {"tokens", check->tokens},
        {"error_of_bound", check->worst},
        {"differing_values", check->differing},
        {"relative_error", relative(check->squared_error, check->squared_reference)}};
    if (options.row_format == RowFormat::fp8)
      document["check"]["quantization_error"] =
          relative(check->squared_quantization, check->squared_reference);
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

Progress::Progress(bool enabled)
    : enabled_(enabled),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(std::chrono::steady_clock::now() + std::chrono::seconds(terminal_ ? 1 : 5)) {}

void Progress::show(std::string_view what, std::int64_t done, std::int64_t total) {
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || now < next_) return;
  next_ = now + (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(5000));
  const auto [start, end] = terminal_ ? std::pair{"\r\x1b[K", ""} : std::pair{"", "\n"};
  fmt::print(stderr, "{}{}: {} of {}{}", start, what, done, total, end);
  std::fflush(stderr);
  shown_ = true;
}

void Progress::clear() {
  if (shown_ && terminal_) fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace shoal::moe
