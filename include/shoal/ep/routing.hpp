// SPDX-License-Identifier: Apache-2.0
// shoal/ep/routing.hpp: where the tokens of a rank go.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <shoal/ep/options.hpp>
#include <shoal/tensor.hpp>

namespace shoal::ep {

namespace detail {
struct RoutingState;
}

/// The destinations of one rank's tokens, made by Group::route. A pure function of the top-k
/// indices, usable for any number of dispatches of the same group.
///
/// The fields are for reading: dispatch uses the state behind them. R ranks, E experts. Counts of a
/// group in GPU memory are in stream order after route:
///
/// | field | group on the host | group in GPU memory |
/// |---|---|---|
/// | topk_idx | set | set |
/// | tokens_per_rank, tokens_per_expert | set | empty |
/// | rank_counts, expert_counts | undefined | set, in device memory |
struct Routing {
  Tensor topk_idx;                              ///< int64 [tokens, top_k], a copy; -1: no expert
  std::vector<std::int32_t> tokens_per_rank;    ///< [R]; a token counts once per rank
  std::vector<std::int32_t> tokens_per_expert;  ///< [E]
  Tensor rank_counts;                           ///< int32 [R], as tokens_per_rank
  Tensor expert_counts;                         ///< int32 [E], as tokens_per_expert
  std::shared_ptr<const detail::RoutingState> state;

  std::int64_t tokens() const noexcept { return topk_idx.shape[0]; }
  /// Whether any expert of the token is on `rank`. For a group on the host.
  bool is_token_in_rank(std::int64_t token, std::int32_t rank) const;
};

/// Arrays that Group::route fills for the caller, each optional and contiguous, on the device of
/// the group.
struct RouteOptions {
  TensorView is_token_in_rank{};   ///< uint8 [tokens, R]: 1 where an expert of the token is there
  TensorView tokens_per_rank{};    ///< int32 [R]
  TensorView tokens_per_expert{};  ///< int32 [E]
  Launch launch{};
};

}  // namespace shoal::ep
