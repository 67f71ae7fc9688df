// SPDX-License-Identifier: Apache-2.0
// requests.hpp: the network of low-latency mode on the fake GPU. It delivers when the test says so,
// in the worst order: puts to a PE are cut into pieces that arrive in any order, each signal after
// everything that was started before it, and nothing reads a source earlier than it has to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shoal/heap.hpp"

namespace shoal::test::fake_gpu {

struct NetworkRequest {
  Pe from, to;
  std::size_t offset, bytes;  ///< 0 bytes: a signal
  const std::byte* source;
  std::uint64_t value;
};

/// The world of a PE has its number and the start of its heap.
struct RequestedNetwork {
  std::vector<std::byte*> heaps;  ///< by PE
  std::vector<NetworkRequest> requests;
  std::size_t puts = 0, signals = 0, put_bytes = 0;  ///< that were started

  /// Delivers everything. `seed` chooses the order.
  void deliver(std::uint32_t seed);
};
extern RequestedNetwork network;

}  // namespace shoal::test::fake_gpu
