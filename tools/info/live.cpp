// SPDX-License-Identifier: Apache-2.0
#include "info/live.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>

#include "base/check.hpp"
#include "info/records.hpp"
#include "info/text.hpp"

namespace shoal::info {
namespace {

using observe::GroupRecord;
using observe::PeRecord;

struct Sums {
  std::uint64_t operations = 0, bytes = 0, network_rows = 0, network_bytes = 0;
  std::uint64_t wait_ns = 0;
};

Sums sums_of(const PeRecord* pe) {
  Sums sums;
  if (pe == nullptr) return sums;
  for (const GroupRecord& group : pe->groups) {
    for (const auto& total : group.totals) {
      sums.operations += total.operations;
      sums.bytes += total.bytes;
    }
    for (const auto& peer : group.peers) {
      sums.wait_ns += static_cast<std::uint64_t>(peer.wait_ns);
      sums.network_rows += peer.network_rows;
      sums.network_bytes += peer.network_bytes;
    }
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

}  // namespace

std::vector<std::vector<std::string>> activity_rows(const std::vector<PeRecord>& now,
                                                    const std::vector<PeRecord>& before) {
  const bool network =
      std::ranges::any_of(now, [](const PeRecord& pe) { return sums_of(&pe).network_rows > 0; });
  std::vector<std::vector<std::string>> rows = {{"world", "PE", "pid", "operations/s", "MB/s"}};
  if (network) rows[0].insert(rows[0].end(), {"network rows/s", "network MB/s"});
  rows[0].insert(rows[0].end(), {"waiting", "now"});
  for (const PeRecord& pe : now) {
    const PeRecord* const earlier = find_pe(before, pe);
    const Sums sums = sums_of(&pe), old = sums_of(earlier);
    const double seconds = seconds_between(earlier, pe);
    const auto rate = [&](std::uint64_t amount, std::uint64_t earlier_amount, double unit) {
      return earlier == nullptr
                 ? std::string("-")
                 : fmt::format("{:.1f}", ratio(increase(amount, earlier_amount) / unit, seconds));
    };
    std::vector<std::string> row = {
        fmt::format("{:016x}", pe.world), fmt::format("{} of {}", pe.pe, pe.n_pes),
        std::to_string(pe.pid), rate(sums.operations, old.operations, 1),
        rate(sums.bytes, old.bytes, 1e6)};
    if (network) {
      row.push_back(rate(sums.network_rows, old.network_rows, 1));
      row.push_back(rate(sums.network_bytes, old.network_bytes, 1e6));
    }
    const double waited = ratio(increase(sums.wait_ns, old.wait_ns) / 1e9, seconds);
    row.push_back(earlier == nullptr ? "-"
                                     : fmt::format("{:.0f} %", std::min(100.0, 100 * waited)));
    row.push_back(doing(pe));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string activity_text(const std::vector<PeRecord>& now, const std::vector<PeRecord>& before) {
  return table(activity_rows(now, before));
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
