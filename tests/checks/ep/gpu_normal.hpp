// SPDX-License-Identifier: Apache-2.0
// gpu_normal.hpp: runs normal mode of a group in GPU memory on a case, with rows of any dtype, and
// compares the results on the host with the references of case.hpp. Every difference throws.
#pragma once

#include <optional>

#include "checks/ep/expert_major.hpp"
#include "checks/ep/normal.hpp"
#include "support/cuda/device_tensors.hpp"

namespace shoal::test {

/// Settings of a world whose heap is in GPU memory. The PEs share the available GPUs.
Settings gpu_settings(std::size_t mebibytes = 256);

/// A group and the tensors of its PE.
class GpuGroup {
 public:
  GpuGroup(World& owner, const ep::GroupOptions& options);
  ~GpuGroup();
  GpuGroup(const GpuGroup&) = delete;
  GpuGroup& operator=(const GpuGroup&) = delete;

  /// Waits for the streams of this PE, replays of graphs included, which the group does not know,
  /// and throws what has failed on the GPU: values are compared only after that.
  void settle();

  World& world;
  DeviceTensors tensors;
  ep::Group group;
  const std::int32_t me;

 private:
  void* const stream_;
};

/// For check_expert_major of a group on GPUs.
TensorMover mover(GpuGroup& group);

/// Layout of scales in memory: one token after another; with a gap between tokens; one scale of all
/// tokens after another.
enum class ScaleOrder { contiguous, padded, columns };
/// Memory of the expert output: ordinary device memory, which combine stages; Dispatched::x; other
/// memory of the heap.
enum class OutputPlace { staged, in_place, heap };

/// Options of a round that its case does not hold; the same on all ranks.
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

  DataType output_dtype = DataType::bfloat16;
  OutputPlace place = OutputPlace::staged;
  int biases = 0;
  bool out = false;
  bool combine_weights = true;                         ///< with `weights`
  ep::Quantize combine_quantize = ep::Quantize::none;  ///< CombineOptions.quantize
  ep::Launch combine{};

  /// Calls have max_tokens tokens on every rank. Tokens beyond those of the case have no expert, as
  /// in the batch of a captured graph.
  bool padded = false;

  std::int64_t samples = 0;  ///< rows and tokens whose payload is compared; 0: all
};

/// Route, dispatch, experts and combine, each compared bit by bit. The parts can be called
/// separately. Rows are arbitrary bytes. Expert outputs depend on rank, source, token and channel.
/// They differ in magnitude, so the order of additions affects the result.
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
  /// Writes the expert output to the memory that GpuCall::place selects. A graph does not capture
  /// it.
  void write_expert_output(const ep::Dispatched& got);
  ep::Combined combine(const ep::Dispatched& got);

  void check(const ep::Routing& routing);
  /// `from_cache`: `got` is from a dispatch with a handle. `worst_case_layout`: the layout of that
  /// handle has no exact sizes.
  void check(const ep::Dispatched& got, bool from_cache = false, bool worst_case_layout = false);
  void check(const ep::Combined& got);
  /// Fills a result with 0xff, so that the next one in its place must write everything.
  void poison(const ep::Dispatched& got);

  // Write other values to the same addresses, as a replayed graph needs them: only rows, scales and
  // biases, or also indices and weights (requires `padded`).
  void change_rows(std::uint64_t seed);
  void change_case(const EpCase& now);
  std::int64_t rows() const { return static_cast<std::int64_t>(expected_.source_token.size()); }
  std::int64_t tokens() const { return tokens_; }
  const Tensor& x() const { return x_; }
  const TensorView& y() const { return y_; }  ///< what write_expert_output has written
  ep::DispatchOptions dispatch_options() const;

 private:
  std::size_t row_bytes() const;
  std::vector<std::int64_t> topk_values() const;  ///< [tokens, top_k]
  Tensor topk_on_host() const;
  Tensor weights_on_host() const;
  Tensor rows_on_host() const;
  Tensor scales_on_host() const;
  Tensor bias_on_host(int which) const;
  std::vector<std::uint32_t> expected_sum(std::int64_t token, const std::int64_t* experts) const;
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
