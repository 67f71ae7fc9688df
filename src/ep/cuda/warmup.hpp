// SPDX-License-Identifier: Apache-2.0
// warmup.hpp: the first calls of a group, made by itself: real operations of the largest size on
// made-up tokens, so that code, memory and peers are those that later calls use.
#pragma once

#include "ep/cuda/group.hpp"
#include "ep/cuda/low_latency/low_latency.hpp"

namespace shoal::ep::cuda {

/// Runs every kind of operation that the group's options allow, on a stream as callers have them,
/// and waits for the end. Collective; throws what the operations throw.
void warm_up(Group& group, CudaGroup& device, LowLatency& low_latency);

}  // namespace shoal::ep::cuda
