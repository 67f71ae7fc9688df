// SPDX-License-Identifier: Apache-2.0
#include "ep/cuda/internode/normal_kernels.hpp"

#include "ep/cuda/group/relaxed_capture.hpp"
#include "ep/cuda/internode/kernels.hpp"
#include "ep/cuda/layout/regions.hpp"
#include "ep/group/block_map.hpp"
#include "fabric/fabric.hpp"
#include "memory/cuda/driver.hpp"

namespace shoal::ep::cuda {
namespace {

detail::Shape normal_shape(const GroupState& state) {
  detail::Shape shape = state.shape;
  shape.low_latency_max_tokens = 0;
  return shape;
}

}  // namespace

NormalKernels::NormalKernels(GroupState& state, const detail::Nodes& nodes)
    : group(state),
      layout_(normal_shape(state)),
      internode_(group, nodes, layout_.total),
      calls(group, &internode_) {}

void NormalKernels::open() {
  GroupState& state = group.state;
  auto& heap = state.world->heap();
  void* const memory = heap.malloc(internode_.end());
  const std::size_t offset = heap.offset_of(memory);
  memory_ = detail::Block(*state.world, offset, false);
  std::vector<std::byte*> blocks;
  for (std::int32_t rank = 0; rank < state.shape.ranks; ++rank) {
    std::byte* const base = state.world->fabric().peer_base(state.world_pe(rank));
    blocks.push_back(base == nullptr ? nullptr : base + offset);
  }
  group.open(layout_, blocks);
  map_ = detail::show_block(
      state, "heap", offset, internode_.end(), blocks,
      detail::regions_of(layout_, internode_.grid().layout, normal_shape(state)));
  state.arena.reset(layout_.arena_bytes, static_cast<std::size_t>(state.shape.live_results),
                    layout_.stages_in_arena ? 1 : 0);
  group.network = path_of(state, memory, internode_.end());
  group.driver_moves_rows = driver_moves_rows(state, group.network);
  group.loads_lazily = memory::cuda::loads_lazily();
  internode_.open(group.network);
  calls.open();
}

void NormalKernels::drain() {
  const RelaxedCapture relaxed(*group.state.world->memory().cuda());
  group.drain();
  launch_quiet(internode_.grid().world, group.network, group.stream);
  check(cudaStreamSynchronize(group.stream), "end of an ep::Group's transfers");
}

void NormalKernels::release() {
  map_ = {};
  memory_.release();
}

}  // namespace shoal::ep::cuda
