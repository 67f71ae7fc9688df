// SPDX-License-Identifier: Apache-2.0
// staged.hpp: device heaps that this PE's GPU does not reach. Each operation is a request that the
// other PE applies to its own heap; data pass through chunks of pinned host memory.
#pragma once

#include "transport/heap_transport.hpp"

namespace shoal::transport {

/// Bytes that the transport needs in every segment, at Context::staging.
std::size_t staged_bytes(Pe n_pes, const Settings& settings);

/// `own` applies requests of other PEs to this PE's heap.
std::unique_ptr<HeapTransport> make_staged(const Context& context, std::unique_ptr<Transport> own);

}  // namespace shoal::transport
