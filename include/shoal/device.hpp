// SPDX-License-Identifier: Apache-2.0
// shoal/device.hpp: one-sided operations from inside a user's own kernels (requirement D15, device
// forms).
//
// What a reader needs
// - A kernel gets its world as a parameter: `__grid_constant__ const shoal::device::World world`,
// which the host takes
//   from shoal::cuda::device_world (shoal/cuda.hpp). There is no state behind it: no relocatable
//   device code, no symbols, nothing to initialise. It is valid until the shoal::World is closed.
// - As in OpenSHMEM, an address in this PE's heap plus a PE names a byte of the world:
// `put(Block{}, world, target,
//   source, count, pe)` writes to `target` as PE `pe` has it. The heap must be in GPU memory
//   (SHOAL_HEAP=cuda).
// - Most functions take a scope, who does the work: Thread{}, Warp{} (all 32 lanes) or Block{} (all
// threads of the
//   block). All threads of the scope call, with the same arguments, converged as for __syncwarp or
//   __syncthreads.
// - Memory order, alignment and failure are stated once, on top of functions.cuh. In short: what a
// scope stored before
//   signal, put_signal or barrier is visible to whoever waits for the signal; waits have a
//   deadline; nothing traps: what goes wrong is kept in host memory, and
//   shoal::cuda::check_failures throws it.
// - Waiting kernels need what they wait for to run at the same time. Launch kernels whose blocks
// wait for each other
//   with launch_collective (device/launch.cuh), and read docs/guide/device.md before several PEs share a
//   GPU.
//
// Any part may be included alone; this header includes those that the compiler can read: without a
// CUDA compiler, the types.
#pragma once

#include <shoal/device/types.hpp>

#ifdef __CUDACC__
#include <shoal/device/functions.cuh>
#include <shoal/device/launch.cuh>
#endif
