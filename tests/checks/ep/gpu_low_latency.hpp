// SPDX-License-Identifier: Apache-2.0
// gpu_low_latency.hpp: runs low-latency mode of a group in GPU memory on a case and checks it on
// the host against the references of ep_case.hpp. Every difference throws.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checks/ep/gpu_normal.hpp"

namespace shoal::test {

inline constexpr ep::Reduction kReductions[] = {ep::Reduction::per_rank, ep::Reduction::exact};
/// LowLatencyDispatchOptions.defer_receive, and that of the combine.
inline constexpr bool kDeferrals[] = {true, false};

/// Options of a round beside its case; the same on all ranks.
struct GpuLowLatencyCall {
  ep::Quantize quantize = ep::Quantize::none;
  ep::Reduction reduction = ep::Reduction::per_rank;
  bool log_fmt = false;
  bool zero_copy = false;
  bool early_weights = false;  ///< they travel with the dispatch
  bool int32_topk = false;
  bool out = false;
  ep::Launch launch{};
  std::vector<int> masked{};
  /// Every rank has max_tokens tokens; those that the case does not have go to no expert, as in a
  /// batch that a captured graph takes.
  bool padded = false;
  /// false: receives are queued after their sends. If ranks do not share a GPU, receives start
  /// before the sends end.
  bool defer_receive = true;

  std::string describe() const;
};

/// The memory of scales, [experts, n, rows].
TensorView as_stored(const TensorView& scales);

/// Dispatch, experts and combine, each compared bit by bit; the parts can be called one by one.
class GpuLowLatencyRound {
 public:
  GpuLowLatencyRound(GpuGroup& owner, const EpCase& c, const GpuLowLatencyCall& call);

  /// All of it; the result is poisoned at the end.
  void run();

  ep::PendingDispatch send();
  void check(const ep::LowLatencyReceived& got);
  /// After check: writes the expert outputs to y; rows that no token fills hold NaN.
  void write_expert_output();
  /// The same for a captured combine: to the place that write_expert_output or choose_buffer has
  /// chosen.
  void write_expert_output_again();
  /// With zero_copy: chooses the group's buffer for the next combine as y, without writing to it.
  void choose_buffer() { y_ = owner_.group.next_combine_buffer(); }
  ep::PendingCombine answer(const ep::LowLatencyReceived& got);
  void check(const Tensor& out);
  /// Fills a result with 0xff, so that the next one in its place must write everything.
  void poison(const ep::LowLatencyReceived& got);
  void poison_out();

  /// Other values at the same addresses, as a replayed graph takes them.
  void change(const EpCase& now);
  /// For the next dispatch or combine.
  void defer_receive(bool defer) { call_.defer_receive = defer; }
  /// Expects operations to leave these ranks out from now on.
  void expect_masked(const std::vector<int>& masked) { call_.masked = masked; }

  const Tensor& x() const { return x_; }
  const Tensor& topk() const { return topk_; }
  const Tensor& weights() const { return weights_; }
  Tensor out() const { return Tensor(out_, nullptr); }  ///< where the result is asked for

 private:
  Tensor rows_on_host() const;
  Tensor topk_on_host() const;
  Tensor weights_on_host() const;
  Tensor expert_output_on_host() const;

  GpuGroup& owner_;
  EpCase case_;
  GpuLowLatencyCall call_;
  const std::int64_t tokens_;
  Tensor x_, topk_, weights_, out_memory_, own_y_;
  TensorView out_{}, y_{};
  ep::LowLatencyReceived host_;
};

/// A group of low-latency mode for each PE of a world of threads.
void run_low_latency_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
                           const std::function<void(ep::GroupOptions&)>& change = {});

/// The same rows and experts for all ranks: tests that need to know them.
struct PlainInputs {
  /// `experts`: [tokens, top_k]. Rows and weights are ones.
  PlainInputs(DeviceTensors& tensors, const EpCase& c, const std::vector<std::int64_t>& experts);
  Tensor x, topk, weights;
};

}  // namespace shoal::test
