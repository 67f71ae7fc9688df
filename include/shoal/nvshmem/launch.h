// SPDX-License-Identifier: Apache-2.0
// launch.h: collective launch: all blocks of a grid run at once, so that they may wait for blocks
// of other PEs. Compiled with the program, whose CUDA runtime knows the kernel.
#ifndef SHOAL_NVSHMEM_HD
#error "part of nvshmem.h: include <nvshmem.h>"
#endif

// Internal: attributes of this PE, and order between streams. Programs do not call these.
void shoal_nvshmem_launch_context(int* device, int* pes_on_device, cudaStream_t* priority);
void shoal_nvshmem_order(cudaStream_t before, cudaStream_t after);

#ifdef SHOAL_NVSHMEM_LAUNCH
#include <shoal/nvshmem/launch_inline.h>
#endif
