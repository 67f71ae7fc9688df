// SPDX-License-Identifier: Apache-2.0
// cuda_p2p.hpp: heaps in GPU memory that this PE's GPU reaches: its own, those of other PEs on it,
// those of its peers.
#pragma once

#include "transport/transport.hpp"

namespace shoal::transport {

std::unique_ptr<Transport> make_cuda_p2p(const Context& context);
/// One with a stream of its own, for a thread that works beside the PE's: a PE that waits for a
/// word in its heap looks again and again, by copies on the PE's stream, and a stream that somebody
/// keeps adding to is never seen complete.
std::unique_ptr<Transport> make_cuda_p2p_for_another_thread(const Context& context);

}  // namespace shoal::transport
