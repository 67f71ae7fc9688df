// SPDX-License-Identifier: Apache-2.0
// The layer on GPUs. All work is queued on the group's stream and timed by its events; the gate
// runs on the host.
#include "moe/layer.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <numeric>

#include "base/check.hpp"
#include "ep/numeric/scale.hpp"
#include "moe/expert_kernels.hpp"
#include "shoal/cuda.hpp"

namespace shoal::moe {

namespace {

/// Throws Error{system} with CUDA's name and text of the error and the failed action `what`.
void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // clear the error, so that the next launch reports its own
  fail(Code::system, "{}: {} ({})", what, cudaGetErrorString(status), cudaGetErrorName(status));
}

using Event = std::shared_ptr<CUevent_st>;

class CudaLayer final : public Layer {
 public:
  CudaLayer(const World& world, const Options& options, const Shape& shape, const Inputs& inputs);

 private:
  void begin(const char* phase) override;
  void end() override;
  void drain() override;
  Tensor place(const Tensor& on_host) override;
  /// Waits for the copy. Must not follow kernels that wait for other PEs: a copy to pageable memory
  /// can block the other threads of this process until it ends.
  void fetch(void* target, const TensorView& source) override;
  ExpertOutput apply_experts(const ep::Dispatched& rows) override;
  void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) override;

  /// A tensor with undefined contents, allocated and freed in stream order, so that no call waits
  /// for the GPU or for other PEs on it.
  Tensor tensor(DataType dtype, std::initializer_list<std::int64_t> shape) const;
  /// Makes `kept` a tensor of this shape. Its contents are lost if the shape differs.
  const Tensor& reserve(Tensor& kept, DataType dtype, std::initializer_list<std::int64_t> shape);
  void copy(void* target, const void* source, std::size_t bytes) const;
  void wait() const { check_cuda(cudaStreamSynchronize(stream_), "waiting for the GPU"); }
  Event record() const;
  /// Queues the experts' kernels for rows whose strides are those of x, scales and y.
  void launch(ExpertRows rows, const ConstTensorView& x, const ConstTensorView& scales,
              const TensorView& y);

  struct TimedPhase {
    std::size_t index;  // in times_
    Event begin, end;
  };

  int device_;
  cudaStream_t stream_;
  Tensor weights_, inner_, topk_idx_, topk_weights_, topk_rows_, x_, scales_, row_weights_, y_;
  std::vector<TimedPhase> phases_;
};

/// Makes the PE's GPU current on this thread.
int use_gpu_of(const World& world) {
  const int device = cuda::launch_context(world).device;
  check_cuda(cudaSetDevice(device), "choosing this PE's GPU");
  check_cuda(load_experts(), "loading the kernels of the experts");
  return device;
}

CudaLayer::CudaLayer(const World& world, const Options& options, const Shape& shape,
                     const Inputs& inputs)
    : Layer(world.team(), options, shape, inputs),
      device_(use_gpu_of(world)),
      stream_(static_cast<cudaStream_t>(group_.stream())),
      weights_(tensor(DataType::bfloat16,
                      {shape.experts_of(world.my_pe()), 3, shape.hidden, shape.ffn})) {
  const std::int64_t size = 3 * shape.hidden * shape.ffn;
  std::vector<ep::numeric::Bf16> rounded(static_cast<std::size_t>(size));
  for (std::int32_t e = 0; e < shape.experts_of(world.my_pe()); ++e) {
    std::ranges::transform(load_weights(options, shape, first_expert() + e), rounded.begin(),
                           [](float value) { return ep::numeric::to_bf16(value); });
    copy(weights_.as<ep::numeric::Bf16>() + e * size, rounded.data(),
         rounded.size() * sizeof rounded[0]);
    wait();
  }
}

Tensor CudaLayer::tensor(DataType dtype, std::initializer_list<std::int64_t> shape) const {
  TensorView view(nullptr, dtype, shape);
  check_cuda(cudaMallocAsync(&view.data, std::max<std::size_t>(view.bytes(), 16), stream_),
             "GPU memory of the experts");
  view.device = {DeviceKind::cuda, device_};
  return {view,
          {view.data, [stream = stream_](void* memory) { (void)cudaFreeAsync(memory, stream); }}};
}

const Tensor& CudaLayer::reserve(Tensor& kept, DataType dtype,
                                 std::initializer_list<std::int64_t> shape) {
  const bool fits =
      kept.dtype == dtype && std::ranges::equal(std::span(kept.shape).first(shape.size()), shape);
  if (!fits) kept = Tensor();
  if (!fits) kept = tensor(dtype, shape);
  return kept;
}

void CudaLayer::copy(void* target, const void* source, std::size_t bytes) const {
  if (bytes > 0)
    check_cuda(cudaMemcpyAsync(target, source, bytes, cudaMemcpyDefault, stream_),
               "copying between host and GPU");
}

Tensor CudaLayer::place(const Tensor& on_host) {
  Tensor placed = tensor(on_host.dtype, {on_host.shape[0], on_host.shape[1]});
  copy(placed.data, on_host.data, placed.bytes());
  return placed;
}

void CudaLayer::fetch(void* target, const TensorView& source) {
  copy(target, source.data, source.bytes());
  wait();
}

Event CudaLayer::record() const {
  cudaEvent_t event{};
  check_cuda(cudaEventCreate(&event), "creating an event");
  Event owned(event, [](cudaEvent_t made) { (void)cudaEventDestroy(made); });
  check_cuda(cudaEventRecord(event, stream_), "recording an event");
  return owned;
}

void CudaLayer::begin(const char* phase) {
  times_.emplace_back(phase, 0);
  phases_.push_back({times_.size() - 1, record(), nullptr});
}

void CudaLayer::end() {
  phases_.back().end = record();
}

void CudaLayer::drain() {
  group_.synchronize();
  wait();
  for (const auto& [index, begin, end] : phases_) {
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "reading events");
    times_[index].second = milliseconds;
  }
  phases_.clear();
}

void CudaLayer::launch(ExpertRows rows, const ConstTensorView& x, const ConstTensorView& scales,
                       const TensorView& y) {
  const auto strides = [](const ConstTensorView& tensor) -> RowStrides {
    if (!tensor.defined()) return {};
    return {tensor.rank == 3 ? tensor.strides[0] : 0, tensor.strides[tensor.rank - 2],
            tensor.strides[tensor.rank - 1]};
  };
  rows.experts = static_cast<std::int32_t>(expert_load_.size());
  rows.most_rows = expert_load_.empty() ? 0 : std::ranges::max(expert_load_);
  rows.hidden = shape_.hidden;
  rows.ffn = shape_.ffn;
  rows.x = x.data;
  rows.x_strides = strides(x);
  rows.scales = scales.as<float>();
  rows.scale_strides = strides(scales);
  rows.y = y.as<std::uint16_t>();
  rows.y_strides = strides(y);
  rows.weights = weights_.as<std::uint16_t>();
  const Tensor& inner =
      x.rank == 3 ? reserve(inner_, DataType::float32, {x.shape[0], x.shape[1], shape_.ffn})
                  : reserve(inner_, DataType::float32, {x.shape[0], shape_.ffn});
  rows.inner = inner.as<float>();
  rows.inner_strides = strides(inner);
  check_cuda(launch_experts(rows, stream_), "starting the experts' kernels");
}

/// Copies the rows to expert-major order; combine adds the outputs of a row's experts.
Layer::ExpertOutput CudaLayer::apply_experts(const ep::Dispatched& rows) {
  const std::int64_t received = rows.x.shape[0], top_k = shape_.gate.top_k, hidden = shape_.hidden;
  const std::int64_t copies = std::max<std::int64_t>(
      1, std::accumulate(expert_load_.begin(), expert_load_.end(), std::int64_t{0}));
  ep::ExpandOptions expand{.x = rows.x,
                           .topk_idx = reserve(topk_idx_, DataType::int64, {received, top_k}),
                           .tokens_per_expert = rows.device_counts->tokens_per_expert,
                           .expert_ends = *rows.device_counts->expert_ends,
                           .weights = reserve(topk_weights_, DataType::float32, {received, top_k}),
                           .scales = rows.scales.value_or(Tensor()),
                           .topk_rows = reserve(topk_rows_, DataType::int32, {received, top_k}),
                           .out = reserve(x_, rows.x.dtype, {copies, hidden}),
                           .out_weights = reserve(row_weights_, DataType::float32, {copies})};
  if (rows.scales.has_value())
    expand.out_scales = reserve(scales_, DataType::float32, {copies, rows.scales->shape[1]});
  group_.unpack(rows, {.topk_idx = topk_idx_, .topk_weights = topk_weights_});
  group_.expand(expand);
  const Tensor& y = reserve(y_, DataType::bfloat16, {copies, hidden});
  launch({.counts = rows.device_counts->tokens_per_expert.as<std::int32_t>(),
          .ends = rows.device_counts->expert_ends->as<std::int32_t>(),
          .row_weights = row_weights_.as<float>()},
         expand.out, expand.out_scales, y);
  return {y, {.topk_rows = topk_rows_}};
}

void CudaLayer::apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) {
  launch({.counts = rows.counts.as<std::int32_t>()}, rows.x, rows.scales.value_or(Tensor()), y);
}

}  // namespace

std::unique_ptr<Layer> make_cuda_layer(const World& world, const Options& options,
                                       const Shape& shape, const Inputs& inputs) {
  return std::make_unique<CudaLayer>(world, options, shape, inputs);
}

}  // namespace shoal::moe
