// SPDX-License-Identifier: Apache-2.0
// requests.hpp: reading and checking requests of a ring. Pure functions, apart from the loads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "shoal/device/detail/proxy_ring.hpp"

namespace shoal::transport::proxy {

/// The request at `position`, or nullopt where it has not been posted yet.
std::optional<device::proxy::Request> read_request(const device::proxy::Ring& ring,
                                                   std::uint64_t position) noexcept;

/// Describes the error of a request to one of `n_pes` heaps of `heap_bytes` bytes, with the value
/// and the allowed range; nullopt where it can be executed. Source addresses are not checked, apart
/// from null and overflow.
std::optional<std::string> fault_of(const device::proxy::Request& request, Pe n_pes,
                                    std::uint64_t heap_bytes);

/// "put of 8 bytes to PE 3", for messages.
std::string describe(const device::proxy::Request& request);

}  // namespace shoal::transport::proxy
