// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/low_latency/low_latency.hpp"

#include "ep/cuda/low_latency/parts.hpp"
#include "memory/cuda/stream_pool.hpp"
#include "pe/memory.hpp"

namespace shoal::ep::cuda {

LowLatency::LowLatency(CudaGroup& group, bool internode)
    : LowLatencyMode(detail::BackendKind::cuda), group_(group) {
  Shape shape = group.state.shape;
  shape.internode = internode;
  std::size_t handle_bytes = 0, pending_bytes = 0;
  handle_view(nullptr, shape, &handle_bytes);
  pending_view(nullptr, shape, &pending_bytes);
  parts_ = std::make_unique<Parts>(group, handle_bytes, pending_bytes);
  if (shape.low_latency_max_tokens == 0) return;
  require(shape.low_latency_max_tokens < kMaxSlotTokens, Code::unsupported,
          "SHOAL-N555: GroupOptions.low_latency_max_tokens is {}; on GPUs at most {}",
          shape.low_latency_max_tokens, kMaxSlotTokens - 1);
  require(shape.local_experts <= kMaxLocalExperts, Code::unsupported,
          "SHOAL-N555: low-latency mode on GPUs has at most {} experts a rank; this group has {} "
          "(GroupOptions.experts)",
          kMaxLocalExperts, shape.local_experts);
  require(shape.local_experts * shape.low_latency_rows() < kMaxLowLatencyRows, Code::unsupported,
          "SHOAL-N555: low-latency mode on GPUs has fewer than {} rows a rank; experts * "
          "low_latency_max_tokens is {}",
          kMaxLowLatencyRows, shape.local_experts * shape.low_latency_rows());
  const detail::DeviceLayout layout(shape);
  require(layout.combine_places * (layout.combine_row_bytes / sizeof(uint4)) < kMaxCombineRowChunks,
          Code::unsupported,
          "SHOAL-N555: low-latency mode on GPUs has at most 64 GiB of combine rows; "
          "low_latency_max_tokens ({}) tokens of {} ranks have room for {} of {} bytes",
          shape.low_latency_max_tokens, shape.ranks, layout.combine_places,
          layout.combine_row_bytes);
  require(shape.hidden < std::int64_t{1} << 30, Code::unsupported,
          "SHOAL-N555: GroupOptions.hidden is {}; on GPUs at most 2^30 - 1", shape.hidden);
  const memory::Device& gpu = *group.state.world->memory().cuda();
  parts_->limits.multiprocessors = gpu.multiprocessors;
  parts_->limits.dependent_launch = gpu.compute_capability >= 90;
  const std::size_t waits = 3 * static_cast<std::size_t>(shape.ranks) * sizeof(std::uint64_t);
  parts_->longest_wait = group.resources->allocate(waits, group.stream, group.resources);
  check(cudaMemsetAsync(parts_->longest_wait.get(), 0, waits, group.stream), "low-latency mode");
  parts_->groups.emplace(gpu.device);
  parts_->masked.assign(shape.ranks, 0);
  parts_->probe_stream = memory::cuda::take_stream(gpu, memory::cuda::StreamPriority::lowest);
  // Loading a kernel can wait for all kernels on this GPU, including those of other PEs that wait
  // for this one. It happens now, before there are any.
  parts_->load_kernels();
  check(cudaGetLastError(), "kernels of low-latency mode");
}

LowLatency::~LowLatency() = default;

void LowLatency::preload() {
  const Shape& shape = group_.state.shape;
  if (shape.low_latency_max_tokens == 0) return;
  constexpr std::size_t kOpenCalls = 4;  // two in flight, and two whose results are in use
  parts_->handles.reserve(kOpenCalls + 2);
  parts_->pendings.reserve(kOpenCalls + 2);
  const std::shared_ptr<void> held = parts_->result(Quantize::none);
  if (group_.ranks_on_gpu == 1) return;
  // Where ranks share a GPU no later call may allocate while a graph is captured.
  (void)parts_->result(Quantize::none);
  (void)next_combine_buffer();
}

TensorView LowLatency::memory_of_results() {
  const Shape& shape = group_.state.shape;
  TensorView view(parts_->results.first().get(), DataType::bfloat16,
                  {shape.local_experts, shape.low_latency_rows(), shape.hidden});
  view.device = group_.state.device;
  return view;
}

void LowLatency::retire() {
  parts_->groups.reset();
}

/// Returns two buffers in turn. The combine before last has read this one when the stream gets
/// here.
TensorView LowLatency::next_combine_buffer() {
  const Shape& shape = group_.state.shape;
  group_.state.world->memory().cuda()->activate();
  group_.throw_failed();
  const std::size_t bytes = static_cast<std::size_t>(shape.local_experts) *
                            shape.low_latency_rows() * shape.hidden * sizeof(std::uint16_t);
  parts_->make(parts_->combine_buffers, bytes, "next_combine_buffer");
  return group_.tensor(parts_->combine_buffers[(group_.state.low_latency_combine_epoch + 1) & 1], 0,
                       DataType::bfloat16,
                       {shape.local_experts, shape.low_latency_rows(), shape.hidden});
}

std::vector<int> LowLatency::masked() {
  parts_->note_masked();
  std::vector<int> all = parts_->masked;
  all.resize(group_.state.shape.ranks, 0);
  return all;
}

/// Takes effect after the calls that are queued and before any later call.
void LowLatency::set_mask(std::int32_t rank, bool masked) {
  cudaStream_t on = group_.begin({});
  parts_->masked[rank] = masked ? 1 : 0;
  // Any value but 0 masks.
  check(cudaMemsetAsync(&group_.device.memory->masked[rank], masked ? 1 : 0, sizeof(std::uint32_t),
                        on),
        "set_mask");
  check(cudaStreamSynchronize(on), "set_mask");
  group_.report->masked[rank] = masked ? 1 : 0;
}

void LowLatency::clear_masks() {
  for (std::int32_t rank = 0; rank < group_.state.shape.ranks; ++rank)
    if (masked()[rank] != 0) set_mask(rank, false);
}

}  // namespace shoal::ep::cuda
