// SPDX-License-Identifier: Apache-2.0
// shmemx.h: extensions to OpenSHMEM. Shoal has none: its own interface is shoal/shoal.h.
#ifndef SHOAL_SHMEMX_H
#define SHOAL_SHMEMX_H

#include <shmem.h>

#endif
