// SPDX-License-Identifier: Apache-2.0
// loads.cpp: rows that experts received.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "info/live.hpp"
#include "info/records.hpp"

namespace shoal::info {
namespace {

using observe::GroupRecord;
using observe::PeRecord;

/// The sum over all groups of a report. Groups beyond that are omitted: a record of another user
/// may claim any numbers of ranks and experts.
constexpr std::size_t kMostExperts = std::size_t{1} << 24;

double mean_of(const ExpertLoads& loads) {
  std::size_t known = 0;
  for (const ExpertLoads::Held& held : loads.held) known += held.count;
  const auto sum = std::accumulate(loads.rows.begin(), loads.rows.end(), std::uint64_t{0});
  return known > 0 ? static_cast<double>(sum) / static_cast<double>(known) : 0;
}

std::size_t rank_of(const ExpertLoads& loads, std::size_t expert) {
  const auto holds = [&](const ExpertLoads::Held& held) {
    return expert >= held.first && expert < held.first + held.count;
  };
  return static_cast<std::size_t>(std::ranges::find_if(loads.held, holds) - loads.held.begin());
}

}  // namespace

std::vector<ExpertLoads> expert_loads(const std::vector<PeRecord>& now,
                                      const std::vector<PeRecord>& before) {
  std::map<std::tuple<std::uint64_t, std::uint64_t, Pe>, ExpertLoads> groups;
  std::size_t left = kMostExperts;
  for (const PeRecord& pe : now)
    for (const GroupRecord& group : pe.groups) {
      const std::size_t experts = group.expert_rows.size();
      if (group.pes.empty()) continue;
      ExpertLoads& loads = groups[{pe.world, group.number, group.pes[0]}];
      if (loads.known.empty()) {
        loads.title = fmt::format("world {:016x}, group {}", pe.world, group.number);
        loads.known.assign(group.pes.size(), false);
        loads.held.assign(group.pes.size(), {});
      }
      const auto rank = static_cast<std::size_t>(group.rank);
      if (group.rank < 0 || rank >= loads.known.size() || group.first_expert < 0) continue;
      const auto first = static_cast<std::size_t>(group.first_expert);
      if (experts > kMostExperts || first > kMostExperts - experts) continue;
      if (const std::size_t end = first + experts; end > loads.rows.size()) {
        if (end - loads.rows.size() > left) continue;
        left -= end - loads.rows.size();
        loads.rows.resize(end, 0);
      }
      const GroupRecord* const old = find_group(find_pe(before, pe), group.number);
      loads.known[rank] = true;
      loads.held[rank] = {first, experts};
      for (std::size_t expert = 0; expert < experts; ++expert) {
        const bool counted = old != nullptr && expert < old->expert_rows.size();
        loads.rows[first + expert] =
            group.expert_rows[expert] - (counted ? old->expert_rows[expert] : 0);
      }
    }
  std::vector<ExpertLoads> all;
  for (auto& [key, loads] : groups)
    if (std::ranges::any_of(loads.rows, [](std::uint64_t rows) { return rows > 0; }))
      all.push_back(std::move(loads));
  return all;
}

std::string expert_loads_text(const ExpertLoads& loads) {
  constexpr std::size_t kMostCells = 64, kNamed = 3;
  const std::size_t ranks = loads.known.size();
  std::size_t experts = 0;  // the most of a rank
  for (const ExpertLoads::Held& held : loads.held) experts = std::max(experts, held.count);
  const std::size_t per_cell = (experts + kMostCells - 1) / kMostCells;
  const std::uint64_t most = std::ranges::max(loads.rows);
  std::string text = fmt::format(
      "{}: rows that experts received, a line per rank; \"{}\" is up to {} rows{}\n", loads.title,
      kShades.back(), most,
      per_cell > 1 ? fmt::format(", {} experts per character", per_cell) : std::string());
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    text += fmt::format("  {:>5} ", rank);
    if (!loads.known[rank]) {
      text += "no record here\n";
      continue;
    }
    std::uint64_t sum = 0;
    const std::size_t end = loads.held[rank].first + loads.held[rank].count;
    for (std::size_t first = loads.held[rank].first; first < end; first += per_cell) {
      std::uint64_t rows = 0;
      for (std::size_t e = first; e < std::min(first + per_cell, end); ++e) {
        rows = std::max(rows, loads.rows[e]);
        sum += loads.rows[e];
      }
      text += shade(static_cast<double>(rows), static_cast<double>(most));
    }
    text += fmt::format("  {} rows\n", sum);
  }
  const double mean = mean_of(loads);
  std::vector<std::size_t> order(loads.rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater{}, [&](std::size_t e) { return loads.rows[e]; });
  for (std::size_t i = 0; i < std::min(kNamed, order.size()); ++i) {
    const auto rows = static_cast<double>(loads.rows[order[i]]);
    if (rows <= 2 * mean) break;
    text += fmt::format("  expert {} of rank {} is hot: {} rows, {:.1f} times the mean\n", order[i],
                        rank_of(loads, order[i]), loads.rows[order[i]], rows / mean);
  }
  return text;
}

}  // namespace shoal::info
