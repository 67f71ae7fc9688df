// SPDX-License-Identifier: Apache-2.0
// kernels.hpp: the modes of a group between nodes whose kernels send rows over the network.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ep/cuda/group/group.hpp"
#include "ep/cuda/internode/normal_kernels.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"

namespace shoal::ep::cuda {

/// Why kernels of this PE cannot send to ranks that NVLink does not reach; nullopt: they can.
std::optional<std::string> why_no_kernels(const GroupState& state);

/// Path by which kernels send from and to [memory, memory + bytes) of the heaps of this group's
/// ranks: by NIC where its queues reach all of it on every rank out of reach of loads and stores.
NetworkPath path_of(const GroupState& state, const void* memory, std::size_t bytes);
/// True if some rank gets rows that go this way by calls of this process to the driver.
bool driver_moves_rows(const GroupState& state, NetworkPath path);

/// The group on its GPU, and its modes. A mode that is nullptr is staged.
///
/// A group between nodes has up to three blocks: that of GroupState, in host memory, for what is
/// staged, and in the heap one for low-latency mode (a DeviceLayout without normal mode) and one
/// for normal mode.
class Kernels {
 public:
  explicit Kernels(GroupState& state);

  /// Takes the memory. Collective. Throws Error{exhausted} on all ranks where the heap is full.
  void open();
  /// Waits for all calls, and for what they have sent; throws a fatal fault. All ranks call before
  /// any returns its memory.
  void drain();
  /// Returns it. Collective.
  void release();

  CudaGroup group;
  std::optional<LowLatency> low_latency;
  std::unique_ptr<NormalKernels> normal;
  std::string why_not_normal;  ///< empty: `normal`, or the group has no normal mode
  /// Ranks that loads and stores do not reach.
  std::vector<std::int32_t> remote_ranks;

 private:
  std::byte* memory_ = nullptr;
  shoal::detail::record::MapRecorder map_;
};

}  // namespace shoal::ep::cuda
