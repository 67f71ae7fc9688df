// SPDX-License-Identifier: Apache-2.0
#include "info/live.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <string_view>
#include <tuple>

#include "base/check.hpp"
#include "info/text.hpp"

namespace shoal::info {
namespace {

using observe::GroupRecord;
using observe::PeRecord;

const PeRecord* find(const std::vector<PeRecord>& records, const PeRecord& like) {
  for (const PeRecord& pe : records)
    if (pe.world == like.world && pe.pe == like.pe) return &pe;
  return nullptr;
}

const GroupRecord* find(const PeRecord* pe, std::uint64_t number) {
  if (pe == nullptr) return nullptr;
  for (const GroupRecord& group : pe->groups)
    if (group.number == number) return &group;
  return nullptr;
}

struct Sums {
  std::uint64_t operations = 0, bytes = 0;
  std::int64_t wait_ns = 0;
};

Sums sums_of(const PeRecord* pe) {
  Sums sums;
  if (pe == nullptr) return sums;
  for (const GroupRecord& group : pe->groups) {
    for (const auto& total : group.totals) {
      sums.operations += total.operations;
      sums.bytes += total.bytes;
    }
    for (const auto& peer : group.peers) sums.wait_ns += peer.wait_ns;
  }
  return sums;
}

std::string doing(const PeRecord& pe) {
  for (const GroupRecord& group : pe.groups) {
    if (!group.failure.empty()) return fmt::format("group {} has failed", group.number);
    for (const auto& op : group.operations)
      if (op.state == "started")
        return fmt::format(
            "{} {}, phase {}{}", op.operation, op.epoch,
            op.phases.empty() ? "none" : op.phases.back().name,
            op.waiting ? fmt::format(", waits for rank {}", op.awaited) : std::string());
  }
  if (pe.active)
    return pe.activity +
           (pe.awaited >= 0 ? fmt::format(", waits for PE {}", pe.awaited) : std::string());
  return "outside of the library";
}

double ratio(double value, double of) {
  return of > 0 ? value / of : 0;
}

/// Means of the pairs of different ranks: [column], and of all.
std::pair<std::vector<double>, double> means(const WaitMatrix& matrix) {
  const std::size_t ranks = matrix.milliseconds.size();
  std::vector<double> columns(ranks, 0);
  double all = 0;
  for (std::size_t row = 0; row < ranks; ++row)
    for (std::size_t column = 0; column < ranks; ++column) {
      if (row == column) continue;
      columns[column] += matrix.milliseconds[row][column];
      all += matrix.milliseconds[row][column];
    }
  const double others = std::max<double>(1, static_cast<double>(ranks) - 1);
  for (double& column : columns) column /= others;
  return {columns, all / (others * std::max<double>(1, static_cast<double>(ranks)))};
}

double largest(const WaitMatrix& matrix) {
  double most = 0;
  for (const auto& row : matrix.milliseconds)
    most = std::max(most, *std::max_element(row.begin(), row.end()));
  return most;
}

}  // namespace

std::string activity_text(const std::vector<PeRecord>& now, const std::vector<PeRecord>& before) {
  std::vector<std::vector<std::string>> rows = {
      {"world", "PE", "pid", "operations/s", "MB/s", "waiting", "now"}};
  for (const PeRecord& pe : now) {
    const PeRecord* const earlier = find(before, pe);
    const Sums sums = sums_of(&pe), old = sums_of(earlier);
    const double seconds =
        earlier == nullptr ? 0 : static_cast<double>(pe.read_ns - earlier->read_ns) / 1e9;
    const auto rate = [&](double amount) {
      return earlier == nullptr ? std::string("-") : fmt::format("{:.1f}", ratio(amount, seconds));
    };
    rows.push_back(
        {fmt::format("{:016x}", pe.world), fmt::format("{} of {}", pe.pe, pe.n_pes),
         std::to_string(pe.pid), rate(static_cast<double>(sums.operations - old.operations)),
         rate(static_cast<double>(sums.bytes - old.bytes) / 1e6),
         earlier == nullptr
             ? "-"
             : fmt::format(
                   "{:.0f} %",
                   std::min(100.0,
                            100 * ratio(static_cast<double>(sums.wait_ns - old.wait_ns) / 1e9,
                                        seconds))),
         doing(pe)});
  }
  return table(rows);
}

std::vector<WaitMatrix> wait_matrices(const std::vector<PeRecord>& now,
                                      const std::vector<PeRecord>& before) {
  std::map<std::tuple<std::uint64_t, std::uint64_t, Pe>, WaitMatrix> groups;
  for (const PeRecord& pe : now)
    for (const GroupRecord& group : pe.groups) {
      if (group.pes.empty()) continue;
      WaitMatrix& matrix = groups[{pe.world, group.number, group.pes[0]}];
      if (matrix.milliseconds.empty()) {
        matrix.title = fmt::format("world {:016x}, group {}", pe.world, group.number);
        matrix.milliseconds.assign(group.pes.size(), std::vector<double>(group.pes.size(), 0));
      }
      if (group.peers.size() != matrix.milliseconds.size() || group.rank < 0 ||
          static_cast<std::size_t>(group.rank) >= group.peers.size())
        continue;
      const GroupRecord* const old = find(find(before, pe), group.number);
      for (std::size_t rank = 0; rank < group.peers.size(); ++rank) {
        const bool counted = old != nullptr && rank < old->peers.size();
        matrix.milliseconds[static_cast<std::size_t>(group.rank)][rank] =
            static_cast<double>(group.peers[rank].wait_ns -
                                (counted ? old->peers[rank].wait_ns : 0)) /
            1e6;
      }
    }
  std::vector<WaitMatrix> matrices;
  for (auto& [key, matrix] : groups)
    if (largest(matrix) > 0) matrices.push_back(std::move(matrix));
  return matrices;
}

std::string heat_map_text(const WaitMatrix& matrix) {
  constexpr std::string_view kShades = " .:-=+*#%@";
  constexpr std::size_t kMost = 64;
  const std::size_t ranks = matrix.milliseconds.size();
  const std::size_t per_cell = (ranks + kMost - 1) / kMost;
  const double most = largest(matrix);
  std::string text =
      fmt::format("{}: waits in ms, rows wait for columns; \"{}\" is up to {:.3f} ms{}\n",
                  matrix.title, kShades.back(), most,
                  per_cell > 1 ? fmt::format(", {} ranks per character", per_cell) : std::string());
  for (std::size_t row = 0; row < ranks; row += per_cell) {
    text += fmt::format("  {:>5} ", row);
    for (std::size_t column = 0; column < ranks; column += per_cell) {
      double value = 0;
      for (std::size_t r = row; r < std::min(row + per_cell, ranks); ++r)
        for (std::size_t c = column; c < std::min(column + per_cell, ranks); ++c)
          value = std::max(value, matrix.milliseconds[r][c]);
      const auto shade =
          static_cast<std::size_t>(ratio(value, most) * static_cast<double>(kShades.size() - 1));
      text += kShades[std::min(shade, kShades.size() - 1)];
    }
    text += '\n';
  }
  const auto [columns, mean] = means(matrix);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    if (ranks > 2 && columns[rank] > 3 * mean)
      text += fmt::format(
          "  rank {} is slow: others wait {:.3f} ms for it on average, {:.1f} times the mean\n",
          rank, columns[rank], columns[rank] / mean);
  for (std::size_t row = 0; row < ranks; ++row)
    for (std::size_t column = 0; column < ranks; ++column)
      if (ranks > 2 && columns[column] <= 3 * mean && matrix.milliseconds[row][column] > 5 * mean)
        text += fmt::format("  rank {} waits {:.3f} ms for rank {}, {:.1f} times the mean\n", row,
                            matrix.milliseconds[row][column], column,
                            matrix.milliseconds[row][column] / mean);
  return text;
}

Place place_from(const std::string& text) {
  Place place;
  std::string_view digits = text;
  if (digits.starts_with('+')) {
    place.is_offset = true;
    digits.remove_prefix(1);
  }
  int base = 10;
  if (digits.starts_with("0x") || digits.starts_with("0X")) {
    base = 16;
    digits.remove_prefix(2);
  }
  const char* const end = digits.data() + digits.size();
  const auto [behind, error] = std::from_chars(digits.data(), end, place.value, base);
  require(
      error == std::errc{} && behind == end && !digits.empty() && (place.is_offset || base == 16),
      Code::invalid_argument,
      "--locate is \"{}\"; allowed: an address, such as 0x7f3a5c012340, or an offset of the "
      "heap, such as +1052672",
      text);
  return place;
}

}  // namespace shoal::info
