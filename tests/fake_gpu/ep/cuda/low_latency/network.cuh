// SPDX-License-Identifier: Apache-2.0
// network.cuh: the network of src/ep/cuda/low_latency/network.cuh on the fake GPU. It delivers when
// the test says so, in the worst order: puts to a PE are cut into pieces that arrive in any order,
// each signal after everything that was started before it, and nothing reads a source earlier than
// it has to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ep/cuda/low_latency/remote_ranks.hpp"

namespace shoal::test::fake_gpu {

struct NetworkRequest {
  Pe from, to;
  std::size_t offset, bytes;  ///< 0 bytes: a signal
  const std::byte* source;
  std::uint64_t value;
};

/// The world of a PE has its number and the start of its heap.
struct Network {
  std::vector<std::byte*> heaps;  ///< by PE
  std::vector<NetworkRequest> requests;
  std::size_t puts = 0, signals = 0, put_bytes = 0;  ///< that were started

  /// Delivers everything. `seed` chooses the order.
  void deliver(std::uint32_t seed);
};
extern Network network;

}  // namespace shoal::test::fake_gpu

namespace shoal::ep::cuda {

inline bool start_signal(const device::World& world, const std::uint64_t* word, std::uint64_t value,
                         Pe pe) {
  auto& network = test::fake_gpu::network;
  const auto offset =
      static_cast<std::size_t>(reinterpret_cast<const std::byte*>(word) - world.heap);
  network.requests.push_back({world.my_pe, pe, offset, 0, nullptr, value});
  ++network.signals;
  return true;
}

inline bool start_put(const device::World& world, void* target, const void* source,
                      std::size_t bytes, Pe pe, const std::uint64_t* flag = nullptr,
                      std::uint64_t value = 0) {
  auto& network = test::fake_gpu::network;
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(target) - world.heap);
  network.requests.push_back(
      {world.my_pe, pe, offset, bytes, static_cast<const std::byte*>(source), 0});
  ++network.puts;
  network.put_bytes += bytes;
  return flag == nullptr || start_signal(world, flag, value, pe);
}

}  // namespace shoal::ep::cuda
