// SPDX-License-Identifier: Apache-2.0
// check.h: a check that ends the job where it fails.
#ifndef SHOAL_TESTS_SHMEM_CHECK_H
#define SHOAL_TESTS_SHMEM_CHECK_H

#include <shmem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition)) {                                                                     \
      fprintf(stderr, "%s:%d: PE %d: %s\n", __FILE__, __LINE__, shmem_my_pe(), #condition); \
      shmem_global_exit(1);                                                                 \
    }                                                                                       \
  } while (0)

#endif
