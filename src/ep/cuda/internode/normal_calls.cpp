// SPDX-License-Identifier: Apache-2.0
// normal_calls.cpp: the part of the calls of normal mode that differs between nodes.
#include "base/check.hpp"
#include "ep/cuda/normal/normal.hpp"

namespace shoal::ep::cuda {

using detail::kNoRoom;

void Normal::check_dispatch_between_nodes(const detail::DispatchCall& call) const {
  require(region_rows(call) < kMaxDeviceTokens, Code::unsupported,
          "dispatch: a result of {} rows between nodes; at most {}", region_rows(call),
          kMaxDeviceTokens - 1);
}

void Normal::launch_dispatch_between_nodes(const NormalDispatch& params, const CudaRouting& routing,
                                           const CudaHandle& handle, const Launch& launch,
                                           cudaStream_t on) const {
  const std::uint32_t table = internode_table_bytes(state_.shape, params.expert_alignment > 0);
  const NormalPlan plan = internode_->plan(sms(launch), limits_.multiprocessors, table);
  launch_internode_dispatch({params, internode_->grid(), routing.node_arrays, handle.rail_arrays},
                            plan, on);
}

/// As locate_expert_output: in place in the symmetric heap, else in the staging area, to which this
/// queues a copy.
void Normal::stage_expert_output(const TensorView& y, const CombineOptions& options,
                                 NormalCombine& params, cudaStream_t on) {
  const auto& layout = group_.device.layout;
  const auto& heap = state_.world->heap();
  const TensorView& weights = options.weights;
  const auto in_heap = [&](const TensorView& data) {
    return data.bytes() == 0 || heap.contains(data.data, extent_of(data));
  };
  params.y_weights = kNoRoom;
  params.weight_stride = static_cast<std::uint32_t>(state_.shape.top_k) * sizeof(float);
  if (params.expert_major != 0) {
    params.y = reachable(y, layout.staging, on);
    if (!weights.defined()) return;
    params.y_weights = reachable(weights, layout.staging_weights, on);
    params.weight_stride = static_cast<std::uint32_t>(
        (params.y_weights == layout.staging_weights ? 1 : weights.strides[0]) * sizeof(float));
    return;
  }
  const bool summed = options.topk_rows.defined(), stage_rows = summed || !in_heap(y);
  const bool stage_weights =
      weights.defined() && (summed || options.topk_idx.defined() || !in_heap(weights));
  if (!stage_rows) params.y = offset_in_block(y);
  if (weights.defined() && !stage_weights) {
    params.y_weights = offset_in_block(weights);
    params.weight_stride = static_cast<std::uint32_t>(weights.strides[0] * sizeof(float));
  }
  if (!stage_rows && !stage_weights) return;
  require_staging();
  CombineStaging& staging = params.staging;
  if (stage_rows) {
    params.y = layout.staging;
    staging.rows = group_.elements<std::byte>(y);
    if (summed) {
      staging.topk_rows = group_.elements<std::int32_t>(options.topk_rows);
      staging.row_count = static_cast<std::int32_t>(y.shape[0]);
    }
  }
  if (stage_weights) {
    params.y_weights = layout.staging_weights;
    staging.weights = group_.elements<float>(weights);
    staging.weight_stride = weights.strides[0];
    if (options.topk_idx.defined())
      staging.topk_idx = group_.elements<std::int64_t>(options.topk_idx);
  }
  launch_stage_output({params},
                      internode_->plan(sms(options.launch), limits_.multiprocessors, 0).blocks, on);
}

void Normal::launch_combine_between_nodes(const NormalCombine& params, const CudaRouting& routing,
                                          const CudaHandle& handle, const Launch& launch,
                                          cudaStream_t on) const {
  launch_internode_combine({params, internode_->grid(), routing.node_arrays, handle.rail_arrays},
                           internode_->plan(sms(launch), limits_.multiprocessors, 0), on);
}

}  // namespace shoal::ep::cuda
