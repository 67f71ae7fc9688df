// SPDX-License-Identifier: Apache-2.0
// state_type.hpp: the device state, for host and kernels.
#pragma once

#ifndef SHOAL_KERNELS_ONLY
#define SHOAL_KERNELS_ONLY
#define SHOAL_NVSHMEM_DEFINED_KERNELS_ONLY
#endif
#include <shoal/device/types.hpp>
#ifdef SHOAL_NVSHMEM_DEFINED_KERNELS_ONLY
#undef SHOAL_NVSHMEM_DEFINED_KERNELS_ONLY
#undef SHOAL_KERNELS_ONLY
#endif

namespace shoal::nvshmem {

/// A team as kernels see it. An unused one has no PEs.
struct DeviceTeam {
  device::Team team;
  const Pe* world_pes;  ///< [n_pes], in GPU memory
  Pe my_pe;             ///< -1: this PE does not belong to it
  Pe n_pes;
};

/// State for kernels of a program: the world and its teams. All zero while the library is not
/// initialized.
struct DeviceState {
  device::World world;
  const DeviceTeam* teams;  ///< [n_teams], in GPU memory
  std::int32_t n_teams;
};

}  // namespace shoal::nvshmem
