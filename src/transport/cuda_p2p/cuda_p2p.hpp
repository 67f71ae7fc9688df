// SPDX-License-Identifier: Apache-2.0
// cuda_p2p.hpp: device heaps that this PE's GPU reaches: its own, those of other PEs on the same
// GPU, and those of peer GPUs.
#pragma once

#include "transport/heap_transport.hpp"

namespace shoal::transport {

std::unique_ptr<HeapTransport> make_cuda_p2p(const Context& context);
/// The same with a stream of its own, for a second thread. A PE that waits for a word in its heap
/// polls by copies on the PE's stream, and a thread that synchronizes with that stream would wait
/// for the whole poll loop.
std::unique_ptr<Transport> make_cuda_p2p_for_another_thread(const Context& context);

}  // namespace shoal::transport
