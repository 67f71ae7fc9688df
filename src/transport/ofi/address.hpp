// SPDX-License-Identifier: Apache-2.0
// address.hpp: what a PE sends to its peers about its endpoints.
#pragma once

#include <cstddef>
#include <cstdint>

namespace shoal::transport::ofi {

inline constexpr std::size_t kMaxRails = 16;
inline constexpr std::size_t kMaxName = 256;  ///< bytes of an endpoint's address

/// Registered memory of a PE as RMA names it.
struct RemoteMemory {
  std::uint64_t base = 0;  ///< 0 where the provider counts from the start of the region
  std::uint64_t key = 0;
};

/// One endpoint.
struct RailAddress {
  RemoteMemory segment;
  RemoteMemory scratch;
  std::uint64_t name_bytes = 0;
  std::uint8_t name[kMaxName] = {};
  char domain[64] = {};  ///< for messages
};

/// In front of `rails` times RailAddress, and what the peers need for the heap in GPU memory.
struct AddressHeader {
  std::uint64_t rails = 0;
  std::uint64_t heap_bytes = 0;
  char provider[64] = {};
};

}  // namespace shoal::transport::ofi
