// SPDX-License-Identifier: Apache-2.0
// experts.cuh: which rank holds which expert (plan/partition.hpp), as kernels read it.
//
// The table lies in device memory. Loads of it are cached, and kernels make them right after those
// of the top-k indices, before they wait for anything else.
#pragma once

#include <cstdint>
#include <vector>

#include "ep/plan/limits.hpp"
#include "ep/plan/partition.hpp"
#include "shoal/config.hpp"

namespace shoal::ep::cuda {

/// An expert's rank, and its number among the experts there, in one word. Negative: no expert.
struct ExpertPlace {
  static constexpr std::int32_t kLocalBits = 16, kMostRanks = 1 << (31 - kLocalBits);
  std::int32_t word = -1;

  /// Negative if there is no expert.
  SHOAL_HOST_DEVICE constexpr std::int32_t rank() const { return word >> kLocalBits; }
  SHOAL_HOST_DEVICE constexpr std::int32_t local() const { return word & ((1 << kLocalBits) - 1); }
  /// The local expert at a rank; -1 where the expert is elsewhere.
  SHOAL_HOST_DEVICE constexpr std::int32_t local_at(std::int32_t at) const {
    return rank() == at ? local() : -1;
  }
};

/// In device memory.
struct ExpertTable {
  const std::int32_t* places;  ///< [experts] of ExpertPlace::word
  const std::int32_t* first;   ///< [ranks + 1]: the first expert of each rank, then their number

  /// The table whose words (expert_table_words) lie at `words`.
  static ExpertTable at(const std::int32_t* words, std::int32_t experts) {
    return {words, words + experts};
  }

#ifdef __CUDACC__
  __device__ ExpertPlace place(std::int32_t expert) const { return {__ldg(places + expert)}; }
  __device__ std::int32_t rank_of(std::int32_t expert) const { return place(expert).rank(); }
  /// rank_of, or -1 for a negative expert.
  __device__ std::int32_t rank_or_none(std::int32_t expert) const {
    return expert < 0 ? -1 : rank_of(expert);
  }
  __device__ std::int32_t first_of(std::int32_t rank) const { return __ldg(first + rank); }
  __device__ std::int32_t count_of(std::int32_t rank) const {
    return first_of(rank + 1) - first_of(rank);
  }
#endif
};

static_assert(detail::kMaxExperts <= 1 << ExpertPlace::kLocalBits);
/// Places, then firsts. `ranks_per_target` ranks, of a node, count as one.
inline std::vector<std::int32_t> expert_table_words(const detail::Partition& partition,
                                                    std::int32_t ranks_per_target = 1) {
  const auto ranks = static_cast<std::int32_t>(partition.firsts().size()) - 1;
  std::vector<std::int32_t> words;
  for (std::int32_t rank = 0; rank < ranks; ++rank) {
    const std::int32_t target = rank / ranks_per_target,
                       first = partition.first(target * ranks_per_target);
    for (std::int32_t expert = partition.first(rank); expert < partition.first(rank + 1); ++expert)
      words.push_back(target << ExpertPlace::kLocalBits | (expert - first));
  }
  for (std::int32_t rank = 0; rank <= ranks; rank += ranks_per_target)
    words.push_back(partition.first(rank));
  return words;
}

}  // namespace shoal::ep::cuda
