// SPDX-License-Identifier: Apache-2.0
#include "world/fabric/fabric.hpp"

#include "base/check.hpp"

#include "world/state.hpp"

namespace shoal::detail {

HeapRoute Fabric::gpu_heap_route(Pe pe, transport::Capabilities needed) const {
  const auto i = static_cast<std::size_t>(pe);
  require((gpu_map_.capabilities[i] & needed) == needed, Code::unsupported,
          "PE {} cannot do {} on the heap of PE {} in GPU memory: {}", placement_.my_pe,
          [&] { return transport::describe(needed); }, pe,
          [&] { return why_not(gpu_map_, placement_.my_pe, placement_.my_pe, pe); });
  memory_.device()->activate();
  return {*gpu_transports_[gpu_map_.transport_of[i]], 0};
}

std::string why_out_of_reach(const WorldState& state, Pe pe) {
  if (!state.memory().heap_on_gpu())
    return "they are on different nodes (SHOAL_NODE_SIZE or the hosts say so)";
  return why_not(state.fabric().gpu_map(), state.my_pe(), state.my_pe(), pe);
}

void Fabric::fence() const {
  for (Pe pe = 0; pe < placement_.n_pes; ++pe) {
    route(pe).fence(pe);
    for (const auto& transport : gpu_transports_) transport->fence(pe);
  }
}

bool Fabric::uses_network() const noexcept {
  return transports_.size() > transport::factories().size();
}

bool Fabric::progress() noexcept {
  bool any = false;
  for (std::size_t i = transport::factories().size(); i < transports_.size(); ++i)
    any |= transports_[i]->progress();
  return any;
}

void Fabric::release() noexcept {
  peer_bases_.clear();
  gpu_transports_.clear();
  transports_.clear();
  kept_.clear();
}

}  // namespace shoal::detail
