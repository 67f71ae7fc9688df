// SPDX-License-Identifier: Apache-2.0
// live_svg.cpp: waits between ranks and loads of experts as pictures.
#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "info/live.hpp"
#include "info/records.hpp"
#include "info/svg.hpp"

namespace shoal::info {
namespace {

/// A document that grows downwards.
struct Page {
  Svg svg;
  double top = 20, width = 400;
};

/// Meaning of the values of a matrix.
struct Legend {
  std::string_view caption, unit, fill;
  /// Words of the tooltip "rank <row> <verb> <value> <unit> <preposition> rank <column>".
  std::string_view verb, preposition;
};
constexpr Legend kWaits = {"time that rows wait for columns", "ms", "#b3261e", "waits", "for"};
constexpr Legend kNetwork = {"what rows send to columns over a network", "MB/s", "#2e7d32", "sends",
                             "to"};

void add_heat_map(Page& page, const RankMatrix& matrix, const Legend& legend) {
  Svg& svg = page.svg;
  double& top = page.top;
  const std::size_t ranks = matrix.values.size();
  const double cell = std::clamp(480.0 / static_cast<double>(ranks), 2.0, 32.0);
  double most = 0;
  for (const auto& row : matrix.values) most = std::max(most, std::ranges::max(row));
  svg.text(
      20, top,
      fmt::format("{}: {}, at most {:.3f} {}", matrix.title, legend.caption, most, legend.unit),
      {.size = 13, .bold = true});
  for (std::size_t row = 0; row < ranks; ++row)
    for (std::size_t column = 0; column < ranks; ++column) {
      const double value = matrix.values[row][column];
      svg.rectangle(60 + cell * static_cast<double>(column),
                    top + 30 + cell * static_cast<double>(row), cell, cell,
                    {.fill = legend.fill,
                     .stroke = cell > 6 ? "#d0d4da" : "none",
                     .line = 0.5,
                     .opacity = ratio(value, most)},
                    fmt::format("rank {} {} {:.3f} {} {} rank {}", row, legend.verb, value,
                                legend.unit, legend.preposition, column));
    }
  for (std::size_t rank = 0; rank < ranks; rank += std::max<std::size_t>(1, ranks / 16)) {
    const double at = cell * (static_cast<double>(rank) + 0.5);
    svg.text(54, top + 34 + at, std::to_string(rank), {.size = 10, .anchor = Svg::Anchor::end});
    svg.text(60 + at, top + 24, std::to_string(rank), {.size = 10, .anchor = Svg::Anchor::middle});
  }
  page.width = std::max(page.width, std::max(560.0, 80 + cell * static_cast<double>(ranks)));
  top += 60 + cell * static_cast<double>(ranks);
}

/// A line of bars per rank, one per expert.
void add_loads(Page& page, const ExpertLoads& loads) {
  constexpr double kLeft = 60, kHeight = 28, kStep = 36;
  Svg& svg = page.svg;
  const std::size_t ranks = loads.known.size();
  std::size_t experts = 1;  // the most of a rank
  for (const ExpertLoads::Held& held : loads.held) experts = std::max(experts, held.count);
  const double bar = std::clamp(960.0 / static_cast<double>(experts), 1.0, 24.0);
  const auto most = static_cast<double>(std::ranges::max(loads.rows));
  svg.text(
      20, page.top,
      fmt::format("{}: rows that experts received, by rank, at most {:.0f}", loads.title, most),
      {.size = 13, .bold = true});
  page.top += 20;
  for (std::size_t rank = 0; rank < ranks; ++rank, page.top += kStep) {
    svg.text(54, page.top + kHeight, std::to_string(rank),
             {.size = 10, .anchor = Svg::Anchor::end});
    svg.line(kLeft, page.top + kHeight, kLeft + bar * static_cast<double>(experts),
             page.top + kHeight, "#d0d4da", 0.5);
    if (!loads.known[rank]) svg.text(kLeft, page.top + kHeight - 4, "no record here", {.size = 10});
    for (std::size_t e = 0; e < loads.held[rank].count; ++e) {
      const std::size_t expert = loads.held[rank].first + e;
      const double height = kHeight * ratio(static_cast<double>(loads.rows[expert]), most);
      svg.rectangle(kLeft + bar * static_cast<double>(e), page.top + kHeight - height,
                    std::max(bar - 0.5, 0.5), height, {.fill = "#1c5d99"},
                    fmt::format("expert {} of rank {}: {} rows", expert, rank, loads.rows[expert]));
    }
  }
  page.width = std::max({page.width, 560.0, 80 + bar * static_cast<double>(experts)});
  page.top += 24;
}

}  // namespace

std::string live_svg(const std::vector<RankMatrix>& waits, const std::vector<ExpertLoads>& loads,
                     const std::vector<RankMatrix>& network) {
  Page page;
  for (const RankMatrix& matrix : waits) add_heat_map(page, matrix, kWaits);
  for (const RankMatrix& matrix : network) add_heat_map(page, matrix, kNetwork);
  for (const ExpertLoads& of_group : loads) add_loads(page, of_group);
  return page.svg.finish(page.width, page.top);
}

}  // namespace shoal::info
