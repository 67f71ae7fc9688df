// SPDX-License-Identifier: Apache-2.0
// shoal/device/functions.cuh: one-sided operations, signals, waits and barriers inside kernels.
// contract/functions.cuh explains them.
#pragma once

#include <shoal/device/contract/functions.cuh>  // IWYU pragma: export
#include <shoal/device/detail/functions.cuh>    // IWYU pragma: export
