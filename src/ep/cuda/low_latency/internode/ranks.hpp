// SPDX-License-Identifier: Apache-2.0
// ranks.hpp: the ranks of a group whose heap loads and stores do not reach.
//
// Kernels write what such a rank is sent to an outbox: a block in this rank's heap with the layout
// of every block. DeviceGroup::block has the outbox in place of the rank's block, so that the
// kernels of one node send to it unchanged; forward.cu puts what they wrote to the same place of
// the rank's own block.
#pragma once

#include <cstdint>

#include "ep/cuda/device/group.cuh"
#include "ep/cuda/device/network_path.hpp"
#include "shoal/device/types.hpp"

namespace shoal::ep::cuda {

/// A kernel parameter. Without remote ranks, `count` is 0.
struct InternodeRanks {
  device::World world;
  NetworkPath path;
  std::int32_t count;
  std::int16_t rank[kMaxDeviceRanks];  ///< [count]
  std::int16_t pe[kMaxDeviceRanks];    ///< [count]: the same as PEs of the world
};

}  // namespace shoal::ep::cuda
