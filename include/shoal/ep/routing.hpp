// SPDX-License-Identifier: Apache-2.0
// shoal/ep/routing.hpp: where the tokens of a rank go.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
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
/// R ranks, N nodes (ranks that reach each other by load and store, in the order of their lowest
/// ranks), E experts. The fields are for reading: dispatch uses the state behind them. A group on
/// the host sets `counts`, a group in GPU memory `device_counts`.
class Routing {
 public:
  /// Tokens by destination.
  struct Counts {
    std::vector<std::int32_t> tokens_per_rank;    ///< [R]; a token counts once per rank
    std::vector<std::int32_t> tokens_per_node;    ///< [N]; a token counts once per node
    std::vector<std::int32_t> tokens_per_expert;  ///< [E]
  };
  /// Tokens by destination in device memory, int32, in stream order after route.
  struct DeviceCounts {
    Tensor tokens_per_rank;    ///< [R]
    Tensor tokens_per_node;    ///< [N]
    Tensor tokens_per_expert;  ///< [E]
  };

  Tensor topk_idx;  ///< int64 [tokens, top_k], a copy; -1: no expert
  std::optional<Counts> counts;
  std::optional<DeviceCounts> device_counts;

  [[nodiscard]] std::int64_t tokens() const noexcept { return topk_idx.shape[0]; }
  /// Whether any expert of the token is on `rank`.
  ///
  /// A routing in GPU memory is read from there: the call waits for the group's work on the GPU,
  /// throws what failed there, and throws Error{closed} once the group is closed. For many tokens
  /// let route fill RouteOptions::is_token_in_rank. Throws Error{invalid_argument} for a token or
  /// rank that does not exist.
  [[nodiscard]] bool is_token_in_rank(std::int64_t token, std::int32_t rank) const;

  Routing() = default;  ///< of no tokens; dispatch refuses it

 private:
  friend struct shoal::detail::Access;
  explicit Routing(std::shared_ptr<const detail::RoutingState> state) : state_(std::move(state)) {}
  const std::shared_ptr<const detail::RoutingState>& state() const noexcept { return state_; }

  std::shared_ptr<const detail::RoutingState> state_;
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
