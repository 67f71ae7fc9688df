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
/// The fields are for reading: dispatch uses the state behind them. R ranks, N nodes (ranks that
/// reach each other by load and store, in the order of their lowest ranks), E experts. Counts of a
/// group in GPU memory are in stream order after route:
///
/// | field | group on the host | group in GPU memory |
/// |---|---|---|
/// | topk_idx | set | set |
/// | tokens_per_rank, tokens_per_node, tokens_per_expert | set | empty |
/// | rank_counts, node_counts, expert_counts | undefined | set, in device memory |
struct Routing {
  Tensor topk_idx;                              ///< int64 [tokens, top_k], a copy; -1: no expert
  std::vector<std::int32_t> tokens_per_rank;    ///< [R]; a token counts once per rank
  std::vector<std::int32_t> tokens_per_expert;  ///< [E]
  Tensor rank_counts;                           ///< int32 [R], as tokens_per_rank
  Tensor expert_counts;                         ///< int32 [E], as tokens_per_expert
  std::vector<std::int32_t> tokens_per_node;    ///< [N]; a token counts once per node
  Tensor node_counts;                           ///< int32 [N], as tokens_per_node
  std::shared_ptr<const detail::RoutingState> state;

  std::int64_t tokens() const noexcept { return topk_idx.shape[0]; }
  /// Whether any expert of the token is on `rank`.
  ///
  /// A routing in GPU memory is read from there: the call waits for the group's work on the GPU,
  /// throws what failed there, and throws Error{closed} once the group is closed. For many tokens
  /// let route fill RouteOptions::is_token_in_rank. Throws Error{invalid_argument} for a token or
  /// rank that does not exist.
  bool is_token_in_rank(std::int64_t token, std::int32_t rank) const;
};

/// Arrays that Group::route fills for the caller, each optional and contiguous, on the device of
/// the group.
struct RouteOptions {
  TensorView is_token_in_rank{};   ///< uint8 [tokens, R]: 1 where an expert of the token is there
  TensorView tokens_per_rank{};    ///< int32 [R]
  TensorView tokens_per_expert{};  ///< int32 [E]
  TensorView tokens_per_node{};    ///< int32 [N]
  Launch launch{};
};

}  // namespace shoal::ep
