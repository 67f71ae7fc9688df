// SPDX-License-Identifier: Apache-2.0
// nvshmemx.h: the extensions: operations on streams, forms of a warp and a block, initialization by
// attributes. nvshmem.h has all of them.
#ifndef SHOAL_NVSHMEMX_H
#define SHOAL_NVSHMEMX_H

#include <nvshmem.h>

#endif
