// SPDX-License-Identifier: Apache-2.0
// records.hpp: what two readings of the same records have in common.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "shoal/observe.hpp"

namespace shoal::info {

/// The record of the same PE in another reading; nullptr: none.
inline const observe::PeRecord* find_pe(const std::vector<observe::PeRecord>& records,
                                        const observe::PeRecord& like) {
  for (const observe::PeRecord& pe : records)
    if (pe.world == like.world && pe.pe == like.pe) return &pe;
  return nullptr;
}

/// The group with this number; nullptr: none, or no record.
inline const observe::GroupRecord* find_group(const observe::PeRecord* pe, std::uint64_t number) {
  if (pe == nullptr) return nullptr;
  for (const observe::GroupRecord& group : pe->groups)
    if (group.number == number) return &group;
  return nullptr;
}

/// 0 without an earlier reading.
inline double seconds_between(const observe::PeRecord* earlier, const observe::PeRecord& now) {
  return earlier == nullptr ? 0 : static_cast<double>(now.read_ns - earlier->read_ns) / 1e9;
}

/// 0 if the counter has become smaller, as sums do when a group is closed.
inline double increase(std::uint64_t now, std::uint64_t before) {
  return now > before ? static_cast<double>(now - before) : 0;
}

inline double ratio(double value, double of) {
  return of > 0 ? value / of : 0;
}

/// Cells of heat maps as text, from 0 to the largest value.
inline constexpr std::string_view kShades = " .:-=+*#%@";
inline char shade(double value, double most) {
  const double at = ratio(value, most) * static_cast<double>(kShades.size() - 1);
  return kShades[at < static_cast<double>(kShades.size()) ? static_cast<std::size_t>(at)
                                                          : kShades.size() - 1];
}

}  // namespace shoal::info
