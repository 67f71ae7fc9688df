// SPDX-License-Identifier: Apache-2.0 nvshmem_tensor.h: for programs that include it along with
// nvshmem.h. There are no tiles: they need multicast memory, which Shoal does not use.
#pragma once

#include <nvshmem.h>
