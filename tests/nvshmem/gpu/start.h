// SPDX-License-Identifier: Apache-2.0
// start.h: how the programs in this folder begin.
#pragma once

#include <cuda_runtime.h>
#include <nvshmem_host.h>

#include "../check.h"

/// Initializes NVSHMEM and selects this PE's GPU. Returns false on a machine without a GPU.
inline bool init_on_gpu() {
  int gpus = 0;
  if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus == 0) return false;
  nvshmem_init();
  CHECK(cudaSetDevice(nvshmem_team_my_pe(NVSHMEMX_TEAM_NODE) % gpus) == cudaSuccess);
  return true;
}
