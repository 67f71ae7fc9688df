// SPDX-License-Identifier: Apache-2.0
// warmup.hpp: the first calls of a group, made by the group itself: real operations of the largest
// size on made-up tokens, so that later calls find code, memory and peers in use.
#pragma once

#include "ep/cuda/group/group.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"

namespace shoal::ep::cuda {

/// Runs every kind of operation that the group's options allow, on a stream like those of callers,
/// and waits for them. Collective; throws what the operations throw.
void warm_up(Group& group, CudaGroup& device, LowLatency& low_latency);

}  // namespace shoal::ep::cuda
