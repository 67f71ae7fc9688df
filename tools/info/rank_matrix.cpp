// SPDX-License-Identifier: Apache-2.0
// rank_matrix.cpp: waits and network rates of pairs of ranks.
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
using observe::PeerTotals;
using observe::PeRecord;

/// Means of the pairs of different ranks: [column], and of all.
std::pair<std::vector<double>, double> means(const RankMatrix& matrix) {
  const std::size_t ranks = matrix.values.size();
  std::vector<double> columns(ranks, 0);
  double all = 0;
  for (std::size_t row = 0; row < ranks; ++row)
    for (std::size_t column = 0; column < ranks; ++column) {
      if (row == column) continue;
      columns[column] += matrix.values[row][column];
      all += matrix.values[row][column];
    }
  const double others = std::max<double>(1, static_cast<double>(ranks) - 1);
  for (double& column : columns) column /= others;
  return {columns, all / (others * std::max<double>(1, static_cast<double>(ranks)))};
}

double largest(const RankMatrix& matrix) {
  double most = 0;
  for (const auto& row : matrix.values)
    most = std::max(most, *std::max_element(row.begin(), row.end()));
  return most;
}

/// The sum over all matrices of a report. Groups beyond that are omitted: a record of another user
/// may claim any number of ranks.
constexpr std::size_t kMostCells = std::size_t{1} << 26;

/// True if there is room for another matrix of `ranks` ranks, which is then taken.
bool take_cells(std::size_t& cells, std::size_t ranks) {
  if (ranks > kMostCells || ranks * ranks > kMostCells - cells) return false;
  cells += ranks * ranks;
  return true;
}

/// A matrix per group whose largest value(peer, the same peer before, seconds since then) is above
/// 0. Peers are zero and `seconds` is 0 without an earlier reading.
template <typename Value>
std::vector<RankMatrix> matrices(const std::vector<PeRecord>& now,
                                 const std::vector<PeRecord>& before, Value&& value) {
  std::map<std::tuple<std::uint64_t, std::uint64_t, Pe>, RankMatrix> groups;
  std::size_t cells = 0;
  for (const PeRecord& pe : now)
    for (const GroupRecord& group : pe.groups) {
      if (group.pes.empty()) continue;
      RankMatrix& matrix = groups[{pe.world, group.number, group.pes[0]}];
      if (matrix.values.empty()) {
        if (!take_cells(cells, group.pes.size())) continue;
        matrix.title = fmt::format("world {:016x}, group {}", pe.world, group.number);
        matrix.values.assign(group.pes.size(), std::vector<double>(group.pes.size(), 0));
      }
      const auto row = static_cast<std::size_t>(group.rank);
      if (group.peers.size() != matrix.values.size() || group.rank < 0 || row >= group.peers.size())
        continue;
      const PeRecord* const earlier = find_pe(before, pe);
      const GroupRecord* const old = find_group(earlier, group.number);
      for (std::size_t rank = 0; rank < group.peers.size(); ++rank)
        matrix.values[row][rank] =
            value(group.peers[rank],
                  old != nullptr && rank < old->peers.size() ? old->peers[rank] : PeerTotals{},
                  seconds_between(earlier, pe));
    }
  std::vector<RankMatrix> found;
  for (auto& [key, matrix] : groups)
    if (largest(matrix) > 0) found.push_back(std::move(matrix));
  return found;
}

/// Waits of collectives, a matrix per world; a rank is a PE.
std::vector<RankMatrix> collective_waits(const std::vector<PeRecord>& now,
                                         const std::vector<PeRecord>& before) {
  std::map<std::uint64_t, RankMatrix> worlds;
  std::size_t cells = 0;
  for (const PeRecord& pe : now) {
    const auto row = static_cast<std::size_t>(pe.pe);
    if (pe.peers.size() != static_cast<std::size_t>(pe.n_pes) || row >= pe.peers.size()) continue;
    RankMatrix& matrix = worlds[pe.world];
    if (matrix.values.empty()) {
      if (!take_cells(cells, pe.peers.size())) continue;
      matrix.title = fmt::format("world {:016x}, collectives", pe.world);
      matrix.values.assign(pe.peers.size(), std::vector<double>(pe.peers.size(), 0));
    }
    const PeRecord* const earlier = find_pe(before, pe);
    if (matrix.values.size() != pe.peers.size()) continue;
    for (std::size_t peer = 0; peer < matrix.values[row].size(); ++peer) {
      const bool known = earlier != nullptr && peer < earlier->peers.size();
      matrix.values[row][peer] =
          static_cast<double>(pe.peers[peer].wait_ns - (known ? earlier->peers[peer].wait_ns : 0)) /
          1e6;
    }
  }
  std::vector<RankMatrix> found;
  for (auto& [world, matrix] : worlds)
    if (largest(matrix) > 0) found.push_back(std::move(matrix));
  return found;
}

/// A line per rank with a character per pair. `caption`: what the values are, in `unit`.
std::string cells_text(const RankMatrix& matrix, const char* caption, const char* unit) {
  constexpr std::size_t kMost = 64;
  const std::size_t ranks = matrix.values.size();
  const std::size_t per_cell = (ranks + kMost - 1) / kMost;
  const double most = largest(matrix);
  std::string text = fmt::format(
      "{}: {}; \"{}\" is up to {:.3f} {}{}\n", matrix.title, caption, kShades.back(), most, unit,
      per_cell > 1 ? fmt::format(", {} ranks per character", per_cell) : std::string());
  for (std::size_t row = 0; row < ranks; row += per_cell) {
    text += fmt::format("  {:>5} ", row);
    for (std::size_t column = 0; column < ranks; column += per_cell) {
      double value = 0;
      for (std::size_t r = row; r < std::min(row + per_cell, ranks); ++r)
        for (std::size_t c = column; c < std::min(column + per_cell, ranks); ++c)
          value = std::max(value, matrix.values[r][c]);
      text += shade(value, most);
    }
    text += '\n';
  }
  return text;
}

}  // namespace

std::vector<RankMatrix> wait_matrices(const std::vector<PeRecord>& now,
                                      const std::vector<PeRecord>& before) {
  auto found = matrices(now, before, [](const PeerTotals& peer, const PeerTotals& old, double) {
    return static_cast<double>(peer.wait_ns - old.wait_ns) / 1e6;
  });
  for (RankMatrix& matrix : collective_waits(now, before)) found.push_back(std::move(matrix));
  return found;
}

std::string heat_map_text(const RankMatrix& matrix) {
  const std::size_t ranks = matrix.values.size();
  std::string text = cells_text(matrix, "waits in ms, rows wait for columns", "ms");
  const auto [columns, mean] = means(matrix);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (ranks > 2 && columns[rank] > 3 * mean)
      text += fmt::format(
          "  rank {} is slow: others wait {:.3f} ms for it on average, {:.1f} times the mean\n",
          rank, columns[rank], columns[rank] / mean);
  for (std::size_t row = 0; row < ranks; ++row)
    for (std::size_t column = 0; column < ranks; ++column)
      if (ranks > 2 && columns[column] <= 3 * mean && matrix.values[row][column] > 5 * mean)
        text += fmt::format("  rank {} waits {:.3f} ms for rank {}, {:.1f} times the mean\n", row,
                            matrix.values[row][column], column, matrix.values[row][column] / mean);
  return text;
}

std::vector<RankMatrix> network_matrices(const std::vector<PeRecord>& now,
                                         const std::vector<PeRecord>& before) {
  return matrices(now, before, [](const PeerTotals& peer, const PeerTotals& old, double seconds) {
    return ratio(increase(peer.network_bytes, old.network_bytes) / 1e6, seconds);
  });
}

std::string network_text(const RankMatrix& matrix) {
  std::string text = cells_text(matrix, "network rates in MB/s, rows send to columns", "MB/s");
  for (std::size_t rank = 0; rank < matrix.values.size(); ++rank) {
    const auto& row = matrix.values[rank];
    double received = 0;
    for (const auto& from : matrix.values) received += from[rank];
    text += fmt::format("  rank {} sends {:.1f} MB/s, receives {:.1f} MB/s\n", rank,
                        std::accumulate(row.begin(), row.end(), 0.0), received);
  }
  return text;
}

}  // namespace shoal::info
