// shoal_moe_layer.hpp: one mixture-of-experts layer over a group: route, dispatch, experts, combine, in either mode.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal_moe_experts.hpp"
#include "shoal_moe_inputs.hpp"

namespace shoal::moe {

/// Milliseconds by phase, in the order in which phases ran; the same phases on every PE.
using PhaseTimes = std::vector<std::pair<std::string, double>>;

class Layer {
 public:
  /// Collective over the team. `inputs` are this PE's and must outlive the layer. Loads the weights of this PE's
  /// experts.
  Layer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs);

  /// Runs the layer once; PEs meet before dispatch and before combine, so that each phase is measured by itself.
  /// Returns bfloat16 [tokens, hidden].
  Tensor run(PhaseTimes& times);

  void warmup() { group_.warmup(); }
  void close() { group_.close(); }

  const ep::Gated& gated() const { return gated_; }
  /// Rows that this PE sends to each member: a token once for each member that holds one of its experts.
  const std::vector<std::int32_t>& rows_to() const { return rows_to_; }
  /// Tokens that came to each of this PE's experts in the last run.
  const std::vector<std::int64_t>& expert_load() const { return expert_load_; }
  /// Bytes of a dispatched row, its scales included.
  std::int64_t dispatch_row_bytes() const;

 private:
  struct Row {
    std::size_t row;
    float weight;
  };

  Tensor run_normal(PhaseTimes& times);
  Tensor run_low_latency(PhaseTimes& times);
  void quantize_tokens(Tensor& codes, Tensor& scales) const;
  /// Answers to the rows of a normal-mode dispatch: each the weighted sum over this PE's experts. Written over the rows
  /// where possible.
  Tensor apply_experts(const ep::Dispatched& rows);
  void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y);
  TensorView tokens_view() const;

  Team team_;
  const Options& options_;
  const Shape& shape_;
  const Inputs& inputs_;
  ep::Group group_;
  FeedForward<float> feed_forward_;
  std::vector<ExpertWeights> experts_;
  ep::Gated gated_;
  std::vector<std::int32_t> rows_to_;
  std::vector<std::int64_t> expert_load_;
};

}  // namespace shoal::moe
