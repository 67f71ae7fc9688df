// SPDX-License-Identifier: Apache-2.0
// nearest.hpp: which known name the user of an unknown one may have meant.
#pragma once

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace shoal {

/// Levenshtein distance: insertions, deletions and substitutions from `a` to `b`.
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substituted}));
    }
  }
  return row.back();
}

/// The nearest of `names`, if it is near enough to be a slip of the pen; empty: none.
inline std::string nearest_spelling(std::string_view name, std::span<const std::string> names) {
  std::string found;
  std::size_t least = 1 + name.size() / 4;
  for (const std::string& known : names)
    if (const std::size_t d = edit_distance(name, known); d < least) {
      least = d;
      found = known;
    }
  return found;
}

}  // namespace shoal
