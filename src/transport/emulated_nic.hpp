// SPDX-License-Identifier: Apache-2.0
// emulated_nic.hpp: queues of a NIC that is a kernel of this PE's GPU, for kernels of PEs that
// SHOAL_NODE_SIZE sets apart (SHOAL_GDA=emulated). docs/internals/gda.md explains the NIC.
//
// It is a module (libshoal_gpu_nic.so), loaded when a world asks for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "shoal/heap.hpp"
#include "shoal/settings.hpp"
#include "transport/device_queues.hpp"

namespace shoal::transport {

struct EmulatedNicContext {
  const Settings& settings;
  Pe my_pe = 0;
  int device = 0;                 ///< ordinal of this PE's GPU
  std::vector<std::byte*> heaps;  ///< by PE, as this GPU reaches them; nullptr: not by this NIC
  std::size_t heap_bytes = 0;     ///< of each heap
};

/// To be raised with every change of EmulatedNicContext, DeviceQueues or Settings.
inline constexpr std::uint64_t kEmulatedNicVersion = 1;
inline constexpr const char* kEmulatedNicSymbol = "shoal_emulated_nic_module";
struct EmulatedNicModule {
  std::uint64_t version;
  std::unique_ptr<DeviceQueues> (*make)(const EmulatedNicContext& context);
};

/// Starts the NIC, with queue pairs for each heap but this PE's own (kernel_queue_pairs.hpp). The
/// destructor stops it, and waits until the NICs of other PEs of this process on the same GPU have
/// stopped, at most 5 s.
///
/// While it runs, calls that wait for the whole GPU do not return: free memory by cudaFreeAsync.
/// Throws Error{unsupported} where the module is missing or kernels are loaded when first used,
/// Error{invalid_argument} for more queue pairs than it has, Error{system} where CUDA refuses.
std::unique_ptr<DeviceQueues> make_emulated_nic(const EmulatedNicContext& context);

}  // namespace shoal::transport
