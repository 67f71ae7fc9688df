// SPDX-License-Identifier: Apache-2.0
#include "ep/plan/partition.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace shoal::ep::detail {
namespace {

/// Every rank holds experts / ranks, and the first experts % ranks one more.
std::vector<std::int32_t> even_first(std::int32_t experts, std::int32_t ranks) {
  std::vector<std::int32_t> first;
  for (std::int32_t rank = 0; rank <= ranks; ++rank)
    first.push_back(rank * (experts / ranks) + std::min(rank, experts % ranks));
  return first;
}

std::vector<std::int32_t> checked_first(std::int32_t experts, std::int32_t ranks,
                                        std::span<const std::int32_t> given) {
  const auto count = static_cast<std::int64_t>(given.size());
  require(count == ranks || count == std::int64_t{ranks} + 1, Code::invalid_argument,
          "SHOAL-N607: ep::GroupOptions.first_expert has {} numbers; allowed: none, {} (the first "
          "expert of each rank), or {} (and the end)",
          count, ranks, ranks + 1);
  std::vector<std::int32_t> first(given.begin(), given.end());
  if (count == ranks) first.push_back(experts);
  for (std::int32_t rank = 0; rank <= ranks; ++rank) {
    const std::int32_t low = rank == 0       ? 0
                             : rank == ranks ? experts
                                             : first[rank - 1],
                       high = rank == 0 ? 0 : experts;
    require(first[rank] >= low && first[rank] <= high, Code::invalid_argument,
            "SHOAL-N607: ep::GroupOptions.first_expert[{}] is {}; allowed: {} to {}, because the "
            "numbers ascend from 0 to the {} experts",
            rank, first[rank], low, high, experts);
  }
  return first;
}

}  // namespace

Partition::Partition(std::int32_t experts, std::int32_t ranks,
                     std::span<const std::int32_t> first_expert)
    : first_(first_expert.empty() ? even_first(experts, ranks)
                                  : checked_first(experts, ranks, first_expert)) {
  places_.reserve(static_cast<std::size_t>(experts));
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    largest_ = std::max(largest_, count(rank));
    for (std::int32_t local = 0; local < count(rank); ++local) places_.push_back({rank, local});
  }
}

}  // namespace shoal::ep::detail
