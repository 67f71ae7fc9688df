// SPDX-License-Identifier: Apache-2.0
// host_device.hpp: marks functions that are compiled for the CPU and, by a CUDA compiler, for the
// GPU as well.
#pragma once

#ifdef __CUDACC__
#define SHOAL_HOST_DEVICE __host__ __device__
#else
#define SHOAL_HOST_DEVICE
#endif
