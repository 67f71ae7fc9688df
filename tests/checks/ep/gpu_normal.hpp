// SPDX-License-Identifier: Apache-2.0
// gpu_normal.hpp: runs normal mode of a group in GPU memory on a case, with rows of any kind, and
// checks it on the host against the references of ep_case.hpp. Every difference throws.
#pragma once

#include <optional>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/normal.hpp"
#include "support/cuda/device_tensors.hpp"

namespace shoal::test {

/// A world whose heap is in GPU memory: one GPU for all PEs, or more where there are more.
Settings gpu_settings(std::size_t mebibytes = 256);

/// A group and the tensors of its PE.
class GpuGroup {
 public:
  GpuGroup(World& owner, const ep::GroupOptions& options);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  World& world;
  DeviceTensors tensors;
  ep::Group group;
  const std::int32_t me;

 private:
  void* const stream_;
};

/// For check_expert_major of a group on GPUs.
TensorMover mover(GpuGroup& group);

/// How scales lie in memory: one token after another; with a gap between tokens; one scale of all
/// tokens after another.
enum class ScaleOrder { contiguous, padded, columns };
/// Where the expert outputs that combine fetches lie: in ordinary device memory; in Dispatched::x;
/// elsewhere in the heap.
enum class AnswerPlace { staged, in_place, heap };

/// Options of a round beside its case; the same on all ranks.
struct GpuCall {
  DataType dtype = DataType::bfloat16;
  std::int64_t columns = 0;  ///< of opaque rows; 0: EpCase::hidden
  DataType scale_dtype = DataType::float32;
  std::int64_t scales = 0;  ///< a row; 0: none
  ScaleOrder scale_order = ScaleOrder::contiguous;
  bool weights = true;
  bool int32_topk = false;
  /// Everything but weights and scales.
  ep::DispatchOptions dispatch{};

  DataType answer = DataType::bfloat16;
  AnswerPlace place = AnswerPlace::staged;
  int biases = 0;
  bool out = false;
  bool combine_weights = true;  ///< with `weights`
  ep::Launch combine{};

  /// Calls have max_tokens tokens on every rank; those that the case does not have go to no
  /// expert, as in a batch that a captured graph takes.
  bool padded = false;

  std::int64_t samples = 0;  ///< rows and tokens whose payload is compared; 0: all
};

/// Route, dispatch, experts, combine, each compared bit by bit; the parts can be called one by one.
/// Rows are arbitrary bytes. Expert outputs depend on rank, source, token and channel, and differ
/// in magnitude, so that the order of additions shows in the result.
class GpuRound {
 public:
  GpuRound(GpuGroup& owner, const EpCase& c, const GpuCall& call);
  ~GpuRound();
  GpuRound(const GpuRound&) = delete;
  GpuRound& operator=(const GpuRound&) = delete;

  void run();

  ep::Routing route(const ep::Launch& launch = {});
  ep::Dispatched dispatch(const ep::Routing& routing);
  ep::Dispatched dispatch(const ep::Handle& handle);
  /// Writes the expert outputs to the place that GpuCall names. It is no part of what a graph
  /// captures.
  void write_expert_output(const ep::Dispatched& got);
  ep::Combined combine(const ep::Dispatched& got);

  void check(const ep::Routing& routing);
  /// `from_cache`: of a dispatch with a handle, whose layout had no exact sizes where
  /// `worst_case_layout`.
  void check(const ep::Dispatched& got, bool from_cache = false, bool worst_case_layout = false);
  void check(const ep::Combined& got);
  /// Fills a result with 0xff, so that the next one in its place must write everything.
  void poison(const ep::Dispatched& got);

  // Other values at the same addresses, as a replayed graph takes them: rows, scales and biases
  // alone, or with indices and weights (`padded`).
  void change_rows(std::uint64_t seed);
  void change_case(const EpCase& now);
  std::int64_t rows() const { return static_cast<std::int64_t>(expected_.source_token.size()); }
  std::int64_t tokens() const { return tokens_; }
  const Tensor& x() const { return x_; }
  const TensorView& y() const { return y_; }  ///< what write_expert_output has written
  ep::DispatchOptions dispatch_options() const;

 private:
  std::size_t row_bytes() const;
  std::vector<std::int64_t> lanes() const;  ///< [tokens, top_k]
  Tensor topk_on_host() const;
  Tensor weights_on_host() const;
  Tensor rows_on_host() const;
  Tensor scales_on_host() const;
  Tensor bias_on_host(int which) const;
  std::vector<std::uint32_t> expected_answer(std::int64_t token, const std::int64_t* lanes) const;
  void check_rows(const ep::Dispatched& got);
  void check_side(const ep::Dispatched& got, bool from_cache);

  GpuGroup& owner_;
  EpCase case_;
  GpuCall call_;
  std::uint64_t salt_;  // of rows and expert outputs
  std::int64_t tokens_, columns_;
  ExpectedDispatch expected_;
  Tensor x_, topk_, weights_, scale_memory_, out_;
  TensorView scales_{}, y_{};
  Tensor staged_;
  std::vector<Tensor> biases_;
  void* heap_ = nullptr;
};

}  // namespace shoal::test
