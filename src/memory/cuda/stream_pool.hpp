// SPDX-License-Identifier: Apache-2.0
// stream_pool.hpp: the streams of this process, made once and handed on.
//
// A driver maps streams to a few hardware queues. After streams have come and gone, two of those
// that are left may lie on one queue though there are enough for all: a kernel that waits for a
// peer then keeps the kernel of that peer, a thread on the same GPU, from running, until the
// timeout (docs/guide/device.md). So every part of Shoal takes its streams here, and none is destroyed.
#pragma once

#include <memory>

#include "memory/device.hpp"

namespace shoal::memory::cuda {

struct Driver;

enum class StreamPriority { lowest, highest };

/// A stream on this GPU for the caller alone, which does not synchronise with the null stream; a
/// runtime stream as well. It goes back with the last copy of the pointer, on any thread and
/// without a call of CUDA.
///
/// Nobody has to wait for the work on a stream before letting go of it: as long as cuStreamQuery
/// finds some, that of a group that timed out for example, the stream stays where it is and another
/// one is handed out. Of several free ones it is the one made first, so that small worlds use the
/// same few, however large a world before them was.
///
/// Makes the GPU's context current on this thread. Throws Error{system} or Error{exhausted} with
/// CUDA's reason when a stream has to be made and cannot be.
std::shared_ptr<CUstream_st> take_stream(const Device& device, StreamPriority priority);

/// Destroys those streams of a driver that nobody has. For tests, which have a driver each.
void destroy_free_streams(const Driver& driver);

}  // namespace shoal::memory::cuda
