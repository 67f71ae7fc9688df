// SPDX-License-Identifier: Apache-2.0
// locks.h: locks (OpenSHMEM 1.5, section 9.12). `lock` is a symmetric variable, 0 at the start. PEs
// get the lock in the order in which they ask.
#ifndef SHOAL_SHMEM
#error "part of shmem.h: include <shmem.h>"
#endif

void SHOAL_SHMEM(set_lock)(long* lock);
void SHOAL_SHMEM(clear_lock)(long* lock);
// Returns 0 and takes the lock if it is free, else 1.
int SHOAL_SHMEM(test_lock)(long* lock);
