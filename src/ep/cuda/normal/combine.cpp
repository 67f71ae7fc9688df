// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/check.hpp"
#include "ep/cuda/normal/normal.hpp"

namespace shoal::ep::cuda {

using detail::HandleState;
using detail::kNoRoom;

namespace {

/// Bytes from the first to the last element of rows.
std::size_t extent_of(const TensorView& data) {
  return ((data.shape[0] - 1) * data.strides[0] + (data.rank > 1 ? data.shape[1] : 1)) *
         size_of(data.dtype);
}

}  // namespace

/// The offset in the block at which other ranks find `data`: in place where it is in the symmetric
/// heap, otherwise in the staging area, to which this queues a copy.
std::uint64_t Normal::reachable(const TensorView& data, std::size_t staging,
                                cudaStream_t on) const {
  if (data.bytes() == 0) return staging;
  if (state_.world->heap().contains(data.data, extent_of(data)))
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(data.data) - state_.block);
  require(
      state_.shape.combine_staging, Code::invalid_argument,
      "combine: y or its weights lie outside the symmetric heap, y in no buffer that this PE shares "
      "(SymmetricHeap::share_buffer), and this group was made without room for a copy "
      "(GroupOptions.combine_staging)");
  const std::size_t row_bytes = data.shape[1] * size_of(data.dtype);
  const auto& layout = group_.device.layout;
  const std::size_t room = staging == layout.staging ? layout.staging_weights - layout.staging
                                                     : layout.normal_end - layout.staging_weights;
  require(
      data.shape[0] * row_bytes <= room, Code::invalid_argument,
      "combine: {} outside the symmetric heap has {} bytes, and there is room for a copy of {}; write the expert output to "
      "Dispatched::x, or raise GroupOptions.max_tokens (now {})",
      data.describe(), data.shape[0] * row_bytes, room, state_.shape.max_tokens);
  check(cudaMemcpy2DAsync(state_.block + staging, row_bytes, data.data,
                          data.strides[0] * size_of(data.dtype), row_bytes, data.shape[0],
                          cudaMemcpyDeviceToDevice, on),
        "staging of the expert output");
  group_.record(on);
  return staging;
}

/// Makes y reachable: as reachable(), or in place in a buffer that this PE shares.
void Normal::locate_expert_output(const TensorView& y, NormalCombine& params, cudaStream_t on) {
  shares_.refresh();  // buffers that other ranks share
  params.shares = shares_.entries();
  if (y.bytes() > 0 && !state_.world->heap().contains(y.data, extent_of(y))) {
    const auto place = shares_.find(y.data, extent_of(y));
    params.share = place.id;
    params.y = place.offset;
  }
  if (params.share == 0) params.y = reachable(y, group_.device.layout.staging, on);
}

Combined Normal::combine(const TensorView& y, const HandleState& state,
                         const CombineOptions& options) {
  const auto& shape = state_.shape;
  const auto& handle = detail::of_backend<CudaHandle>(state, "combine");
  const auto& routing = detail::of_backend<CudaRouting>(*handle.routing, "combine");
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  const bool captured = group_.capturing(on);
  require(
      !captured || (options.out.defined() && !options.weights.defined()), Code::invalid_argument,
      "combine: a captured stream needs CombineOptions.out, and cannot combine weights: the memory of results must "
      "outlive the graph");

  NormalCombine params{};
  params.group = group_.device;
  locate_expert_output(y, params, on);
  params.y_weights = kNoRoom;
  if (options.weights.defined()) {
    params.y_weights = reachable(options.weights, group_.device.layout.staging_weights, on);
    const bool staged = params.y_weights == group_.device.layout.staging_weights;
    params.weight_stride = static_cast<std::uint32_t>(
        (staged ? handle.topk_slots(shape.top_k) : options.weights.strides[0]) * sizeof(float));
  }
  params.y_rows = handle.result_rows;
  params.row_bytes = static_cast<std::uint32_t>(shape.hidden * size_of(y.dtype));
  params.tokens = static_cast<std::int32_t>(routing.tokens);
  params.expert_major = handle.expert_alignment > 0;
  params.copies_per_token =
      params.expert_major != 0 ? shape.top_k : std::min(shape.top_k, shape.ranks);
  params.copies = routing.arrays.copies;
  params.topk_idx = routing.arrays.topk_idx;
  params.expert_row_indices = routing.arrays.expert_row_indices;
  params.handle = handle.arrays;
  for (std::size_t b = 0; b < options.bias.size(); ++b)
    params.bias[b] = static_cast<const std::byte*>(options.bias[b].data);
  Combined combined;
  if (options.out.defined())
    combined.x = Tensor(options.out, nullptr);
  else
    combined.x = group_.tensor(group_.allocate(routing.tokens * params.row_bytes), 0, y.dtype,
                               {routing.tokens, shape.hidden});
  params.out = combined.x.as<std::byte>();
  if (options.weights.defined()) {
    combined.topk_weights =
        group_.tensor(group_.allocate(routing.tokens * shape.top_k * sizeof(float)), 0,
                      DataType::float32, {routing.tokens, shape.top_k});
    params.out_weights = combined.topk_weights.as<float>();
  }
  params.dtype = static_cast<std::uint32_t>(y.dtype);
  const NormalPlan plan =
      plan_combine(sms(options.launch), params.row_bytes, params.tokens, params.copies_per_token,
                   limits_, tuning_of(state_.world->settings().ep_tuning, "combine"));
  params.chunk_bytes = plan.stage_bytes;
  params.stages = static_cast<std::uint32_t>(plan.stages);
  params.warps = static_cast<std::uint32_t>(plan.warps);
  params.segment_chunks = plan.segment_chunks;
  ++state_.epoch;
  state_.world->set_progress(shoal::detail::Activity::combine, state_.epoch, "queued");
  launch_normal_combine(params, plan, on);
  group_.end(options.launch, on);
  ++state_.statistics.combines;
  return combined;
}

}  // namespace shoal::ep::cuda
