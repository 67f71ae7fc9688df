// SPDX-License-Identifier: Apache-2.0
// stream_pool.hpp: the streams of this process, created once and reused.
//
// A driver maps streams to a few hardware queues. When streams have been destroyed and created, two
// of them can share a queue although there are enough for all. A kernel that waits for a peer then
// blocks the kernel of that peer, a thread on the same GPU, until the timeout
// (docs/guide/device.md). So every part of Shoal takes its streams here, and none is destroyed.
#pragma once

#include <memory>

#include "memory/device.hpp"

namespace shoal::memory::cuda {

struct Driver;

enum class StreamPriority { lowest, highest };

/// A stream on this GPU for the caller alone, which does not synchronize with the null stream. It
/// is also a stream of the CUDA runtime. It returns with the last copy of the pointer, on any
/// thread and without a call of CUDA.
///
/// A stream may be returned while it still has work, such as that of a group that timed out: it is
/// handed out again only when cuStreamQuery finds it idle. Of several free streams the oldest one
/// is handed out, so that small worlds use the same few streams after a large world.
///
/// Makes the GPU's context current on this thread. Throws Error{system} or Error{exhausted} with
/// CUDA's reason when a stream has to be made and cannot be.
std::shared_ptr<CUstream_st> take_stream(const Device& device, StreamPriority priority);

/// Destroys the free streams of a driver. For tests, each of which has a driver of its own.
void destroy_free_streams(const Driver& driver);

}  // namespace shoal::memory::cuda
