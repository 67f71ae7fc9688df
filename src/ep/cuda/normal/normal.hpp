// SPDX-License-Identifier: Apache-2.0
// normal.hpp: the normal-mode calls of a group on GPUs: route (normal.cpp), dispatch (dispatch.cpp)
// and combine (combine.cpp). Each checks what only this backend can check, fills the parameters of
// its kernel and launches it.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "ep/cuda/group/group.hpp"
#include "ep/cuda/normal/device/kernels.cuh"
#include "ep/cuda/normal/internode/internode.hpp"
#include "ep/cuda/normal/shares.hpp"
#include "ep/group/modes.hpp"
#include "ep/group/unpack.hpp"

namespace shoal::ep::cuda {

struct CudaRouting : detail::RoutingState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaRouting() { backend = kBackend; }

  RoutingArrays arrays{};
  NodeRouting node_arrays{};  ///< of a group on several nodes
  /// The group on whose streams RoutingArrays::expert_row_indices has been computed. Other groups
  /// compute it again, because nothing orders their streams.
  mutable std::atomic<const GroupState*> topk_slots_numbered_by = nullptr;
  std::shared_ptr<void> block;
  std::weak_ptr<GroupState> group;   ///< that made the routing
  const CudaGroup* calls = nullptr;  ///< of that group, which outlives it
};

struct CudaHandle : detail::HandleState {
  static constexpr auto kBackend = detail::BackendKind::cuda;
  CudaHandle() { backend = kBackend; }

  HandleArrays arrays{};
  RailHandle rail_arrays{};  ///< of a group on several nodes
  std::shared_ptr<void> block;
  std::vector<std::int64_t> rows_per_source;  ///< empty: the sizes never reached the host
};

/// Group::unpack in one kernel. overlap_launches: as in NormalPlan.
void launch_unpack(const detail::AnyDispatched& received,
                   const std::vector<detail::ArrayCopy>& copies, bool clear_unused,
                   bool overlap_launches, cudaStream_t stream);

class Normal final : public detail::NormalMode {
 public:
  /// `internode` is nullptr for a group on one node.
  explicit Normal(CudaGroup& group, const Internode* internode = nullptr);

  /// Loads the kernels and reserves memory. Called when the group has its memory.
  void open();
  Routing route(const ConstTensorView& topk_idx, const RouteOptions& options) override;
  void unpack(const detail::AnyDispatched& received, const UnpackOptions& to) override;
  void expand(const ExpandOptions& options) override;
  detail::AnyDispatched dispatch(const detail::DispatchCall& call) override;
  Combined combine(const ConstTensorView& y, const detail::HandleState& state,
                   const CombineOptions& options) override;

 private:
  std::int32_t sms(const Launch& launch) const {
    return launch.sms > 0 ? launch.sms : static_cast<std::int32_t>(state_.world->settings().ep_sms);
  }
  /// Upper bound of the rows of this call's region.
  std::int64_t region_rows(const detail::DispatchCall& call) const;
  static detail::SideRecord record_of(const detail::DispatchCall& call) {
    return {static_cast<std::uint32_t>(call.scale_bytes()),
            static_cast<std::uint32_t>(call.topk_slots())};
  }
  /// Queues number_topk_slots, unless the routing has its results.
  void number_topk_slots(const CudaRouting& routing, cudaStream_t on) const;
  std::uint32_t table_bytes(const detail::DispatchCall& call) const;
  bool encodes_while_sending(const detail::DispatchCall& call) const;
  std::uint32_t staged_row_bytes(const detail::DispatchCall& call) const;
  static std::uint32_t staged_scale_bytes(const detail::DispatchCall& call);
  void encode_rows(const detail::DispatchCall& call, NormalDispatch& params, cudaStream_t on);
  void check_dispatch(const detail::DispatchCall& call) const;
  std::shared_ptr<CudaHandle> make_handle(const detail::DispatchCall& call);
  NormalDispatch dispatch_parameters(const detail::DispatchCall& call, const CudaRouting& routing,
                                     const CudaHandle& handle, const detail::Region* region,
                                     std::int64_t rows, const NormalPlan& plan);
  void await_sizes(CudaHandle& handle, std::vector<std::int64_t>& tokens_per_expert);
  detail::AnyDispatched describe(const detail::DispatchCall& call,
                                 const std::shared_ptr<CudaHandle>& handle,
                                 const std::shared_ptr<detail::Region>& region, std::int64_t rows,
                                 cudaStream_t on);
  Tensor copied_out(const Tensor& tensor, cudaStream_t on) const;
  /// True if a combine encodes each row of y; between nodes it encodes the sums of nodes.
  bool encodes_rows(const CombineOptions& options) const {
    return options.quantize != Quantize::none && internode_ == nullptr;
  }
  /// Where a combine stages, as offsets in the block, until this ends.
  struct StagingPlace {
    std::uint64_t rows = 0, weights = 0;
    std::unique_ptr<detail::Region> region;  ///< in the arena, if it lies there
  };
  StagingPlace take_staging(std::size_t row_bytes, std::size_t weight_bytes) const;
  std::size_t staged_bytes(const ConstTensorView& data, std::size_t room) const;
  void copy_to_staging(const ConstTensorView& data, std::uint64_t to, cudaStream_t on) const;
  std::uint64_t offset_in_block(const ConstTensorView& data) const;
  void require_staging() const;
  void stage_expert_output(const ConstTensorView& y, const CombineOptions& options, bool stage_rows,
                           bool stage_weights, NormalCombine& params) const;
  bool locate_expert_output(const ConstTensorView& y, const CombineOptions& options,
                            NormalCombine& params, StagingPlace& staging, cudaStream_t on);
  NormalPlan plan_on_node(const Launch& launch, NormalCombine& params) const;

  std::byte* block() const { return group_.device.block[state_.me]; }

  GroupState& state_;
  CudaGroup& group_;
  const Internode* const internode_;
  ArrayPool routings_, handles_;
  std::optional<ArrayPool> encoded_;  ///< rows that encode_rows makes; at its first call
  ShareTable shares_;
  NormalLimits limits_;
  std::shared_ptr<void> sizes_memory_;
  std::uint64_t sequence_ = 0;
};

}  // namespace shoal::ep::cuda
