// SPDX-License-Identifier: Apache-2.0
// shape.hpp: the dimensions of a group, from its options. Pure.
//
// A shape is the same on every rank and does not depend on the backend. Each backend computes its
// memory layout from it (host/layout.hpp, cuda/layout/device_layout.hpp).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>

#include "base/align.hpp"
#include "ep/plan/partition.hpp"
#include "shoal/ep/group.hpp"

namespace shoal::ep::detail {

constexpr std::size_t kLine = 64;  ///< a cache line; every signal has one to itself

using shoal::align_up;

/// Channels that share one scale (FP8) or one range (LogFMT).
constexpr std::int64_t kChannelGroup = 128;
constexpr std::int64_t scale_groups(std::int64_t hidden) {
  return (hidden + kChannelGroup - 1) / kChannelGroup;
}

/// Group options and the values that follow from them.
struct Shape {
  std::int32_t ranks = 0, experts = 0, top_k = 0;
  std::int32_t local_experts = 0;              ///< the most experts of any rank, which sizes arrays
  std::shared_ptr<const Partition> partition;  ///< the experts of each rank
  std::int32_t none_expert = -1;               ///< GroupOptions::none_expert
  std::int32_t nodes = 1;  ///< nodes of the group; each has the same number of ranks
  std::int64_t hidden = 0, max_tokens = 0, low_latency_max_tokens = 0, max_scales = 0;
  std::int32_t live_results = 0;
  bool combine_staging = true, mask_failed = false;
  std::int64_t chunk_bytes = 0;       ///< 0: of the settings
  std::int32_t chunks_in_flight = 0;  ///< 0: of the settings
  /// Low latency on GPUs: some ranks are out of reach of loads and stores.
  bool internode = false;
  std::size_t max_row_bytes = 0;          ///< of the widest dispatch row of normal mode
  std::size_t max_combine_row_bytes = 0;  ///< of the widest combine row of normal mode

  std::int32_t rank_of(std::int64_t expert) const { return partition->place(expert).rank; }
  std::int32_t local_of(std::int64_t expert) const { return partition->place(expert).local; }
  std::int32_t first_expert(std::int32_t rank) const { return partition->first(rank); }
  std::int32_t experts_of(std::int32_t rank) const { return partition->count(rank); }
  /// The ids in topk_idx that mean no expert, for messages.
  std::string none_ids() const;
  /// Ranks on other nodes.
  std::int32_t remote_ranks() const noexcept { return ranks - ranks / nodes; }
  /// Low latency: combine rows of one rank for the tokens of one source, at most.
  std::int64_t max_combine_rows() const noexcept {
    return low_latency_max_tokens * std::min(top_k, local_experts);
  }
  /// Normal mode: rank-major rows of a result, at most.
  std::int64_t max_received() const noexcept { return ranks * max_tokens; }
  /// Normal mode: expert-major rows of a result, at most. A token has one row for each of its
  /// experts here, and the block of each expert is aligned.
  std::int64_t max_expert_major_rows(std::int64_t alignment) const noexcept {
    return max_received() * std::min(top_k, local_experts) + local_experts * (alignment - 1);
  }
  /// Calls f with the extents of a combine's result: [tokens, hidden], or `unsummed`
  /// [tokens, top_k, hidden].
  template <typename F>
  auto with_combined_extents(std::int64_t tokens, bool unsummed, F&& f) const {
    using Extents = std::initializer_list<std::int64_t>;
    return unsummed ? f(Extents{tokens, top_k, hidden}) : f(Extents{tokens, hidden});
  }
  /// Low latency: rows of one local expert, at most.
  std::int64_t low_latency_rows() const noexcept { return ranks * low_latency_max_tokens; }
};

/// The group's own option, or the setting.
template <typename Value>
Value option_or(std::int64_t option, Value setting) {
  return option > 0 ? static_cast<Value>(option) : setting;
}

/// Chunks in flight to one other node: the option of a group, else SHOAL_EP_DEPTH, else as many as
/// make pairs fastest (docs/decisions/internode-rows.md). `by_kernels`: kernels send them.
inline std::uint32_t chunk_depth(std::int64_t option, std::int64_t setting, bool by_kernels) {
  return static_cast<std::uint32_t>(option_or(option, option_or(setting, by_kernels ? 16 : 4)));
}

/// Throws Error{invalid_argument} for options outside their limits.
Shape make_shape(const GroupOptions& options, std::int32_t ranks, std::int32_t nodes = 1);

/// The largest number of rows, up to `most`, for which `bytes_of(rows)` is at most `bytes`.
/// `bytes_of` must not decrease.
template <typename BytesOf>
std::int64_t rows_that_fit(std::int64_t most, std::size_t bytes, BytesOf&& bytes_of) {
  std::int64_t low = 0,
               high = std::min<std::int64_t>(most, std::numeric_limits<std::int32_t>::max());
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(middle) <= bytes)
      low = middle;
    else
      high = middle - 1;
  }
  return low;
}

}  // namespace shoal::ep::detail
