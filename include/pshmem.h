// SPDX-License-Identifier: Apache-2.0
// pshmem.h: the profiling interface. pshmem_X does what shmem_X does. Each shmem_X of the library
// is a weak symbol, so that a profiling library can define it and call pshmem_X.
#ifndef SHOAL_PSHMEM_H
#define SHOAL_PSHMEM_H

#include <shmem.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SHOAL_SHMEM(name) pshmem_##name
#include <shoal/shmem/functions.h>
#undef SHOAL_SHMEM

#ifdef __cplusplus
}
#endif

#endif
