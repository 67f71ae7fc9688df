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

// Over a network all types take the same path, and a job has one of each size there
// (SHOAL_TEST_FEW); inside a host it has all of them, and in ./run soak everywhere
// (SHOAL_TEST_ALL).
static inline int few(void) {
  return getenv("SHOAL_TEST_FEW") != NULL && getenv("SHOAL_TEST_ALL") == NULL;
}
static inline int runs_type(const char* name) {
  static const char* const sizes[] = {"char", "short",  "int",       "uint",
                                      "long", "double", "longdouble"};
  if (!few()) return 1;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; ++i)
    if (strcmp(name, sizes[i]) == 0) return 1;
  return 0;
}

#endif
