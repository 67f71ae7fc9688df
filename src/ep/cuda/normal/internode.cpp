// SPDX-License-Identifier: Apache-2.0
// internode.cpp: the part of the calls of normal mode that differs between nodes.
#include "base/check.hpp"
#include "ep/cuda/normal/normal.hpp"

namespace shoal::ep::cuda {

void Normal::check_internode_dispatch(const detail::DispatchCall& call) const {
  require(region_rows(call) < kMaxDeviceTokens, Code::unsupported,
          "dispatch: a result of {} rows between nodes; at most {}", region_rows(call),
          kMaxDeviceTokens - 1);
}

void Normal::queue_internode_dispatch(const NormalDispatch& params, const CudaRouting& routing,
                                      const CudaHandle& handle, const Launch& launch,
                                      cudaStream_t on) const {
  const std::uint32_t table = internode_table_bytes(state_.shape, params.expert_alignment > 0);
  const NormalPlan plan = internode_->plan(sms(launch), limits_.multiprocessors, table);
  launch_internode_dispatch({params, internode_->grid(), routing.node_arrays, handle.rail_arrays},
                            plan, on);
}

/// Queues the kernel that copies expert output to the staging area.
void Normal::stage_internode(const NormalCombine& params, const Launch& launch,
                             cudaStream_t on) const {
  launch_stage_output({params}, internode_->plan(sms(launch), limits_.multiprocessors, 0).blocks,
                      on);
}

void Normal::queue_internode_combine(const NormalCombine& params, const CudaRouting& routing,
                                     const CudaHandle& handle, const Launch& launch,
                                     cudaStream_t on) const {
  launch_internode_combine({params, internode_->grid(), routing.node_arrays, handle.rail_arrays},
                           internode_->plan(sms(launch), limits_.multiprocessors, 0), on);
}

}  // namespace shoal::ep::cuda
