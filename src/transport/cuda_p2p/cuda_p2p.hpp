// cuda_p2p.hpp: heaps in GPU memory that this PE's GPU reaches: its own, those of other PEs on it, those of its peers.
#pragma once

#include "transport/transport.hpp"

namespace shoal::transport {

std::unique_ptr<Transport> make_cuda_p2p(const Context& context);

}  // namespace shoal::transport
