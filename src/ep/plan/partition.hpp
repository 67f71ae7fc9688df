// SPDX-License-Identifier: Apache-2.0
// partition.hpp: which rank holds which experts. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace shoal::ep::detail {

/// The rank that holds an expert, and the expert's number among those of the rank.
struct ExpertPlace {
  std::int32_t rank, local;
};

/// The experts of a group, spread over its ranks: rank r holds the experts first(r) to
/// first(r + 1) - 1, which may be none.
///
/// The rank of an expert is read from a table, never computed, so that any other rule needs only
/// another table.
class Partition {
 public:
  /// `first_expert`: as in GroupOptions, or empty. Throws Error{invalid_argument}.
  Partition(std::int32_t experts, std::int32_t ranks, std::span<const std::int32_t> first_expert);

  ExpertPlace place(std::int64_t expert) const { return places_[static_cast<std::size_t>(expert)]; }
  std::int32_t first(std::int32_t rank) const { return first_[static_cast<std::size_t>(rank)]; }
  /// The number of experts of a rank.
  std::int32_t count(std::int32_t rank) const { return first(rank + 1) - first(rank); }
  /// The largest count of any rank.
  std::int32_t largest() const { return largest_; }
  /// first(0) to first(ranks).
  const std::vector<std::int32_t>& firsts() const { return first_; }

 private:
  std::vector<std::int32_t> first_;  ///< [ranks + 1]
  std::vector<ExpertPlace> places_;  ///< [experts]
  std::int32_t largest_ = 0;
};

}  // namespace shoal::ep::detail
