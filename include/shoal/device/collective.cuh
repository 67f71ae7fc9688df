// SPDX-License-Identifier: Apache-2.0
// shoal/device/collective.cuh: collectives over teams inside kernels. contract/collective.cuh
// explains them.
#pragma once

#include <shoal/device/contract/collective.cuh>          // IWYU pragma: export
#include <shoal/device/detail/collective/functions.cuh>  // IWYU pragma: export
