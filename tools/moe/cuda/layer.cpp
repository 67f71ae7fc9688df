// SPDX-License-Identifier: Apache-2.0
// The layer on GPUs. All work is queued on the group's stream and timed by its events; the gate
// runs on the host.
//
// Before every phase each PE drains its stream, then all PEs meet in a barrier on the host. So each
// phase is timed alone. While experts run, cuBLASLt may load kernels and allocate memory; no kernel
// of another PE on the same GPU is then waiting for this PE.
#include "moe/cuda/layer.hpp"

#include <cstring>

#include "base/check.hpp"
#include "ep/numeric/scale.hpp"
#include "moe/cuda/blas.hpp"
#include "moe/cuda/experts.hpp"
#include "moe/cuda/kernels.hpp"
#include "shoal/collective.hpp"
#include "shoal/cuda.hpp"

namespace shoal::moe {

namespace {

/// Times phases by pairs of events on a stream.
class PhaseEvents {
 public:
  PhaseEvents() = default;
  ~PhaseEvents() {
    for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  }
  PhaseEvents(const PhaseEvents&) = delete;
  PhaseEvents& operator=(const PhaseEvents&) = delete;

  /// Runs `call`, which queues work on `stream`, between two events.
  template <typename Call>
  auto time(const char* phase, cudaStream_t stream, Call call) {
    mark(stream);
    auto result = call();
    mark(stream);
    names_.emplace_back(phase);
    return result;
  }
  /// Appends the times of all phases and starts over. The stream must be idle.
  void take(PhaseTimes& times) {
    for (std::size_t i = 0; i < names_.size(); ++i) {
      float milliseconds = 0;
      check_cuda(cudaEventElapsedTime(&milliseconds, events_[2 * i], events_[2 * i + 1]),
                 "reading events");
      times.emplace_back(names_[i], milliseconds);
    }
    clear();
  }
  void clear() {
    names_.clear();
    used_ = 0;
  }

 private:
  void mark(cudaStream_t stream) {
    if (used_ == events_.size()) {
      cudaEvent_t event{};
      check_cuda(cudaEventCreate(&event), "making an event");
      events_.push_back(event);
    }
    check_cuda(cudaEventRecord(events_[used_++], stream), "recording an event");
  }

  std::vector<cudaEvent_t> events_;
  std::vector<const char*> names_;
  std::size_t used_ = 0;
};

class CudaLayer final : public Layer {
 public:
  CudaLayer(const World& world, const Options& options, const Shape& shape, const Inputs& inputs);

  Tensor run(PhaseTimes& times) override;
  void warmup() override;
  std::string experts_run_by() const override { return library_->version(); }

 private:
  /// A tensor in GPU memory with undefined contents.
  Tensor tensor(DataType dtype, std::initializer_list<std::int64_t> shape) const;
  void upload(const TensorView& target, const void* source) const;
  /// Queues a copy to the host; complete after the next wait(). Must not be queued after kernels
  /// that wait for other PEs: a copy to pageable memory can block the other threads of this process
  /// until it ends.
  void fetch(void* target, const TensorView& source) const;
  void wait() const { check_cuda(cudaStreamSynchronize(stream_), "waiting for the GPU"); }
  /// Waits for this PE's work, throws its errors, and waits for the other PEs.
  void meet();
  template <typename Call>
  auto timed(const char* phase, Call call) {
    return events_.time(phase, stream_, std::move(call));
  }

  void run_normal();
  void run_low_latency();
  ep::Dispatched dispatch(const ep::Routing& routing);
  /// Returns the expert output for the rows of a normal-mode dispatch. Overwrites bfloat16 rows in
  /// place.
  TensorView apply_experts(const ep::Dispatched& rows);
  void apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y);
  /// The memory for the expert output of `rows`.
  TensorView expert_output_of(const ep::Dispatched& rows);
  /// Sends weights to the experts and back: they must return with the same bits.
  void check_weights();

  int device_;
  cudaStream_t stream_;
  std::shared_ptr<const CublasLt> library_;
  CudaExperts experts_;
  Tensor x_, codes_, scales_, topk_idx_, topk_weights_, output_;
  StreamMemory slots_, expert_output_;
  PhaseEvents events_;
};

/// Makes the PE's GPU current on this thread. Called first, because the other initialisers need it.
int use_gpu_of(const World& world) {
  const int device = cuda::launch_context(world).device;
  check_cuda(cudaSetDevice(device), "choosing this PE's GPU");
  load_kernels();
  return device;
}

CudaLayer::CudaLayer(const World& world, const Options& options, const Shape& shape,
                     const Inputs& inputs)
    : Layer(world.team(), options, shape, inputs),
      device_(use_gpu_of(world)),
      stream_(static_cast<cudaStream_t>(group_.stream())),
      library_(CublasLt::load(options.cublaslt)),
      experts_(library_, options, shape, first_expert(), stream_),
      x_(tensor(DataType::bfloat16, {tokens(), shape.hidden})),
      topk_idx_(tensor(DataType::int64, {tokens(), shape.gate.top_k})),
      topk_weights_(tensor(DataType::float32, {tokens(), shape.gate.top_k})),
      output_(tensor(DataType::bfloat16, {tokens(), shape.hidden})) {
  upload(x_, inputs.x.data());
  if (options.row_format == RowFormat::bf16 || options.mode == Mode::low_latency) return;
  codes_ = tensor(DataType::float8_e4m3, {tokens(), shape.hidden});
  const auto groups = ep::numeric::group_count(static_cast<std::size_t>(shape.hidden));
  scales_ = tensor(DataType::float32, {tokens(), static_cast<std::int64_t>(groups)});
}

Tensor CudaLayer::tensor(DataType dtype, std::initializer_list<std::int64_t> shape) const {
  TensorView view(nullptr, dtype, shape);
  const StreamMemory memory(view.bytes(), stream_);
  view.data = memory.as<void>();
  view.device = {DeviceKind::cuda, device_};
  return {view, memory.owner()};
}

void CudaLayer::upload(const TensorView& target, const void* source) const {
  if (target.bytes() == 0) return;
  check_cuda(cudaMemcpyAsync(target.data, source, target.bytes(), cudaMemcpyHostToDevice, stream_),
             "copying to the GPU");
}

void CudaLayer::fetch(void* target, const TensorView& source) const {
  if (source.bytes() == 0) return;
  check_cuda(cudaMemcpyAsync(target, source.data, source.bytes(), cudaMemcpyDeviceToHost, stream_),
             "copying from the GPU");
}

void CudaLayer::meet() {
  group_.synchronize();
  wait();
  barrier(team_);
}

Tensor CudaLayer::run(PhaseTimes& times) {
  times.clear();
  events_.clear();
  run_gate(times);
  upload(topk_idx_, gated_.topk_idx.data);
  upload(topk_weights_, gated_.topk_weights.data);
  wait();
  rows_to_.assign(static_cast<std::size_t>(shape_.pes), 0);
  options_.mode == Mode::normal ? run_normal() : run_low_latency();
  Tensor result = Tensor::empty(DataType::bfloat16, {tokens(), shape_.hidden});
  fetch(result.data, output_);
  meet();
  events_.take(times);
  return result;
}

void CudaLayer::warmup() {
  group_.warmup();
  meet();
  PhaseTimes times;
  run(times);  // allocates memory; cuBLASLt chooses algorithms and loads kernels
  if (options_.mode == Mode::normal) check_weights();
}

void CudaLayer::run_normal() {
  meet();
  const ep::Routing routing = timed("route", [&] { return group_.route(topk_idx_); });
  fetch(rows_to_.data(), routing.rank_counts);
  nodes_ = routing.node_counts.shape[0];
  meet();
  const ep::Dispatched rows = timed("dispatch", [&] { return dispatch(routing); });
  meet();
  expert_load_ = rows.tokens_per_expert;
  const TensorView y = timed("experts", [&] { return apply_experts(rows); });
  meet();
  timed("combine", [&] { return group_.combine(y, rows.handle, {.out = output_}); });
  meet();
}

ep::Dispatched CudaLayer::dispatch(const ep::Routing& routing) {
  if (options_.row_format == RowFormat::bf16)
    return group_.dispatch(x_, routing, {.weights = topk_weights_});
  quantize_rows(stream_, x_, codes_, scales_);
  return group_.dispatch(codes_, routing, {.weights = topk_weights_, .scales = scales_});
}

TensorView CudaLayer::expert_output_of(const ep::Dispatched& rows) {
  if (rows.x.dtype == DataType::bfloat16) return rows.x;
  TensorView y(nullptr, DataType::bfloat16, {rows.x.shape[0], shape_.hidden});
  expert_output_.reserve(y.bytes(), stream_);
  y.data = expert_output_.as<void>();
  y.device = rows.x.device;
  return y;
}

TensorView CudaLayer::apply_experts(const ep::Dispatched& rows) {
  const TensorView y = expert_output_of(rows);
  slots_.reserve(static_cast<std::size_t>(rows.topk_idx.size()) * sizeof(std::int32_t), stream_);
  auto* const slots = slots_.as<std::int32_t>();
  experts_.run(
      rows.tokens_per_expert,
      [&](const Packed& packed) {
        index_rows(stream_, rows.topk_idx, packed.first_row, shape_.local_experts(), slots);
        pack_rows(stream_, rows.x, rows.scales, rows.topk_idx, slots, packed);
      },
      [&](const Packed& packed) {
        unpack_rows(stream_, packed, rows.topk_idx, rows.topk_weights, slots, y);
      });
  return y;
}

void CudaLayer::check_weights() {
  meet();
  const ep::Routing routing = group_.route(topk_idx_);
  const ep::Dispatched rows = dispatch(routing);
  const ep::Combined combined = group_.combine(expert_output_of(rows), rows.handle,
                                               {.weights = rows.topk_weights, .out = output_});
  std::vector<std::uint32_t> returned(static_cast<std::size_t>(gated_.topk_weights.size())),
      sent(returned);
  meet();
  fetch(returned.data(), combined.topk_weights);
  wait();
  if (!sent.empty())
    std::memcpy(sent.data(), gated_.topk_weights.data, gated_.topk_weights.bytes());
  for (std::size_t i = 0; i < sent.size(); ++i) differing_values_ += sent[i] != returned[i] ? 1 : 0;
}

void CudaLayer::run_low_latency() {
  const ep::Routing routing = group_.route(topk_idx_);
  fetch(rows_to_.data(), routing.rank_counts);
  nodes_ = routing.node_counts.shape[0];
  const auto quantize =
      options_.row_format == RowFormat::fp8 ? ep::Quantize::fp8 : ep::Quantize::none;
  meet();
  auto sent = timed("dispatch_send", [&] {
    return group_.low_latency_dispatch(x_, topk_idx_,
                                       {.quantize = quantize, .weights = topk_weights_});
  });
  const ep::LowLatencyReceived rows = timed("dispatch_receive", [&] { return sent.receive(); });
  meet();
  const TensorView y = timed("experts", [&] {
    const TensorView target = group_.next_combine_buffer();
    apply_experts(rows, target);
    return target;
  });
  meet();
  auto combine = timed("combine_send", [&] {
    return group_.low_latency_combine(y, topk_idx_, topk_weights_, rows.handle,
                                      {.zero_copy = true, .out = output_});
  });
  timed("combine_receive", [&] { return combine.receive(); });
  meet();
}

void CudaLayer::apply_experts(const ep::LowLatencyReceived& rows, const TensorView& y) {
  // The host starts the products and therefore needs the counts. This copy is part of the experts'
  // time.
  std::vector<std::int32_t> counts(expert_load_.size());
  fetch(counts.data(), rows.counts);
  wait();
  expert_load_.assign(counts.begin(), counts.end());
  const auto* const device_counts = rows.counts.as<std::int32_t>();
  experts_.run(
      expert_load_,
      [&](const Packed& packed) {
        pack_expert_rows(stream_, rows.x, rows.scales, device_counts, packed);
      },
      [&](const Packed& packed) { unpack_expert_rows(stream_, packed, device_counts, y); });
}

}  // namespace

std::unique_ptr<Layer> make_cuda_layer(const World& world, const Options& options,
                                       const Shape& shape, const Inputs& inputs) {
  return std::make_unique<CudaLayer>(world, options, shape, inputs);
}

}  // namespace shoal::moe
