// SPDX-License-Identifier: Apache-2.0 device_queues.hpp: send queues of a network's NIC that this
// PE's kernels drive themselves, in addition to the queues of the network. Transport::gpu_access()
// returns it.
//
// The network creates and connects the queues while it starts, and from then on neither posts to
// them nor polls them. Queues, records and completions lie in host memory, which their user maps
// for its GPU first (memory()). shoal/device/detail/gda/queue.hpp explains how kernels share them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shoal/device/detail/mlx5/work_queue.hpp"
#include "shoal/heap.hpp"

namespace shoal::transport {

class DeviceQueues {
 public:
  virtual ~DeviceQueues() = default;

  /// Host memory of this process that kernels must be able to access.
  struct Range {
    std::byte* start;
    std::size_t bytes;
    bool registers;  ///< a device's doorbell page, not memory
  };
  /// A queue pair with a completion queue of its own: one entry for each slot, whose overrun the
  /// NIC ignores.
  struct Queue {
    mlx5::SendQueue sends;
    mlx5::CompletionQueue completions;
  };
  /// Queues and keys that lead to one PE. Without queues `obstacle` is set.
  struct Route {
    std::vector<Queue> queues;
    mlx5::Memory heap;            ///< start of that PE's heap
    std::uint32_t local_key = 0;  ///< of this PE's heap
    /// Bytes from the start of both heaps that the NICs reach. Heaps that have grown since may be
    /// larger.
    std::size_t heap_bytes = 0;
    mlx5::Memory sink;  ///< 8 bytes for results of atomics without a reader
    std::uint32_t largest_message = 0;
    std::string obstacle;
  };

  /// Every range once.
  virtual std::vector<Range> memory() const = 0;
  /// Valid as long as the network, for a PE that it has connected.
  virtual Route route(Pe pe) const = 0;
  /// "1 queue pair for kernels", or why there is none.
  virtual std::string describe(Pe pe) const = 0;
};

}  // namespace shoal::transport
