// SPDX-License-Identifier: Apache-2.0
// peers.hpp: which PEs' heaps could be mapped here at all, and what then works.
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
  bool exchanges_fds = false;  ///< both are on one host, in different processes, and file
                               ///< descriptors pass between them
  bool atomics = true;         ///< of this PE's GPU on that memory
  std::string obstacle;        ///< why it is not reached; empty where it is
};

/// What is known before anything is mapped: processes, hosts, and what the driver says about the
/// pair of GPUs. Where the other's GPU is hidden from this process the driver cannot be asked: then
/// mapping decides, and atomics are assumed.
std::vector<Peer> survey_peers(const Driver& driver, const DeviceHeapContext& context);

/// The ordinal in this process of the GPU with this uuid; nullopt where it is hidden.
std::optional<int> visible_device(const Driver& driver, const std::array<std::byte, 16>& uuid);

/// Lets kernels and copies of `device`'s context use memory that the driver's ordinary allocators
/// made on GPU `other` of this process. Returns why not; empty on success.
std::string enable_peer_access(const Driver& driver, const Device& device, int other);

/// The primary context of a GPU, retained once and never released: the CUDA runtime may have loaded
/// kernels into it that a later world uses.
CUcontext primary_context(const Driver& driver, CUdevice device);

}  // namespace shoal::memory::cuda
