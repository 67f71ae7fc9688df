// SPDX-License-Identifier: Apache-2.0
// functions.h: the prototypes, by chapter. These files have no include guards: shmem.h and pshmem.h
// include them with different meanings of SHOAL_SHMEM(name), so that the prototypes of shmem_X and
// pshmem_X are one text.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

// A routine, and its form on a context.
#define SHOAL_SHMEM_PAIR(RESULT, NAME, ...) \
  RESULT SHOAL_SHMEM(NAME)(__VA_ARGS__);    \
  RESULT SHOAL_SHMEM(ctx_##NAME)(shmem_ctx_t ctx, __VA_ARGS__);

#include <shoal/shmem/atomics.h>
#include <shoal/shmem/collectives.h>
#include <shoal/shmem/contexts.h>
#include <shoal/shmem/deprecated.h>
#include <shoal/shmem/library.h>
#include <shoal/shmem/locks.h>
#include <shoal/shmem/memory.h>
#include <shoal/shmem/order.h>
#include <shoal/shmem/rma.h>
#include <shoal/shmem/signals.h>
#include <shoal/shmem/teams.h>
#include <shoal/shmem/waits.h>

#undef SHOAL_SHMEM_PAIR
