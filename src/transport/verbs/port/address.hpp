// SPDX-License-Identifier: Apache-2.0
// address.hpp: what a PE sends to its peers: its ports, its memory, and a queue pair for each of
// them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::transport::verbs {

/// Ports of a PE times queue pairs per peer and port.
inline constexpr std::size_t kMaxConnections = 32;

/// Registered memory of a PE as RDMA names it.
struct RemoteMemory {
  std::uint64_t base = 0;
  std::uint32_t key = 0;
};

/// Address by which packets reach a port.
struct PathAddress {
  std::uint8_t gid[16] = {};
  std::uint16_t lid = 0;
  std::uint8_t mtu = 0;       ///< enum ibv_mtu
  std::uint8_t ethernet = 0;  ///< 1: RoCE
  std::uint8_t software = 0;  ///< 1: the device copies with a processor
};

struct PortAddress {
  char name[64] = {};  ///< for messages
  PathAddress path;
  RemoteMemory segment, scratch, rings;
  std::uint64_t connections = 0;  ///< with a ring in `rings`
};

/// One queue pair, which waits for that of one peer.
struct QueueAddress {
  std::uint32_t number = 0;  ///< 0: none
  std::uint32_t first_packet = 0;
  std::uint32_t ring = 0;  ///< index of its ring in PortAddress::rings
};

/// In front of `ports` times (PortAddress, then QueueAddress by PE and queue pair), the first step
/// of the heap in GPU memory, and QueueAddress by PE and queue pair for kernels.
struct AddressHeader {
  std::uint64_t format = 4;
  std::uint32_t ports = 0;
  std::uint32_t queue_pairs = 0;  ///< per peer and port
  std::uint32_t n_pes = 0;
  std::uint32_t heap_bytes = 0;     ///< 0: heaps are on the host
  std::uint32_t kernel_queues = 0;  ///< per peer, for kernels
  std::uint32_t unused = 0;
};

}  // namespace shoal::transport::verbs
