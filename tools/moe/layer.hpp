// SPDX-License-Identifier: Apache-2.0
// layer.hpp: one mixture-of-experts layer over a group: route, dispatch, experts, combine, in
// either mode.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moe/experts.hpp"
#include "moe/inputs.hpp"
#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/world.hpp"

namespace shoal::moe {

/// Milliseconds per phase, in the order of the phases; the same phases on every PE.
using PhaseTimes = std::vector<std::pair<std::string, double>>;

/// The common part of both backends. Used by one thread.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// Runs the layer once. A barrier before dispatch and before combine makes each phase measurable
  /// alone. Returns bfloat16 [tokens, hidden] on the host.
  virtual Tensor run(PhaseTimes& times) = 0;
  virtual void warmup() { group_.warmup(); }
  void close() { group_.close(); }

  const ep::Gated& gated() const { return gated_; }
  /// Rows that this PE sends to each rank: one per token and rank that holds one of its experts.
  const std::vector<std::int32_t>& rows_to() const { return rows_to_; }
  /// Nodes of the group in the last run.
  std::int64_t nodes() const { return nodes_; }
  /// Tokens that each of this PE's experts received in the last run.
  const std::vector<std::int64_t>& expert_load() const { return expert_load_; }
  /// Values that went to the experts and back unchanged but returned with other bits.
  std::int64_t differing_values() const { return differing_values_; }
  /// Bytes of a dispatched row including its scales.
  std::int64_t dispatch_row_bytes() const;
  /// The library that computes the experts, for the report; empty for this program's own code.
  virtual std::string experts_run_by() const { return {}; }

 protected:
  /// Collective over the team. `inputs` are those of this PE; options, shape and inputs must
  /// outlive the layer.
  Layer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs);

  /// Chooses the experts of this PE's tokens on the host.
  void run_gate(PhaseTimes& times);
  std::int64_t tokens() const { return shape_.tokens_of(team_.my_pe()); }
  std::int32_t first_expert() const { return team_.my_pe() * shape_.local_experts(); }

  Team team_;
  const Options& options_;
  const Shape& shape_;
  const Inputs& inputs_;
  ep::Group group_;
  ep::Gated gated_;
  std::vector<std::int32_t> rows_to_;
  std::vector<std::int64_t> expert_load_;
  std::int64_t nodes_ = 1;
  std::int64_t differing_values_ = 0;
};

/// Creates the layer of the chosen backend with the weights of this PE's experts. Collective.
std::unique_ptr<Layer> make_layer(const World& world, const Options& options, const Shape& shape,
                                  const Inputs& inputs);

/// Throws Error{unsupported} with the reason and a remedy if this machine or this build cannot run
/// options.backend. Not collective.
void check_backend(const Options& options);

}  // namespace shoal::moe
