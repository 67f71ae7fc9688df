// SPDX-License-Identifier: Apache-2.0
// shm.hpp: PEs of one host. Processes map each other's segments, threads share one mapping.
#pragma once

#include "transport/transport.hpp"

namespace shoal::transport {

std::unique_ptr<Transport> make_shm(const Context& context);

}  // namespace shoal::transport
