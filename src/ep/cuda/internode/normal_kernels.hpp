// SPDX-License-Identifier: Apache-2.0
// normal_kernels.hpp: normal mode of a group between nodes, by kernels.
#pragma once

#include "ep/cuda/group/group.hpp"
#include "ep/cuda/normal/internode/internode.hpp"
#include "ep/cuda/normal/normal.hpp"

namespace shoal::ep::cuda {

/// Normal mode with a block of its own in the heap: a DeviceLayout without low-latency mode, then
/// the rings (RailLayout). The arena of GroupState describes the receive area of this block.
class NormalKernels {
  detail::Block memory_;  // offered after all other members are gone

 public:
  /// `nodes`: ranks whose GPUs reach each other by loads and stores.
  NormalKernels(GroupState& state, const detail::Nodes& nodes);
  ~NormalKernels() {
    if (group.state.keeps_memory) memory_.keep();
  }
  NormalKernels(const NormalKernels&) = delete;
  NormalKernels& operator=(const NormalKernels&) = delete;

  /// Takes the memory. Collective. Throws Error{exhausted} on all ranks where the heap is full.
  void open();
  /// Waits for all calls, and for what they have sent; throws a fatal fault. All ranks call before
  /// any returns its memory.
  void drain();
  /// Returns the memory. Collective.
  void release();

  CudaGroup group;

 private:
  const detail::DeviceLayout layout_;
  Internode internode_;
  shoal::detail::record::MapRecorder map_;

 public:
  Normal calls;
};

}  // namespace shoal::ep::cuda
