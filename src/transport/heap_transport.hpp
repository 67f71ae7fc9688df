// SPDX-License-Identifier: Apache-2.0
// heap_transport.hpp: transports of heaps in GPU memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "transport/transport.hpp"

namespace shoal::transport {

/// A transport that addresses memory by PE and offset into its heap.
class HeapTransport : public Transport {
 public:
  /// Called once, before the first operation, with the PEs that this transport was chosen for. May
  /// throw.
  virtual void carry(std::span<const Pe> /*pes*/) {}
  /// Describes, for reports, how it carries operations to `pe`, beyond its capabilities. Empty: no
  /// more.
  virtual std::string note(Pe /*pe*/) const { return ""; }
};

/// The way to the heap of one PE, on the host or in GPU memory. `start` is the offset of the heap
/// as `transport` counts.
struct HeapRoute {
  Transport& transport;
  std::size_t start;
};

using HeapFactory = std::unique_ptr<HeapTransport> (*)(const Context& context);

/// The transports of heaps in GPU memory, the preferred one first. Empty in a build without CUDA.
std::span<const HeapFactory> heap_factories();
/// Bytes that heap_factories() need in every PE's segment, at Context::staging.
std::size_t heap_staging(Pe n_pes, const Settings& settings);

}  // namespace shoal::transport
