// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/align.hpp"
#include "base/check.hpp"
#include "ep/cuda/normal/normal.hpp"
#include "ep/group/checks.hpp"
#include "ep/plan/cursor.hpp"

namespace shoal::ep::cuda {

using detail::HandleState;
using detail::kNoRoom;

namespace {

/// Bytes from the first to the last element of rows.
std::size_t extent_of(const ConstTensorView& data) {
  return ((data.shape[0] - 1) * data.strides[0] + (data.rank > 1 ? data.shape[1] : 1)) *
         size_of(data.dtype);
}

StagedOutput staging_of(const CombineStaging& staging) {
  if (staging.blocks == 0) return StagedOutput::none;
  if (staging.rows == nullptr) return StagedOutput::weights;
  return staging.topk_rows == nullptr ? StagedOutput::rows : StagedOutput::sums;
}

}  // namespace

std::uint64_t Normal::offset_in_block(const ConstTensorView& data) const {
  if (data.bytes() == 0) return group_.device.layout.arena;  // without rows, never read
  return static_cast<std::uint64_t>(static_cast<const std::byte*>(data.data) - block());
}

void Normal::require_staging() const {
  require(
      state_.shape.combine_staging, Code::invalid_argument,
      "SHOAL-N565: combine: y or its weights lie outside the symmetric heap, y in no buffer that "
      "this PE shares (SymmetricHeap::share_buffer), and this group was made without room for a "
      "copy (GroupOptions.combine_staging)");
}

/// Room for so many bytes of rows and weights, at most those of the layout. In the arena it is that
/// of a transient result: the combine ends, on all ranks, before a later call of the group writes
/// there.
Normal::StagingPlace Normal::take_staging(std::size_t row_bytes, std::size_t weight_bytes) const {
  const auto& layout = group_.device.layout;
  if (!layout.stages_in_arena) return {layout.staging, layout.staging_weights, nullptr};
  row_bytes = align_up(row_bytes, detail::Cursor::kAlignment);
  const auto offset = state_.arena.take(row_bytes + weight_bytes, group_.graph(), true);
  require(offset.has_value(), Code::exhausted,
          "SHOAL-N568: combine: no room for a copy of y or its weights ({} bytes): a transient "
          "result is still held, or one of more rows than GroupOptions.max_tokens of each rank. "
          "Release it, or raise GroupOptions.live_results (now {})",
          row_bytes + weight_bytes, state_.shape.live_results);
  const std::uint64_t rows = layout.arena + *offset;
  return {rows, rows + row_bytes,
          std::make_unique<detail::Region>(state_.shared_from_this(), *offset)};
}

/// Bytes of a copy of `data`, for which there is `room`.
std::size_t Normal::staged_bytes(const ConstTensorView& data, std::size_t room) const {
  require_staging();
  const std::size_t row_bytes = data.shape[1] * size_of(data.dtype);
  require(
      data.shape[0] * row_bytes <= room, Code::invalid_argument,
      "SHOAL-N565: combine: {} outside the symmetric heap has {} bytes, and there is room for a "
      "copy of {}; write the expert output to Dispatched::x, or raise GroupOptions.max_tokens (now "
      "{})",
      [&] { return data.describe(); }, data.shape[0] * row_bytes, room, state_.shape.max_tokens);
  return data.shape[0] * row_bytes;
}

/// Queues a copy to the staging area.
void Normal::copy_to_staging(const ConstTensorView& data, std::uint64_t to, cudaStream_t on) const {
  const std::size_t row_bytes = data.shape[1] * size_of(data.dtype);
  check(cudaMemcpy2DAsync(block() + to, row_bytes, data.data, data.strides[0] * size_of(data.dtype),
                          row_bytes, data.shape[0], cudaMemcpyDeviceToDevice, on),
        "staging of the expert output");
  group_.record(on);
}

/// Sets params.staging: a kernel copies y, its weights or both to the staging area.
void Normal::stage_expert_output(const ConstTensorView& y, const CombineOptions& options,
                                 bool stage_rows, bool stage_weights, NormalCombine& params) const {
  CombineStaging& staging = params.staging;
  if (stage_rows) {
    staging.rows = group_.elements<std::byte>(y);
    if (options.topk_rows.defined()) {
      staging.topk_rows = group_.elements<std::int32_t>(options.topk_rows);
      staging.row_count = static_cast<std::int32_t>(y.shape[0]);
    }
  }
  if (stage_weights) {
    staging.weights = group_.elements<float>(options.weights);
    staging.weight_stride = options.weights.strides[0];
    if (options.topk_idx.defined())
      staging.topk_idx = group_.elements<std::int64_t>(options.topk_idx);
  }
}

/// Sets where other ranks fetch y and its weights: in place in the symmetric heap and, inside a
/// node, in buffers that this PE shares; else in the staging area, encoded rows always. Returns
/// whether a kernel copies y or its weights there (params.staging); the copies of expert-major ones
/// are queued here, unless they are encoded.
bool Normal::locate_expert_output(const ConstTensorView& y, const CombineOptions& options,
                                  NormalCombine& params, StagingPlace& staging, cudaStream_t on) {
  const auto& layout = group_.device.layout;
  const auto in_heap = [&](const ConstTensorView& data) {
    return data.bytes() == 0 || state_.world->heap().contains(data.data, extent_of(data));
  };
  const bool y_in_heap = in_heap(y), summed = options.topk_rows.defined(),
             encoded = encodes_rows(options);
  if (internode_ == nullptr) {
    shares_.refresh();  // buffers that other ranks share
    params.shares = shares_.entries();
    if (!y_in_heap && !summed && !encoded) {
      const auto place = shares_.find(y.data, extent_of(y));
      params.share = place.id;
      params.y = place.offset;
    }
  }
  const ConstTensorView& weights = options.weights;
  params.y_weights = kNoRoom;
  params.weight_stride =
      static_cast<std::uint32_t>(state_.shape.top_k * static_cast<std::int32_t>(sizeof(float)));
  const bool stage_rows = summed || encoded || (!y_in_heap && params.share == 0);
  const bool reach_weights =
      weights.defined() && !summed &&
      (weights.bytes() == 0 || (!options.topk_idx.defined() && in_heap(weights)));
  const bool stage_weights = weights.defined() && !reach_weights;
  if (!stage_rows && params.share == 0) params.y = offset_in_block(y);
  if (reach_weights) {
    params.y_weights = offset_in_block(weights);
    params.weight_stride = static_cast<std::uint32_t>(weights.strides[0] * sizeof(float));
  }
  if (!stage_rows && !stage_weights) return false;
  require_staging();
  const bool copied = params.expert_major != 0;
  std::size_t row_bytes = 0, weight_bytes = 0;
  if (stage_rows)
    row_bytes = copied ? staged_bytes(y, layout.staging_bytes)
                       : static_cast<std::size_t>(params.y_rows) * params.row_bytes;
  if (stage_weights)
    weight_bytes = copied ? staged_bytes(weights, layout.staging_weight_bytes)
                          : static_cast<std::size_t>(params.y_rows) * params.weight_stride;
  staging = take_staging(row_bytes, weight_bytes);
  if (stage_rows) params.y = staging.rows;
  if (stage_weights) params.y_weights = staging.weights;
  if (!copied) {
    stage_expert_output(y, options, stage_rows, stage_weights, params);
    return true;
  }
  if (encoded) stage_expert_output(y, options, true, false, params);
  if (stage_rows && !encoded) copy_to_staging(y, params.y, on);
  if (stage_weights) {
    copy_to_staging(weights, params.y_weights, on);
    params.weight_stride = sizeof(float);
  }
  return encoded;
}

Combined Normal::combine(const ConstTensorView& y, const HandleState& state,
                         const CombineOptions& options) {
  const auto& shape = state_.shape;
  const auto& handle = detail::of_backend<CudaHandle>(state, "combine");
  const auto& routing = detail::of_backend<CudaRouting>(*handle.routing, "combine");
  require(!options.unsummed || internode_ == nullptr, Code::invalid_argument,
          "SHOAL-N582: combine: CombineOptions.unsummed in a group with GPUs in several NVLink "
          "domains, where kernels return a sum for each node; low_latency_combine has it");
  cudaStream_t on = group_.begin(options.launch);
  group_.throw_failed();
  const bool captured = group_.captures();
  require(!captured || (options.out.defined() &&
                        (!options.weights.defined() || options.out_weights.defined())),
          Code::invalid_argument,
          "SHOAL-N536: combine: a captured stream needs CombineOptions.out, and with weights "
          "CombineOptions.out_weights: the memory of results must outlive the graph");
  group_.uses(handle.block);
  group_.uses(routing.block);

  NormalCombine params{};
  params.group = group_.device;
  params.y_rows = handle.result_rows;
  params.row_bytes = static_cast<std::uint32_t>(shape.hidden * size_of(y.dtype));
  params.tokens = static_cast<std::int32_t>(routing.tokens);
  params.expert_major = handle.expert_alignment > 0;
  params.copies_per_token =
      params.expert_major != 0 ? shape.top_k : std::min(shape.top_k, shape.ranks);
  if (options.unsummed) {
    params.unsummed = 1;
    params.tokens *= shape.top_k;
    params.copies_per_token = 1;
  }
  params.copies = routing.arrays.copies;
  params.topk_idx = routing.arrays.topk_idx;
  params.expert_row_indices = routing.arrays.expert_row_indices;
  params.rank_counts = routing.arrays.rank_counts;
  params.expert_counts = routing.arrays.expert_counts;
  params.handle = handle.arrays;
  params.dtype = static_cast<std::uint32_t>(y.dtype);
  params.quantize = static_cast<std::uint32_t>(options.quantize);
  const bool encoded = encodes_rows(options);
  if (encoded) {
    const auto& layout = group_.device.layout;
    detail::check_room_for_encoded(state_, options.quantize, y,
                                   options.topk_rows.defined() ? handle.result_rows : y.shape[0],
                                   layout.staging_bytes);
  }
  const auto internode_plan = [&] {
    return internode_->plan(sms(options.launch), limits_.multiprocessors, 0);
  };
  StagingPlace staging;
  if (locate_expert_output(y, options, params, staging, on)) {
    if (internode_ != nullptr)
      launch_stage_output({params, 0}, internode_plan().blocks, on);
    else if (encoded)
      launch_stage_output({params, params.quantize}, plan_on_node(options.launch, params).blocks,
                          on);
    else
      params.staging.blocks = 1;                              // raised by the plan
    if (internode_ != nullptr || encoded) group_.record(on);  // before what can throw
    if (encoded) params.staging = {};  // the combine finds all of it in the staging area
  }
  for (std::size_t b = 0; b < options.bias.size(); ++b)
    params.bias[b] = static_cast<const std::byte*>(options.bias[b].data);
  Combined combined;
  if (options.out.defined())
    combined.x = Tensor(options.out, nullptr);
  else
    combined.x = shape.with_combined_extents(routing.tokens, options.unsummed, [&](auto extents) {
      const std::size_t bytes = static_cast<std::size_t>(params.tokens) * params.row_bytes;
      return group_.tensor(group_.allocate(bytes), 0, y.dtype, extents);
    });
  params.out = combined.x.as<std::byte>();
  if (options.weights.defined()) {
    combined.topk_weights =
        options.out_weights.defined()
            ? Tensor(options.out_weights, nullptr)
            : group_.tensor(group_.allocate(routing.tokens * shape.top_k * sizeof(float)), 0,
                            DataType::float32, {routing.tokens, shape.top_k});
    params.out_weights = const_cast<float*>(group_.elements<float>(*combined.topk_weights));
  }
  ++state_.epoch;
  state_.world->progress().set(shoal::detail::Activity::combine, state_.epoch, "queued");
  if (internode_ != nullptr) {
    launch_internode_combine({params, internode_->grid(), routing.node_arrays, handle.rail_arrays},
                             internode_plan(), on);
  } else {
    const NormalPlan plan = plan_on_node(options.launch, params);
    launch_normal_combine(params, plan, on);
  }
  group_.end(options.launch, on);
  ++state_.statistics.combines;
  return combined;
}

/// The plan of a combine inside one node, which completes its parameters.
NormalPlan Normal::plan_on_node(const Launch& launch, NormalCombine& params) const {
  if (params.quantize != 0) {
    const NormalPlan plan = plan_encoded_combine(sms(launch), limits_);
    params.chunk_bytes = plan.stage_bytes;
    params.segment_chunks = plan.segment_chunks;
    return plan;
  }
  // A token's rows at this rank are added one by one where topk_rows names them.
  const std::int32_t stage_rows =
      params.staging.topk_rows != nullptr ? state_.shape.top_k : params.copies_per_token;
  const StagedOutput staging = staging_of(params.staging);
  const NormalPlan plan = adds_many_rows(params)
                              ? plan_direct_combine(sms(launch), limits_, staging)
                              : plan_combine(sms(launch), params.row_bytes, params.tokens,
                                             stage_rows, limits_, staging);
  params.staging.blocks = plan.staging_blocks;
  params.staging.copy_bytes = plan.copy_bytes;
  params.chunk_bytes = plan.stage_bytes;
  params.stages = static_cast<std::uint32_t>(plan.stages);
  params.warps = static_cast<std::uint32_t>(plan.warps);
  params.stage_rows = static_cast<std::uint32_t>(stage_rows);
  params.segment_chunks = plan.segment_chunks;
  return plan;
}

}  // namespace shoal::ep::cuda
