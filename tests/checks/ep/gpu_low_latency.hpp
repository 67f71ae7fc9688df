// SPDX-License-Identifier: Apache-2.0
// gpu_low_latency.hpp: runs low-latency mode of a group in GPU memory on a case and compares the
// results on the host with the references of case.hpp. Every difference throws.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checks/ep/gpu_normal.hpp"

namespace shoal::test {

inline constexpr ep::Reduction kReductions[] = {ep::Reduction::per_rank, ep::Reduction::exact};
/// LowLatencyDispatchOptions.defer_receive, and that of the combine.
inline constexpr bool kDeferrals[] = {true, false};

/// Options of a round that its case does not hold; the same on all ranks.
struct GpuLowLatencyCall {
  ep::Quantize quantize = ep::Quantize::none;
  ep::ScaleLayout scale_layout = ep::ScaleLayout::automatic;
  ep::Reduction reduction = ep::Reduction::per_rank;
  bool log_fmt = false;
  ep::Quantize combine_quantize = ep::Quantize::none;  ///< LowLatencyCombineOptions.quantize
  bool zero_copy = false;
  bool early_weights = false;  ///< they travel with the dispatch
  bool int32_topk = false;
  bool out = false;
  ep::Launch launch{};
  std::vector<int> masked{};
  /// Every rank has max_tokens tokens. Tokens beyond those of the case have no expert, as in the
  /// batch of a captured graph.
  bool padded = false;
  /// false: receives are queued after their sends. If ranks do not share a GPU, receives start
  /// before the sends end.
  bool defer_receive = true;
  /// [ranks] those that send expert outputs in place of sums, where ranks differ in that.
  std::vector<int> unsummed{};
  bool gives_rows = false;  ///< LowLatencyCombineOptions::unsummed

  std::string describe() const;
};

/// The memory of scales, as uint8 [bytes].
TensorView as_stored(const TensorView& scales);

/// Dispatch, experts and combine, each compared bit by bit. The parts can be called separately.
class GpuLowLatencyRound {
 public:
  GpuLowLatencyRound(GpuGroup& owner, const EpCase& c, const GpuLowLatencyCall& call);

  /// Runs the whole round and poisons the received rows.
  void run();

  ep::PendingDispatch send();
  void check(const ep::LowLatencyReceived& got);
  /// Writes the expert output to y; call it after check. Rows without a token hold NaN.
  void write_expert_output();
  /// The same for a captured combine: writes to the memory that write_expert_output or
  /// choose_buffer selected.
  void write_expert_output_again();
  /// With zero_copy: chooses the group's buffer for the next combine as y, without writing to it.
  void choose_buffer() { y_ = owner_.group.next_combine_buffer(); }
  ep::PendingCombine combine(const ep::LowLatencyReceived& got);
  void check(const Tensor& out);
  /// Fills a result with 0xff, so that the next one in its place must write everything.
  void poison(const ep::LowLatencyReceived& got);
  void poison_out();

  /// Writes other values to the same addresses, as a replayed graph needs them.
  void change(const EpCase& now);
  /// For the next dispatch or combine.
  void defer_receive(bool defer) { call_.defer_receive = defer; }
  /// Expects operations to leave these ranks out from now on.
  void expect_masked(const std::vector<int>& masked) { call_.masked = masked; }

  const Tensor& x() const { return x_; }
  const Tensor& topk() const { return topk_; }
  const Tensor& weights() const { return weights_; }
  Tensor out() const { return Tensor(out_, nullptr); }  ///< LowLatencyCombineOptions.out

 private:
  Tensor rows_on_host() const;
  Tensor topk_on_host() const;
  Tensor weights_on_host() const;
  Tensor expert_output_on_host() const;
  std::int64_t out_rows() const { return call_.gives_rows ? tokens_ * case_.top_k : tokens_; }

  GpuGroup& owner_;
  EpCase case_;
  GpuLowLatencyCall call_;
  const std::int64_t tokens_;
  Tensor x_, topk_, weights_, global_, out_memory_, ordinary_y_;
  TensorView out_{}, y_{};
  ep::LowLatencyReceived host_;
};

/// The emulated nodes of so many PEs: as many as the environment variable SHOAL_TEST_NODES says, or
/// one for each PE where they cannot be divided equally; 1 without it.
std::int32_t test_nodes(std::int32_t pes);

/// gpu_settings for so many PEs. On several nodes (test_nodes) they ask for kernels that send
/// between nodes: so the same tests run there. SHOAL_TEST_TRANSPORT: what carries it, such as ofi.
Settings low_latency_settings(std::int32_t pes, std::size_t mebibytes = 0);

/// Creates a low-latency group on each PE of a world of threads and runs `body` with it.
void run_low_latency_group(const EpCase& c, const std::function<void(GpuGroup&)>& body,
                           const std::function<void(ep::GroupOptions&)>& change = {});

/// Inputs with known values: rows and weights of ones, and the given experts.
struct PlainInputs {
  /// `experts`: [tokens, top_k].
  PlainInputs(DeviceTensors& tensors, const EpCase& c, const std::vector<std::int64_t>& experts);
  Tensor x, topk, weights;
};

}  // namespace shoal::test
