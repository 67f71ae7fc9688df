// SPDX-License-Identifier: Apache-2.0
// The phases of World::open as bars: text, JSON, SVG.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "info/svg.hpp"
#include "info/text.hpp"
#include "info/world.hpp"

namespace shoal::info {
namespace {

using std::chrono::nanoseconds;

double milliseconds(nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// One phase over all PEs. All PEs run the same phases.
struct PhaseRow {
  std::string name;
  nanoseconds longest{};    ///< over all PEs
  nanoseconds most_work{};  ///< longest time without waiting, over all PEs
  nanoseconds least_work = nanoseconds::max();
  std::size_t busiest = 0;  ///< the PE with most_work
};

std::vector<PhaseRow> rows_of(const std::vector<PeTimeline>& timelines) {
  std::vector<PhaseRow> rows;
  for (std::size_t pe = 0; pe < timelines.size(); ++pe)
    for (std::size_t i = 0; i < timelines[pe].phases.size(); ++i) {
      const InitPhase& phase = timelines[pe].phases[i];
      if (rows.size() <= i) rows.push_back({phase.name});
      const nanoseconds work = phase.duration - phase.waited;
      if (work > rows[i].most_work) {
        rows[i].most_work = work;
        rows[i].busiest = pe;
      }
      rows[i].least_work = std::min(rows[i].least_work, work);
      rows[i].longest = std::max(rows[i].longest, phase.duration);
    }
  return rows;
}

nanoseconds total(const PeTimeline& timeline) {
  nanoseconds sum{};
  for (const InitPhase& phase : timeline.phases) sum += phase.duration;
  return sum;
}

nanoseconds longest_total(const std::vector<PeTimeline>& timelines) {
  nanoseconds longest{};
  for (const PeTimeline& timeline : timelines) longest = std::max(longest, total(timeline));
  return longest;
}

/// The distance between ticks: 1, 2 or 5 times a power of ten, for four to ten ticks.
double tick_step(double range) {
  const double power = std::pow(10, std::floor(std::log10(std::max(range, 1e-6))));
  for (const double factor : {0.1, 0.2, 0.5, 1.0})
    if (range / (power * factor) <= 10) return power * factor;
  return power * 2;
}

}  // namespace

std::string timeline_text(const WorldView& view) {
  constexpr std::size_t kWidth = 48;
  const std::vector<PhaseRow> phases = rows_of(view.timelines);
  nanoseconds sum{};
  for (const PhaseRow& row : phases) sum += row.longest;
  const std::size_t n_pes = view.timelines.size();
  std::vector<std::vector<std::string>> rows = {
      {"phase", "ms", "own work ms", "most work", "", ""}};
  nanoseconds start{};
  for (const PhaseRow& row : phases) {
    const auto at = [&](nanoseconds time) {
      return static_cast<std::size_t>(std::lround(static_cast<double>(kWidth) * milliseconds(time) /
                                                  std::max(milliseconds(sum), 1e-9)));
    };
    const std::size_t from = std::min(at(start), kWidth - 1);
    const std::size_t length = std::max<std::size_t>(
        1, at(start + row.longest) - std::min(at(start), at(start + row.longest)));
    const auto work = static_cast<std::size_t>(
        std::lround(static_cast<double>(length) * milliseconds(row.most_work) /
                    std::max(milliseconds(row.longest), 1e-9)));
    const std::size_t filled = std::min(length, work);
    std::string bar(from, ' ');
    for (std::size_t i = 0; i < length; ++i) bar += i < filled ? "█" : "░";
    rows.push_back({row.name, fmt::format("{:.2f}", milliseconds(row.longest)),
                    n_pes == 1 ? fmt::format("{:.2f}", milliseconds(row.most_work))
                               : fmt::format("{:.2f}-{:.2f}", milliseconds(row.least_work),
                                             milliseconds(row.most_work)),
                    fmt::format("PE {}", row.busiest), "", bar});
    start += row.longest;
  }
  return fmt::format("Start of a world of {} {}: {:.2f} ms, of the slowest PE\n", n_pes,
                     n_pes == 1 ? "PE" : "PEs", milliseconds(longest_total(view.timelines))) +
         table(rows) +
         "  ms: the longest of all PEs; █ own work (least and most of all PEs), ░ the all-gather, which waits for the "
         "slowest PE.\n";
}

nlohmann::json timeline_json(const WorldView& view) {
  nlohmann::json pes = nlohmann::json::array();
  for (std::size_t pe = 0; pe < view.timelines.size(); ++pe) {
    nlohmann::json phases = nlohmann::json::array();
    for (const InitPhase& phase : view.timelines[pe].phases)
      phases.push_back({{"name", phase.name},
                        {"ms", milliseconds(phase.duration)},
                        {"waited_ms", milliseconds(phase.waited)}});
    pes.push_back(
        {{"pe", pe}, {"total_ms", milliseconds(total(view.timelines[pe]))}, {"phases", phases}});
  }
  return {{"pes", pes}};
}

std::string timeline_svg(const WorldView& view) {
  constexpr double kLeft = 64, kPlot = 760, kTop = 64, kRow = 26, kBar = 18;
  const auto& timelines = view.timelines;
  const double range = std::max(milliseconds(longest_total(timelines)), 1e-6);
  const double scale = kPlot / range;
  const double bottom = kTop + kRow * static_cast<double>(timelines.size());
  Svg svg;
  svg.text(16, 26, fmt::format("Start of a world of {} PEs", timelines.size()),
           {16, "#1f2933", Svg::Anchor::start, true});
  svg.text(16, 44, "milliseconds; pale: waiting in the all-gather; PEs are aligned where they end",
           {11.5, "#616e7c"});
  const double step = tick_step(range);
  for (int i = 0; i * step <= range * 1.0001; ++i) {
    const double tick = i * step;
    svg.line(kLeft + tick * scale, kTop - 6, kLeft + tick * scale, bottom, "#e4e7eb");
    svg.text(kLeft + tick * scale, bottom + 16, fmt::format("{:g}", tick),
             {11, "#616e7c", Svg::Anchor::middle});
  }
  for (std::size_t pe = 0; pe < timelines.size(); ++pe) {
    const double y = kTop + kRow * static_cast<double>(pe);
    svg.text(kLeft - 8, y + kBar - 4, fmt::format("PE {}", pe), {12, "#1f2933", Svg::Anchor::end});
    double x = kLeft + (range - milliseconds(total(timelines[pe]))) * scale;
    for (std::size_t i = 0; i < timelines[pe].phases.size(); ++i) {
      const InitPhase& phase = timelines[pe].phases[i];
      const double width = milliseconds(phase.duration) * scale,
                   waited = milliseconds(phase.waited) * scale;
      const std::string tooltip =
          fmt::format("{}: {:.3f} ms, of which {:.3f} in the all-gather", phase.name,
                      milliseconds(phase.duration), milliseconds(phase.waited));
      svg.rectangle(x, y, std::max(width - waited, 0.4), kBar, {Svg::colour(i), "none", 1},
                    tooltip);
      svg.rectangle(x + width - waited, y, waited, kBar, {Svg::colour(i), "none", 1, 1, "", 0.3},
                    tooltip);
      x += width;
    }
  }
  double x = 16, y = bottom + 40;
  const std::vector<PhaseRow> phases = rows_of(timelines);
  for (std::size_t i = 0; i < phases.size(); ++i) {
    const std::string label =
        fmt::format("{} {:.2f}", phases[i].name, milliseconds(phases[i].longest));
    const double width = 34 + static_cast<double>(label.size()) * 6.6;
    if (x + width > kLeft + kPlot + 24) {
      x = 16;
      y += 22;
    }
    svg.rectangle(x, y - 10, 12, 12, {Svg::colour(i), "none", 3});
    svg.text(x + 18, y, label, {12, "#1f2933"});
    x += width;
  }
  return svg.finish(kLeft + kPlot + 32, y + 18);
}

}  // namespace shoal::info
