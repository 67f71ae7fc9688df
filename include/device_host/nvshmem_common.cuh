// SPDX-License-Identifier: Apache-2.0
// nvshmem_common.cuh: what host and kernels share, by a path that programs name.
#pragma once

#include <nvshmem.h>
