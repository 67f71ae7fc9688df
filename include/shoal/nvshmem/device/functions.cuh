// SPDX-License-Identifier: Apache-2.0
// functions.cuh: all functions of nvshmem.h inside kernels.
#pragma once

#include <shoal/nvshmem/device/atomics.cuh>
#include <shoal/nvshmem/device/collectives.cuh>
#include <shoal/nvshmem/device/order.cuh>
#include <shoal/nvshmem/device/rma.cuh>
#include <shoal/nvshmem/device/signals.cuh>
#include <shoal/nvshmem/device/state.cuh>
#include <shoal/nvshmem/device/teams.cuh>
#include <shoal/nvshmem/device/waits.cuh>
