// SPDX-License-Identifier: Apache-2.0
// shoal/device.hpp: one-sided operations inside a user's own kernels (the device forms of OpenSHMEM
// 1.5, chapter 9).
//
//   __global__ void ring(const __grid_constant__ shoal::device::World world, float* box) {
//     using namespace shoal::device;
//     put(Block{}, world, box, box + 1024, 1024, (world.my_pe + 1) % world.n_pes);
//   }
//   ring<<<1, 256, 0, stream>>>(shoal::cuda::device_world(world), box.data());
//
// - A kernel gets its world as a parameter, from shoal::cuda::device_world (device/host.hpp). There
//   are no device globals and there is no relocatable device code. The parameter is valid until the
//   shoal::World is closed. The heap must be in GPU memory (SHOAL_HEAP=cuda).
// - An address in this PE's heap and a PE name a byte of the world, as in OpenSHMEM.
// - Most functions take a scope, the threads that perform the operation together: Thread{}, Warp{}
//   (32 lanes) or Block{}. All of them call, converged, with the same arguments.
// - device/contract/functions.cuh states memory order, alignment and failure. In short: whoever
//   sees a signal sees what the scope stored before it; every wait has a deadline; nothing traps,
//   failures are kept and shoal::cuda::check_failures throws them.
// - device/contract/collective.cuh has the collectives of a team, alike.
// - A kernel that waits needs its counterpart to run at the same time. Launch kernels whose blocks
//   wait for each other with launch_collective (device/launch.cuh); docs/guide/device.md explains
//   what several PEs on one GPU need.
//
// Each part may be included alone. This header includes all of them, or the types alone when no
// CUDA compiler reads it.
#pragma once

#include <shoal/device/types.hpp>

#ifdef __CUDACC__
#include <shoal/device/collective.cuh>
#include <shoal/device/functions.cuh>
#include <shoal/device/launch.cuh>
#endif
