// SPDX-License-Identifier: Apache-2.0
// units.h: the kernels of the translation units.
#pragma once

#include <nvshmem_host.h>

__global__ void first_unit(int* box, float* values, uint64_t* flag, __half* half, size_t* indices,
                           const int* status);
__global__ void second_unit(int* box);
