// SPDX-License-Identifier: Apache-2.0
// peers.hpp: which PEs' heaps can be mapped here, and what works on them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/cuda/driver.hpp"
#include "memory/device_heap.hpp"

namespace shoal::memory::cuda {

/// One PE's heap as this PE sees it.
struct Peer {
  bool same_process = false;
  /// Both are on one host, in different processes, and file descriptors can pass between them.
  bool exchanges_fds = false;
  bool atomics = true;   ///< of this PE's GPU on that memory work
  std::string obstacle;  ///< why it is out of reach; empty if it is reachable
};

/// What is known before anything is mapped: processes, hosts, and what the driver reports about
/// each pair of GPUs. It cannot report on a GPU that is hidden from this process; then mapping
/// decides, and atomics are assumed to work.
std::vector<Peer> survey_peers(const Driver& driver, const DeviceHeapContext& context);

/// The CUDA device number in this process of the GPU with this uuid; nullopt if it is hidden.
std::optional<int> visible_device(const Driver& driver, const std::array<std::byte, 16>& uuid);

/// Lets kernels and copies in the context of `device` use memory of the ordinary allocators on GPU
/// `other` of this process. Returns the reason of a failure; empty on success.
std::string enable_peer_access(const Driver& driver, const Device& device, int other);

/// The primary context of a GPU, retained once and never released, because a later world can use
/// kernels that the CUDA runtime has loaded into it.
CUcontext primary_context(const Driver& driver, CUdevice device);

}  // namespace shoal::memory::cuda
