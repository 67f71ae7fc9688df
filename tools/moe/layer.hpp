// SPDX-License-Identifier: Apache-2.0
// layer.hpp: one mixture-of-experts layer over a group: route, dispatch, experts, combine, in
// either mode.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "moe/inputs.hpp"
#include "shoal/ep/gate.hpp"
#include "shoal/ep/group.hpp"
#include "shoal/world.hpp"

namespace shoal::moe {

/// Milliseconds per phase, in the order of the phases; the same phases on every PE.
using PhaseTimes = std::vector<std::pair<std::string, double>>;

/// The layer and the sequence of its phases; a backend adds where tensors lie, how phases are
/// timed, and the experts. Used by one thread.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// Runs the layer once. A barrier before dispatch, experts and combine makes each phase
  /// measurable alone. Returns bfloat16 [tokens, hidden] on the host.
  Tensor run(PhaseTimes& times);
  /// Prepares the group; on GPUs also runs the layer once.
  void warmup();
  void close() { group_.close(); }

  const ep::Gated& gated() const { return gated_; }
  /// Rows that this PE sends to each rank: one per token and rank that holds one of its experts.
  const std::vector<std::int32_t>& rows_to() const { return rows_to_; }
  /// Nodes of the group in the last run.
  std::int64_t nodes() const { return nodes_; }
  /// Tokens that each of this PE's experts received in the last run.
  const std::vector<std::int64_t>& expert_load() const { return expert_load_; }
  /// Bytes of a dispatched row including its scales.
  std::int64_t dispatch_row_bytes() const;

 protected:
  /// Input of combine in normal mode: the expert output, and how its rows are added.
  struct ExpertOutput {
    Tensor y;
    ep::CombineOptions options;
  };

  /// Collective over the team. `inputs` are those of this PE; options, shape and inputs must
  /// outlive the layer.
  Layer(const Team& team, const Options& options, const Shape& shape, const Inputs& inputs);

  std::int32_t first_expert() const { return shape_.first_expert(team_.my_pe()); }

  /// Begin and end a phase, which is added to times_.
  virtual void begin(const char* phase);
  virtual void end();
  /// Waits for this PE's queued work, throws its errors and completes times_.
  virtual void drain() {}
  /// The tensor where the group lies.
  virtual Tensor place(const Tensor& on_host) { return on_host; }
  /// Copies a contiguous tensor of the group to the host.
  virtual void fetch(void* target, const TensorView& source);
  virtual ExpertOutput apply_experts(const ep::Dispatched& rows) = 0;
  virtual void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) = 0;

  Team team_;
  const Options& options_;
  const Shape& shape_;
  const Inputs& inputs_;
  ep::Group group_;
  std::vector<std::int64_t> expert_load_;
  PhaseTimes times_;

 private:
  template <typename Call>
  auto timed(const char* phase, Call call);
  /// Drains this PE's work and waits for the other PEs.
  void meet();
  void place_inputs();
  void take_counts(const ep::Routing& routing);
  void run_normal();
  void run_low_latency();

  ep::Gated gated_;
  Tensor x_, codes_, scales_, topk_idx_, topk_weights_, output_;  ///< where the group lies
  std::vector<std::int32_t> rows_to_;
  std::int64_t nodes_ = 1;
  std::chrono::steady_clock::time_point start_;
};

/// Creates the layer of the chosen backend with the weights of this PE's experts. Collective.
std::unique_ptr<Layer> make_layer(const World& world, const Options& options, const Shape& shape,
                                  const Inputs& inputs);
std::unique_ptr<Layer> make_host_layer(const Team& team, const Options& options, const Shape& shape,
                                       const Inputs& inputs);
/// In builds with CUDA. The world's heap is in GPU memory, and check_backend has passed.
std::unique_ptr<Layer> make_cuda_layer(const World& world, const Options& options,
                                       const Shape& shape, const Inputs& inputs);

/// Throws Error{unsupported} with the reason and a remedy if this machine or this build cannot run
/// options.backend. Not collective.
void check_backend(const Options& options);

}  // namespace shoal::moe
