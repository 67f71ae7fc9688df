// SPDX-License-Identifier: Apache-2.0
// staged.hpp: heaps in GPU memory that this PE's GPU does not reach: each operation is a request
// that the other PE carries out on its own heap, and data go through chunks of pinned host memory.
#pragma once

#include "transport/transport.hpp"

namespace shoal::transport {

/// Host memory of each PE that the transport takes, at Context::staging.
std::size_t staged_bytes(Pe n_pes, const Settings& settings);

/// `own` carries out operations on this PE's own heap, for other PEs.
std::unique_ptr<Transport> make_staged(const Context& context, std::unique_ptr<Transport> own);

}  // namespace shoal::transport
